"""Bytes of a weight under a scheme: elements, scales, zero points, counted one by one."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant import Quantization, Scheme
from policyquant.plan.sizes import scheme_bytes
from policyquant.policy.methods import METHODS
from tests.plan.models import deepseek, inventory, llama, llama_without_shapes, mixtral, mixtral_modules, phi3, plan

ROWS, COLUMNS = 300, 256


def scheme(method: str, weight: dict[str, object] | None = None, input: dict[str, object] | None = None) -> Scheme:
    spec = METHODS[method]
    return Scheme(method, *spec.refine(spec.weight, spec.input, weight, input))


@pytest.mark.parametrize(
    ("written", "shape", "expected"),
    [
        # One byte an element and an FP32 scale for each output channel,
        (scheme("fp8"), (ROWS, COLUMNS), 300 * 256 + 4 * 300),
        (scheme("fp8_weight_only"), (ROWS, COLUMNS), 300 * 256 + 4 * 300),
        (scheme("int8"), (ROWS, COLUMNS), 300 * 256 + 4 * 300),
        # or one for the tensor.
        (scheme("fp8", {"granularity": "tensor"}), (ROWS, COLUMNS), 300 * 256 + 4),
        # A static input scale is stored with the weight.
        (scheme("fp8", None, {"scheme": "static", "granularity": "tensor"}), (ROWS, COLUMNS), 300 * 256 + 4 * 300 + 4),
        # 128x128 blocks: 3 x 2 of them, the last row of blocks ragged.
        (scheme("fp8_block"), (ROWS, COLUMNS), 300 * 256 + 4 * 3 * 2),
        (scheme("fp8_block", {"scale_dtype": "float8_e8m0fnu"}), (ROWS, COLUMNS), 300 * 256 + 3 * 2),
        (scheme("fp8_block"), (576, 7168), 576 * 7168 + 4 * 5 * 56),
        # Half a byte an element and a BF16 scale for each 128 values of a row,
        (scheme("int4_weight_only"), (ROWS, COLUMNS), 300 * 128 + 2 * 300 * 2),
        (scheme("int4_weight_only", {"group": 32}), (ROWS, COLUMNS), 300 * 128 + 2 * 300 * 8),
        # and a zero point of half a byte for each, if asymmetric.
        (scheme("int4_weight_only", {"symmetric": False}), (ROWS, COLUMNS), 300 * 128 + 2 * 300 * 2 + 300),
        # OCP formats: a byte for each 32 values.
        (scheme("mxfp8"), (ROWS, COLUMNS), 300 * 256 + 300 * 8),
        (scheme("mxfp4"), (ROWS, COLUMNS), 300 * 128 + 300 * 8),
        # NVFP4: a byte for each 16 values, and an FP32 scale for the tensor and one for its input.
        (scheme("nvfp4"), (ROWS, COLUMNS), 300 * 128 + 300 * 16 + 4 + 4),
        # 3-D experts are so many weights.
        (scheme("fp8"), (8, ROWS, COLUMNS), 8 * (300 * 256 + 4 * 300)),
        (scheme("nvfp4"), (8, ROWS, COLUMNS), 8 * (300 * 128 + 300 * 16 + 8)),
        (scheme("fp8"), (0, COLUMNS), 0),
    ],
)
def test_bytes_of_one_weight(written: Scheme, shape: tuple[int, ...], expected: int) -> None:
    assert scheme_bytes(written, shape) == expected


@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    group=st.sampled_from([16, 32]),
    block=st.tuples(st.sampled_from([8, 32]), st.sampled_from([8, 32])),
)
def test_scales_are_as_many_as_there_are_places_for_them(
    rows: int, columns: int, group: int, block: tuple[int, int]
) -> None:
    groups = {(row, column // group) for row in range(rows) for column in range(columns)}
    blocks = {(row // block[0], column // block[1]) for row in range(rows) for column in range(columns)}
    by_group = Scheme("x", Quantization("int8", "group", group=group))
    by_block = Scheme("x", Quantization("int8", "block", block=block))
    assert scheme_bytes(by_group, (rows, columns)) == rows * columns + 4 * len(groups)
    assert scheme_bytes(by_block, (rows, columns)) == rows * columns + 4 * len(blocks)


@given(rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_an_odd_number_of_half_bytes_ends_in_a_whole_one(rows: int, columns: int) -> None:
    written = Scheme("x", Quantization("int4", "tensor"))
    assert scheme_bytes(written, (rows, columns)) == ceil(rows * columns / 2) + 4


# --- layers and models -----------------------------------------------------------------------------------------------


def test_what_is_not_the_weight_stays_as_it_is() -> None:
    # A GPT-2 projection has a bias of 2304 FP32 values.
    layer = plan(inventory("gpt2"), {"*.c_attn": "int8_weight_only"})["h.0.attn.c_attn"]
    assert layer.bytes_before == 4 * (768 * 2304 + 2304)
    # Stored [in, out]; each of its 2304 outputs has a scale.
    assert layer.bytes_after == 768 * 2304 + 4 * 2304 + 4 * 2304


def test_totals_add_up() -> None:
    resolved = plan(llama(), {"*.mlp": "fp8", "*.self_attn": "int4_weight_only"})
    layers = list(resolved.layers())
    assert resolved.total.layers == len(resolved) == len(layers)
    assert resolved.total.bytes_before == sum(layer.bytes_before or 0 for layer in layers)
    assert resolved.total.bytes_after == sum(layer.bytes_after or 0 for layer in layers)
    assert resolved.total.parameters == sum(layer.parameters or 0 for layer in layers)
    assert resolved.total.parameters == (resolved.total.bytes_before or 0) // 2


@pytest.mark.parametrize(
    ("model", "before"),
    # Total bytes and parameters as published for the real models.
    [
        ("Mixtral-8x7B-v0.1", 93_405_585_408),
        ("DeepSeek-V3", 688_574_839_360),
        ("Qwen2.5-VL-7B-Instruct", 16_584_333_312),
        ("gpt-oss-120b", 65_248_815_744),
        ("gpt2", 548_090_880),
        ("t5-small", 242_026_496),
        ("Qwen3-8B-NVFP4", 6_396_932_352),
    ],
)
def test_a_policy_that_leaves_everything_changes_no_byte(model: str, before: int) -> None:
    resolved = plan(inventory(model), {"*": "none"})
    assert resolved.total.bytes_before == resolved.total.bytes_after == before


@pytest.mark.parametrize("method", ["fp8", "fp8_block", "int4_weight_only", "nvfp4", "mxfp4"])
def test_experts_weigh_the_same_in_one_tensor_as_singly(method: str) -> None:
    singly, together = (plan(model, {"decoder.*.moe": method}) for model in (mixtral(), mixtral_modules()))
    assert singly.total.parameters == together.total.parameters
    assert singly.total.bytes_after == together.total.bytes_after


def test_fused_projections_are_quantized_part_by_part() -> None:
    layer = plan(phi3(), {"*.qkv_proj": {"method": "fp8", "weight": {"granularity": "tensor"}}})
    assert layer["model.layers.0.self_attn.qkv_proj"].bytes_after == 3 * (256 * 256 + 4)


def test_without_shapes_sizes_are_unknown_not_zero() -> None:
    resolved = plan(llama_without_shapes(), {"*.mlp": "fp8"})
    assert (resolved.total.parameters, resolved.total.bytes_before, resolved.total.bytes_after) == (None, None, None)
    assert (resolved.total.bits_before, resolved.total.bits_after) == (None, None)


def test_dequantizing_what_is_not_quantized_changes_nothing() -> None:
    resolved = plan(llama(), {"*": "dequantize"})
    assert resolved.total.bytes_after == resolved.total.bytes_before


def test_dequantizing_gives_the_models_dtype() -> None:
    layer = plan(deepseek("F8_E4M3"), {"*.o_proj": "dequantize"})["model.layers.0.self_attn.o_proj"]
    assert (layer.bytes_before, layer.bytes_after) == (256 * 256 + 4 * 4, 2 * 256 * 256)
