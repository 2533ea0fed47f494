"""Stored forms of weights: what the tensors of a layer say about its logical shape and its scheme."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.inventory.dtypes import stored_bytes
from policyquant.inventory.layers import StoredScheme, StoredSet, StoredTensor
from policyquant.inventory.scale_layout import scale_layout
from policyquant.inventory.sources import open_source
from policyquant.inventory.stored_formats import StoredWeight, recognise
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.files_on_disk import MODELS

Tensors = dict[str, tuple[str | None, tuple[int, ...] | None]]


def layer(tensors: Tensors) -> StoredSet:
    ordered = sorted((StoredTensor(suffix, *form) for suffix, form in tensors.items()), key=lambda each: each.suffix)
    return StoredSet("m", ((),), tuple(ordered))


def only_weight(tensors: Tensors, declared: dict[str, Any] | None = None) -> StoredWeight:
    (weight,) = recognise(layer(tensors), {"quantization_config": declared}).weights
    return weight


BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MLX = {"group_size": 64, "bits": 4}


def packed(bits: int, group: int | None) -> dict[str, Any]:
    weights = {"num_bits": bits, "group_size": group, "type": "int"}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"weights": weights, "input_activations": None, "targets": ["Linear"]}},
    }


CASES: dict[str, tuple[Tensors, dict[str, Any] | None, tuple[int, ...] | None, str | None, int]] = {
    # what: tensors, quantization_config, logical shape, method, bits
    "plain": ({"weight": ("BF16", (8, 4))}, None, (8, 4), None, 16),
    "plain with a parameter called scale": (
        {"weight": ("BF16", (8, 4)), "scale": ("F32", (8,))}, None, (8, 4), None, 16),
    "fp8 per tensor": (
        {"weight": ("F8_E4M3", (256, 512)), "weight_scale": ("F32", ())}, None, (256, 512), "fp8", 8),
    "fp8 per channel": (
        {"weight": ("F8_E4M3", (256, 512)), "weight_scale": ("BF16", (256, 1))}, None, (256, 512), "fp8", 8),
    "fp8 per channel, one dimension": (
        {"weight": ("F8_E5M2", (256, 512)), "weight_scale": ("F32", (256,))}, None, (256, 512), "fp8", 8),
    "fp8 block": (
        {"weight": ("F8_E4M3", (256, 512)), "weight_scale_inv": ("F32", (2, 4))}, BLOCK, (256, 512), "fp8_block", 8),
    "fp8 block with ragged ends": (
        {"weight": ("F8_E4M3", (576, 7168)), "weight_scale_inv": ("F32", (5, 56))}, None, (576, 7168), "fp8_block", 8),
    "fp8 block of one block": (
        {"weight": ("F8_E4M3", (64, 64)), "weight_scale_inv": ("F32", (1, 1))}, BLOCK, (64, 64), "fp8_block", 8),
    "fp8 block, DeepSeek's own spelling": (
        {"weight": ("F8_E4M3", (256, 512)), "scale": ("F8_E8M0", (2, 4))}, BLOCK, (256, 512), "fp8_block", 8),
    "fp8 of experts, block": (
        {"gate_up_proj": ("F8_E4M3", (4, 256, 512)), "gate_up_proj_scale_inv": ("F32", (4, 2, 4))},
        BLOCK, (4, 256, 512), "fp8_block", 8),
    "fp8 of experts, one scale each": (
        {"gate_up_proj": ("F8_E4M3", (4, 256, 512)), "gate_up_proj_scale": ("F32", (4, 1, 1))},
        None, (4, 256, 512), "fp8", 8),
    "fp8 weight only": (
        {"weight": ("F8_E4M3", (256, 512)), "weight_scale": ("BF16", (256, 1))},
        {"config_groups": {"group_0": {"weights": {"num_bits": 8}, "input_activations": None}}},
        (256, 512), "fp8_weight_only", 8),
    "fp8 with input scale": (
        {"weight": ("F8_E4M3", (256, 512)), "weight_scale": ("F32", ()), "input_scale": ("F32", ())},
        None, (256, 512), "fp8", 8),
    "mxfp8": (
        {"weight": ("F8_E4M3", (256, 512)), "weight_scale": ("U8", (256, 16))}, None, (256, 512), "mxfp8", 8),
    "int8": ({"weight": ("I8", (256, 512)), "weight_scale": ("BF16", (256, 1))}, None, (256, 512), "int8", 8),
    "int8 weight only": (
        {"weight": ("I8", (256, 512)), "weight_scale": ("BF16", (256, 1))}, packed(8, None), (256, 512),
        "int8_weight_only", 8),
    "nvfp4 of ModelOpt": (
        {"weight": ("U8", (1024, 2048)), "weight_scale": ("F8_E4M3", (1024, 256)), "weight_scale_2": ("F32", ()),
         "input_scale": ("F32", ()), "k_scale": ("F32", ())},
        None, (1024, 4096), "nvfp4", 4),
    "nvfp4 of compressed-tensors": (
        {"weight_packed": ("U8", (1024, 2048)), "weight_scale": ("F8_E4M3", (1024, 256)),
         "weight_global_scale": ("F32", (1,)), "input_global_scale": ("F32", (1,))},
        None, (1024, 4096), "nvfp4", 4),
    "mxfp4 of compressed-tensors": (
        {"weight_packed": ("U8", (1024, 2048)), "weight_scale": ("U8", (1024, 128))}, None, (1024, 4096), "mxfp4", 4),
    "mxfp4 in safetensors' own FP4": (
        {"weight": ("F4", (1024, 4096)), "weight_scale": ("F8_E8M0", (1024, 128))}, None, (1024, 4096), "mxfp4", 4),
    "mxfp4 in signed bytes": (
        {"weight": ("I8", (1024, 2048)), "scale": ("F8_E8M0", (1024, 128))}, None, (1024, 4096), "mxfp4", 4),
    "int4, packed": (
        {"weight_packed": ("I32", (1024, 512)), "weight_scale": ("BF16", (1024, 32)), "weight_shape": ("I64", (2,))},
        packed(4, 128), (1024, 4096), "int4_weight_only", 4),
    "int4, packed, the last word of a row not full": (
        {"weight_packed": ("I32", (16, 5)), "weight_scale": ("BF16", (16, 1)), "weight_shape": ("I64", (2,))},
        packed(4, 36), (16, 36), "int4_weight_only", 4),
    "int8, packed, per channel": (
        {"weight_packed": ("I32", (1024, 1024)), "weight_scale": ("BF16", (1024, 1)), "weight_shape": ("I64", (2,))},
        packed(8, -1), (1024, 4096), "int8_weight_only", 8),
    "int4, packed, undeclared": (
        {"weight_packed": ("I32", (1024, 512)), "weight_scale": ("BF16", (1024, 32))}, None, None,
        "int4_weight_only", 4),
    "int4, packed along the output": (
        {"weight": ("U8", (512, 4096)), "weight_scale": ("BF16", (1024, 32))}, None, (1024, 4096),
        "int4_weight_only", 4),
    "mlx, 4 bit": (
        {"weight": ("U32", (5120, 2176)), "scales": ("BF16", (5120, 272)), "biases": ("BF16", (5120, 272))},
        MLX, (5120, 17408), "mlx_affine", 4),
    "mlx, another group size than declared": (
        {"weight": ("U32", (10240, 960)), "scales": ("BF16", (10240, 40)), "biases": ("BF16", (10240, 40))},
        {"bits": 4, "group_size": 128, "m": {"bits": 6}}, (10240, 5120), "mlx_affine", 6),
    "mlx, of experts": (
        {"weight": ("U32", (8, 64, 16)), "scales": ("BF16", (8, 64, 2)), "biases": ("BF16", (8, 64, 2))},
        MLX, (8, 64, 128), "mlx_affine", 4),
    "mlx, mxfp4": (
        {"weight": ("U32", (64, 16)), "scales": ("U8", (64, 4))}, {"mode": "mxfp4", "bits": 4, "group_size": 32},
        (64, 128), "mxfp4", 4),
    "gptq, 4 bit": (
        {"qweight": ("I32", (512, 1024)), "qzeros": ("I32", (32, 128)), "scales": ("F16", (32, 1024)),
         "g_idx": ("I32", (4096,))},
        {"quant_method": "gptq", "bits": 4, "group_size": 128}, (1024, 4096), "gptq", 4),
    "gptq, 8 bit although the config says 4": (
        {"qweight": ("I32", (1024, 1024)), "qzeros": ("I32", (32, 256)), "scales": ("F16", (32, 1024))},
        {"quant_method": "gptq", "bits": 4}, (1024, 4096), "gptq", 8),
    "awq": (
        {"qweight": ("I32", (4096, 128)), "qzeros": ("I32", (32, 128)), "scales": ("F16", (32, 1024))},
        {"quant_method": "awq", "bits": 4}, (1024, 4096), "awq", 4),
    "bitsandbytes, 8 bit": (
        {"weight": ("I8", (64, 32)), "SCB": ("F32", (64,)), "weight_format": ("U8", ())}, None, (64, 32),
        "bitsandbytes", 8),
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_a_stored_form_gives_its_logical_shape_and_scheme(what: str) -> None:
    tensors, declared, shape, method, bits = CASES[what]
    weight = only_weight(tensors, declared)
    assert weight.shape == shape
    assert (weight.scheme.method if weight.scheme else None) == method
    assert (weight.scheme.bits if weight.scheme else 16) == bits
    assert weight.elements == (None if shape is None else prod(shape))


@pytest.mark.parametrize("what", CASES)
def test_every_tensor_of_a_layer_is_accounted_for_once(what: str) -> None:
    stored = layer(CASES[what][0])
    found = recognise(stored, {"quantization_config": CASES[what][1]})
    listed = [tensor for weight in found.weights for tensor in (weight.tensor, *weight.scales)]
    assert sorted([*listed, *found.activation_scales, *found.rest]) == sorted(stored.tensors)


@pytest.mark.parametrize("what", CASES)
def test_bytes_are_those_of_the_weight_and_its_scales(what: str) -> None:
    weight = only_weight(*CASES[what][:2])
    tensors = (weight.tensor, *weight.scales)
    assert weight.bytes == sum(stored_bytes(tensor.dtype, tensor.shape) or 0 for tensor in tensors)


def test_activation_scales_are_no_part_of_the_weight() -> None:
    found = recognise(layer(CASES["nvfp4 of ModelOpt"][0]), {})
    assert [tensor.suffix for tensor in found.activation_scales] == ["input_scale", "k_scale"]
    assert [tensor.suffix for tensor in found.weights[0].scales] == ["weight_scale", "weight_scale_2"]


def test_biases_and_bare_parameters_are_the_rest() -> None:
    tensors: Tensors = {"weight": ("BF16", (8, 4)), "bias": ("BF16", (8,)), "A_log": ("F32", (8,))}
    assert [tensor.suffix for tensor in recognise(layer(tensors), {}).rest] == ["A_log", "bias"]


def test_a_layer_of_experts_has_a_weight_for_each_projection() -> None:
    tensors: Tensors = {
        "gate_up_proj_blocks": ("U8", (128, 5760, 90, 16)),
        "gate_up_proj_scales": ("U8", (128, 5760, 90)),
        "gate_up_proj_bias": ("BF16", (128, 5760)),
        "down_proj_blocks": ("U8", (128, 2880, 90, 16)),
        "down_proj_scales": ("U8", (128, 2880, 90)),
        "down_proj_bias": ("BF16", (128, 2880)),
    }
    found = recognise(layer(tensors), {})
    assert {weight.parameter: weight.shape for weight in found.weights} == {
        "gate_up_proj": (128, 5760, 2880),
        "down_proj": (128, 2880, 2880),
    }
    assert {weight.scheme for weight in found.weights} == {StoredScheme("mxfp4", "MXFP4, group 32", 4)}
    assert [tensor.suffix for tensor in found.rest] == ["down_proj_bias", "gate_up_proj_bias"]


def test_experts_that_are_not_quantized_have_weights_too() -> None:
    tensors: Tensors = {"gate_up_proj": ("BF16", (8, 64, 32)), "down_proj": ("BF16", (8, 32, 32))}
    assert {weight.parameter: weight.scheme for weight in recognise(layer(tensors), {}).weights} == {
        "gate_up_proj": None,
        "down_proj": None,
    }


def test_which_parameters_are_weights_can_be_told() -> None:
    tensors: Tensors = {"mm_input_projection_weight": ("BF16", (1152, 2560))}
    found = recognise(layer(tensors), {}, weight_names={"mm_input_projection_weight"})
    assert [weight.shape for weight in found.weights] == [(1152, 2560)]


NAMES = {
    # tensors of a layer in an index alone: quantization_config, method
    "fp8 block": (["weight", "weight_scale_inv"], BLOCK, "fp8_block"),
    "fp8": (["weight", "weight_scale"], {"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
    "int8": (["weight", "weight_scale"], {"quant_method": "compressed-tensors", "format": "int-quantized"}, "int8"),
    "undeclared": (["weight", "weight_scale"], None, "unknown"),
    "nvfp4": (["weight", "weight_scale", "weight_scale_2", "input_scale"], None, "nvfp4"),
    "packed": (["weight_packed", "weight_scale", "weight_shape"], packed(8, 128), "int8_weight_only"),
    "mlx": (["weight", "scales", "biases"], MLX, "mlx_affine"),
    "mxfp4": (["down_proj_blocks", "down_proj_scales"], None, "mxfp4"),
    "gptq": (["qweight", "qzeros", "scales", "g_idx"], {"quant_method": "gptq", "bits": 4}, "gptq"),
    "awq": (["qweight", "qzeros", "scales"], {"quant_method": "awq", "bits": 4}, "awq"),
    "plain": (["weight", "bias"], None, None),
}


@pytest.mark.parametrize("what", NAMES)
def test_names_alone_tell_the_scheme_but_no_size(what: str) -> None:
    suffixes, declared, method = NAMES[what]
    weight = only_weight(dict.fromkeys(suffixes, (None, None)), declared)
    assert (weight.scheme.method if weight.scheme else None) == method
    assert (weight.shape, weight.elements, weight.bytes) == (None, None, None)


def test_parts_stored_below_a_weight_belong_to_its_layer() -> None:
    """bitsandbytes stores `q_proj.weight.absmax`, which is a tensor of `q_proj`."""
    model = from_tensors(
        [
            ("layers.0.q_proj.weight", (1024, 1), "U8"),
            ("layers.0.q_proj.weight.absmax", (32,), "U8"),
            ("layers.0.q_proj.weight.quant_map", (16,), "F32"),
            ("layers.0.q_proj.weight.nested_absmax", (1,), "F32"),
            ("layers.0.q_proj.weight.nested_quant_map", (256,), "F32"),
            ("layers.0.q_proj.weight.quant_state.bitsandbytes__nf4", (86,), "U8"),
            ("layers.1.q_proj.weight", (64, 32), "BF16"),
        ]
    )
    quantized, plain = model.sets
    assert (quantized.template, quantized.indices, plain.indices) == ("layers.#.q_proj", ((0,),), ((1,),))
    (weight,) = recognise(quantized, {}).weights
    assert weight.scheme == StoredScheme("bitsandbytes", "bitsandbytes NF4", 4)
    assert (weight.shape, weight.elements) == (None, 2048)
    assert weight.bytes == 1024 + 32 + 64 + 4 + 1024 + 86


QUANTIZED_MODELS = {
    "DeepSeek-V3": {"fp8_block": 45_808},
    "gpt-oss-120b": {"mxfp4": 36},
    "Qwen3-8B-NVFP4": {"nvfp4": 252},
    "Qwen3-14B-MLX-4bit": {"mlx_affine": 282},
    "Mixtral-8x7B-v0.1": {},
}


@pytest.mark.parametrize("name", QUANTIZED_MODELS)
def test_a_real_model_has_as_many_quantized_layers_as_it_stores(name: str) -> None:
    model = open_source(MODELS / f"{name}.json.gz")
    counted: dict[str, int] = {}
    for stored in model.sets:
        methods = {weight.scheme.method for weight in recognise(stored, model.config).weights if weight.scheme}
        for method in methods:
            counted[method] = counted.get(method, 0) + len(stored.indices)
    assert counted == QUANTIZED_MODELS[name]


def test_logical_shapes_of_a_real_packed_model() -> None:
    model = open_source(MODELS / "Qwen3-14B-MLX-4bit.json.gz")
    shapes = {stored.template: recognise(stored, model.config).weights[0].shape for stored in model.sets}
    assert shapes["model.layers.#.mlp.down_proj"] == (5120, 17408)
    assert shapes["model.embed_tokens"] == (151936, 5120)


def experts(with_scale: set[int], declared: dict[str, Any]) -> Any:
    tensors = []
    for expert in range(4):
        base = f"model.layers.0.mlp.experts.{expert}.up_proj"
        tensors += [(f"{base}.weight", (64, 32), "F8_E4M3"), (f"{base}.weight_scale", (), "F32")]
        if expert in with_scale:
            tensors.append((f"{base}.input_scale", (), "F32"))
    return from_tensors(tensors, config={"quantization_config": declared})


def test_an_expert_without_the_input_scale_that_the_others_have_is_reported() -> None:
    model = experts({0, 1, 2}, {"quant_method": "fp8", "activation_scheme": "static"})
    (finding,) = model.findings
    assert (finding.code, finding.level) == ("PQ408", "error")
    assert finding.layers == ("model.layers.0.mlp.experts.3.up_proj",)


def test_experts_that_calibration_never_reached_are_named_as_a_range() -> None:
    (finding,) = experts({0}, {}).findings
    assert finding.layers == ("model.layers.0.mlp.experts.{1..3}.up_proj",)
    assert finding.message == (
        "no input_scale: model.layers.0.mlp.experts.{1..3}.up_proj; other model.layers.*.mlp.experts.*.up_proj have one"
    )


def test_without_a_word_of_static_inputs_it_is_a_warning() -> None:
    assert [finding.level for finding in experts({0}, {}).findings] == ["warning"]


@pytest.mark.parametrize("with_scale", [set(), {0, 1, 2, 3}])
def test_experts_that_agree_are_not_reported(with_scale: set[int]) -> None:
    assert experts(with_scale, {"quant_method": "fp8", "activation_scheme": "static"}).findings == ()


LACKING: dict[str, Tensors] = {
    "FP8": {"weight": ("F8_E4M3", (8, 4))},
    "FP8 of experts": {"gate_up_proj": ("F8_E4M3", (2, 8, 4))},
    "GPTQ": {"qweight": ("I32", (8, 4)), "qzeros": ("I32", (1, 1))},
    "packed": {"weight_packed": ("I32", (8, 4)), "weight_shape": ("I64", (2,))},
    "MLX": {"weight": ("U32", (8, 4))},
}


def test_weights_without_scales_are_named_as_a_range() -> None:
    (finding,) = from_tensors([(f"layers.{i}.up.weight", (8, 4), "F8_E4M3") for i in (10, 2, 3)]).findings
    assert finding.message == "FP8 tensor without scale: layers.{2..3,10}.up.weight"
    assert finding.layers == ("layers.{2..3,10}.up",)


@pytest.mark.parametrize("what", LACKING)
def test_a_quantized_weight_without_its_scale_is_an_error(what: str) -> None:
    tensors = [(f"m.{suffix}", shape, dtype) for suffix, (dtype, shape) in LACKING[what].items()]
    (finding,) = from_tensors(tensors).findings
    assert (finding.code, finding.level, finding.layers) == ("PQ407", "error", ("m",))


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.json.gz")), ids=lambda path: path.name.removesuffix(".json.gz"))
def test_real_models_give_no_findings(path: Any) -> None:
    assert open_source(path).findings == ()


def test_a_declared_quantization_that_is_not_stored_is_a_warning() -> None:
    model = from_tensors([("m.weight", (8, 4), "BF16")], config={"quantization_config": {"quant_method": "aqlm"}})
    assert [(finding.code, finding.level) for finding in model.findings] == [("PQ436", "warning")]


def test_a_policy_of_ours_says_what_shall_be_and_not_what_is_stored() -> None:
    declared = {"quant_method": "policyquant", "layers": [{"match": "*", "method": "fp8"}]}
    model = from_tensors([("m.weight", (8, 4), "BF16")], config={"quantization_config": declared})
    assert model.findings == ()


@given(st.integers(1, 400), st.integers(1, 400), st.sampled_from([16, 32, 64, 128]), st.sampled_from([32, 128]))
def test_a_declared_block_is_found_again(rows: int, columns: int, height: int, width: int) -> None:
    scale = (-(-rows // height), -(-columns // width))
    assert str(scale_layout((rows, columns), scale, (height, width))) == f"block {height}x{width}"


dtypes = st.none() | st.sampled_from(["F8_E4M3", "I8", "U8", "I32", "U32", "BF16", "F32", "F4", "F8_E8M0"])
shapes = st.none() | st.lists(st.integers(0, 9), max_size=4).map(tuple)
suffixes = st.sampled_from(
    ["weight", "bias", "weight_scale", "weight_scale_inv", "weight_scale_2", "scale", "scales", "biases", "qweight",
     "qzeros", "g_idx", "weight_packed", "weight_shape", "weight_global_scale", "a_blocks", "a_scales", "down_proj",
     "down_proj_scale", "SCB", "weight.absmax", "weight.quant_state.x", "input_scale"]
)  # fmt: skip
malformed = st.recursive(
    st.none() | st.integers(-2, 9) | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
declarations = st.fixed_dictionaries(
    {},
    optional={
        "bits": malformed,
        "group_size": malformed,
        "weight_block_size": malformed,
        "quant_method": malformed,
        "quant_algo": malformed,
        "format": malformed,
        "config_groups": malformed | st.dictionaries(st.text(max_size=2), malformed, max_size=2),
    },
)


@given(st.dictionaries(suffixes, st.tuples(dtypes, shapes), min_size=1), malformed | declarations)
def test_no_tensors_and_no_config_break_the_recognition(tensors: Tensors, declared: Any) -> None:
    stored = layer(tensors)
    found = recognise(stored, {"quantization_config": declared})
    listed = [tensor for weight in found.weights for tensor in (weight.tensor, *weight.scales)]
    assert len(listed) + len(found.activation_scales) + len(found.rest) == len(stored.tensors)
    for weight in found.weights:
        assert weight.shape is None or all(type(size) is int and size >= 0 for size in weight.shape)
