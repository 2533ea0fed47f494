"""The several names of a layer: three namespaces, fused names, parts, canonical names."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from policyquant import Inventory, Plan
from tests.plan.models import (
    codes,
    deepseek,
    findings,
    inventory,
    llama,
    mixtral,
    mixtral_modules,
    module_inventory,
    phi3,
    plan,
    quantized,
    qwen2_5_vl,
    t5,
)


def reached(resolved: Plan, *patterns: str) -> set[str]:
    """Layers that a rule `none` for these patterns decided, whatever their kind."""
    return {layer.name for layer in resolved.layers() if layer.rule is not None and layer.rule.pattern in patterns}


def reach(model: Inventory, pattern: str) -> set[str]:
    return reached(plan(model, {pattern: "none"}), pattern)


def namespace(model: Inventory, pattern: str) -> str | None:
    """The namespace that a pattern belongs to, as the plan tells."""
    rules = {layer.rule for layer in plan(model, {pattern: "none"}).layers() if layer.rule is not None}
    (one,) = {rule.namespace for rule in rules}
    return one


def each(template: str, *lists: Iterable[object]) -> set[str]:
    names = {template}
    for values in lists:
        names = {name.replace("#", str(value), 1) for name in names for value in values}
    return names


# --- namespaces ------------------------------------------------------------------------------------------------------

EXPERTS = each("model.layers.#.block_sparse_moe.experts.#.w#", range(2), range(4), (1, 2, 3))


@pytest.mark.parametrize(
    ("model", "pattern", "expected"),
    [
        # Checkpoint names come first,
        (mixtral(), "*.block_sparse_moe.gate", "checkpoint"),
        (mixtral(), "model.layers.0.self_attn", "checkpoint"),
        # then module names, transformers v5's,
        (mixtral(), "*.mlp.gate", "module"),
        (mixtral(), "*.mlp.experts.down_proj", "module"),
        # then canonical ones.
        (mixtral(), "decoder.*.moe", "canonical"),
        (mixtral(), "*.router", "canonical"),
        (mixtral(), "embedding", "canonical"),
        # The order is the same whatever the model was read from.
        (mixtral_modules(), "*.block_sparse_moe.gate", "checkpoint"),
        (mixtral_modules(), "model.layers.0.self_attn", "checkpoint"),
        (mixtral_modules(), "*.mlp.gate", "module"),
        (mixtral_modules(), "decoder.*.moe", "canonical"),
        # A name that two namespaces share belongs to the first.
        (t5(), "decoder", "checkpoint"),
        (t5(), "decoder.*.attention", "canonical"),
        (qwen2_5_vl(), "visual", "checkpoint"),
        (qwen2_5_vl(), "model.visual", "module"),
        (qwen2_5_vl(), "vision", "canonical"),
    ],
)
def test_a_pattern_belongs_to_the_first_namespace_in_which_it_reaches_anything(
    model: Inventory, pattern: str, expected: str
) -> None:
    assert namespace(model, pattern) == expected


@pytest.mark.parametrize(
    ("spellings", "model"),
    [
        (("visual", "model.visual", "{vision,projector}"), qwen2_5_vl()),
        (("visual.blocks.{0..1}", "model.visual.blocks.{0..1}", "vision.{0..1}"), qwen2_5_vl()),
        (("model.layers", "model.language_model.layers", "decoder"), qwen2_5_vl()),
        (("*.block_sparse_moe", "*.mlp", "decoder.*.moe"), mixtral()),
        (("model.layers.0", "decoder.0"), mixtral()),
        (("*.block_sparse_moe", "*.mlp", "decoder.*.moe"), mixtral_modules()),
        (("*.o_proj", "*.attention.o_proj"), mixtral()),
        (("lm_head", "head"), llama()),
        (("*.SelfAttention.o", "*.attention.o_proj"), t5()),
        (("model.layers.2", "mtp"), deepseek()),
        (("model.layers.{2}.mlp", "mtp.{0}.moe"), deepseek()),
    ],
)
def test_spellings_of_the_same_layers(spellings: tuple[str, ...], model: Inventory) -> None:
    first, *others = [reach(model, text) for text in spellings]
    assert first
    assert others == [first] * len(others)


def test_a_pattern_with_alternatives_belongs_to_one_namespace_as_a_whole() -> None:
    # `absent` reaches nothing anywhere; `lm_head` does by checkpoint names, so `decoder` does not count any more.
    resolved = plan(llama(), {"{lm_head,decoder}": "none"})
    assert reached(resolved, "{lm_head,decoder}") == {"lm_head"}


def test_a_warning_lists_the_layers_that_another_namespace_would_have_added() -> None:
    resolved = plan(llama(), {"{lm_head,decoder.*.mlp}": "none"})
    (warning,) = [finding for finding in resolved.findings if finding.code == "PQ203"]
    assert warning.level == "warning"
    assert set(warning.layers) == {
        f"model.layers.{{0..1}}.mlp.{name}" for name in ("gate_proj", "up_proj", "act_fn", "down_proj")
    }
    assert "canonical" in warning.message


@pytest.mark.parametrize(
    ("model", "layers", "warned"),
    [
        # In T5, cross-attention has a fused name among canonical names only.
        (t5(), {"*.qkv_proj": "none"}, True),
        (t5(), {"*.attention.qkv_proj": "none"}, False),
        (t5(), [{"match": "*.qkv_proj", "kind": "norm", "method": "none", "optional": True}], False),
        (mixtral(), {"*.mlp": "none"}, False),
        (qwen2_5_vl(), {"visual": "none"}, False),
        (llama(), {"*": "none"}, False),
    ],
)
def test_no_warning_where_nothing_would_be_added(model: Inventory, layers: object, warned: bool) -> None:
    assert bool(findings(plan(model, layers), "PQ203")) == warned


def test_expectations_and_groups_are_patterns_like_any_other() -> None:
    resolved = plan(
        t5(), {"*.wi": "fp8"}, expect={"layers": {"*.qkv_proj": "none"}}, groups=[["*.qkv_proj", "*.up_proj"]]
    )
    assert len(findings(resolved, "PQ203")) == 2


def test_names_are_case_sensitive() -> None:
    assert "PQ101" in codes(plan(t5(), {"*.selfattention": "none"}), "error")
    assert reach(t5(), "*.SelfAttention")


def test_a_module_tree_has_its_own_names_first_and_those_of_transformers_v5_as_aliases() -> None:
    older = Inventory.from_tensors(
        [
            ("model.layers.0.block_sparse_moe.gate.weight", (4, 32), "BF16"),
            *((f"model.layers.0.block_sparse_moe.experts.{e}.w2.weight", (32, 64), "BF16") for e in range(4)),
        ],
        config={"model_type": "mixtral"},
        naming="module",
    )
    router = plan(older, default="none").explain("model.layers.0.block_sparse_moe.gate")
    assert router.parts[0].names["module"] == ("model.layers.0.block_sparse_moe.gate", "model.layers.0.mlp.gate")


# --- fused names -----------------------------------------------------------------------------------------------------

QKV = each("model.layers.#.self_attn.#_proj", range(2), "qkv")


@pytest.mark.parametrize(
    ("model", "pattern", "expected"),
    [
        # A fused name stands beside its members and for all of them,
        (llama(), "*.qkv_proj", QKV),
        (llama(), "model.layers.0.self_attn.qkv_proj", {name for name in QKV if ".0." in name}),
        (llama(), "*.self_attn.qkv*", QKV),
        (llama(), "*.gate_up_proj", each("model.layers.#.mlp.#_proj", range(2), ("gate", "up"))),
        # in each namespace,
        (llama(), "decoder.*.attention.qkv_proj", QKV),
        (
            mixtral(),
            "*.experts.gate_up_proj",
            each("model.layers.#.block_sparse_moe.experts.#.w#", (0, 1), range(4), (1, 3)),
        ),
        # also to a regular expression, which must match the whole of it and covers nothing else.
        (llama(), r"re:.*\.qkv_proj", QKV),
        (llama(), r"re:.*\.self_attn\.qkv.*", QKV),
        # A layer stored fused under another spelling has it too,
        (qwen2_5_vl(), "visual.*.qkv_proj", each("visual.blocks.#.attn.qkv", range(3))),
        (qwen2_5_vl(), "*.qkv_proj", QKV | each("visual.blocks.#.attn.qkv", range(3))),
        (inventory("gpt2"), "*.qkv_proj", each("h.#.attn.c_attn", range(12))),
        # and one stored fused under the name itself has it anyway.
        (phi3(), "*.qkv_proj", each("model.layers.#.self_attn.qkv_proj", range(2))),
        (phi3(), "*.gate_up_proj", each("model.layers.#.mlp.gate_up_proj", range(2))),
        # Cross-attention has it in the canonical namespace only,
        (t5(), "*.SelfAttention.qkv_proj", each("#coder.block.#.layer.0.SelfAttention.#", ("en", "de"), (0, 1), "qkv")),
        (t5(), "*.cross_attention.qkv_proj", each("decoder.block.#.layer.1.EncDecAttention.#", (0, 1), "qkv")),
        # and so has latent attention.
        (
            deepseek(),
            "*.qkv_proj",
            each("model.layers.#.self_attn.#_proj", range(3), ("q_a", "q_b", "kv_b"))
            | each("model.layers.#.self_attn.kv_a_proj_with_mqa", range(3)),
        ),
    ],
)
def test_fused_names(model: Inventory, pattern: str, expected: set[str]) -> None:
    assert reach(model, pattern) == expected


@pytest.mark.parametrize(
    ("model", "pattern"),
    [(t5(), "*.EncDecAttention.qkv_proj"), (deepseek(), "*.self_attn.qkv_proj"), (llama(), "*.q_proj.qkv_proj")],
)
def test_where_there_is_no_fused_name(model: Inventory, pattern: str) -> None:
    assert "PQ101" in codes(plan(model, {pattern: "none"}), "error")


def test_a_fused_name_is_a_name_and_not_a_group() -> None:
    # Reaching one member by its own name leaves the others alone, which the fused group then reports.
    resolved = plan(llama(), {"model.layers.0.self_attn.q_proj": "fp8"})
    assert quantized(resolved) == {"model.layers.0.self_attn.q_proj"}
    assert codes(resolved, "error") == ["PQ105"]


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "pattern", "layer"),
    [
        # Patterns are tried on the names of parts as well, and reaching a part counts as reaching:
        (phi3(), "model.layers.0.self_attn.{q,k,v}_proj", "model.layers.0.self_attn.qkv_proj"),
        (phi3(), "model.layers.0.mlp.{gate,up}_proj", "model.layers.0.mlp.gate_up_proj"),
        (qwen2_5_vl(), "visual.blocks.1.attn.[qkv]_proj", "visual.blocks.1.attn.qkv"),
        # all experts of a 3-D tensor, one by one.
        (mixtral_modules(), "model.layers.0.block_sparse_moe.experts.*.w?", "model.layers.0.mlp.experts"),
        (mixtral_modules(), "model.layers.0.block_sparse_moe.experts.{0..3}", "model.layers.0.mlp.experts"),
        (mixtral_modules(), r"re:model\.layers\.0\.block_sparse_moe\.experts\..*", "model.layers.0.mlp.experts"),
    ],
)
def test_if_all_parts_end_with_one_scheme_the_layer_has_it(model: Inventory, pattern: str, layer: str) -> None:
    resolved = plan(model, {pattern: "fp8"})
    assert resolved[layer].method == "fp8"
    assert quantized(resolved) == {resolved[layer].name}
    assert codes(resolved, "error") == []


@pytest.mark.parametrize(
    ("model", "layers", "layer", "parts"),
    [
        (
            phi3(),
            {"*.qkv_proj": "fp8", "model.layers.0.self_attn.v_proj": "none"},
            "model.layers.0.self_attn.qkv_proj",
            ("q_proj", "v_proj"),
        ),
        (phi3(), {"model.layers.1.mlp.up_proj": "fp8"}, "model.layers.1.mlp.gate_up_proj", ("gate_proj", "up_proj")),
        (
            mixtral_modules(),
            {"*.experts": "fp8", "model.layers.1.block_sparse_moe.experts.2": "none"},
            "model.layers.1.block_sparse_moe.experts",
            ("experts.2.w", "experts.{0..1,3}.w"),
        ),
        (
            mixtral_modules(),
            {"*.experts": "fp8", "model.layers.1.mlp.experts.down_proj": "int8"},
            "model.layers.1.block_sparse_moe.experts",
            ("w2", "w1"),
        ),
    ],
)
def test_parts_that_differ_are_an_error_that_names_the_layer_the_parts_and_both_rules(
    model: Inventory, layers: dict[str, str], layer: str, parts: tuple[str, str]
) -> None:
    errors = [finding for finding in plan(model, layers).findings if finding.code == "PQ106"]
    assert errors
    for error in errors:
        assert error.level == "error"
        assert error.layers == (layer,)
    assert all(any(part in error.message for error in errors) for part in parts)
    assert all(any(pattern in error.message for error in errors) for pattern in layers)


@pytest.mark.parametrize("pattern", ["*.experts.{0..1}.w2", "*.experts.*.w[13]", "decoder.0.moe.experts", "*.w1"])
def test_experts_in_one_tensor_are_reached_by_the_same_patterns_as_experts_stored_singly(pattern: str) -> None:
    singly, together = (plan(model, {pattern: "fp8"}) for model in (mixtral(), mixtral_modules()))
    decided = {
        part.name
        for layer in together.layers()
        for part in together.explain(layer.name).parts
        if layer.kind == "moe" and any(rule.outcome == "decides" for rule in part.rules)
    }
    # Of experts that end alike, the first stands for all.
    first_experts = {name for name in quantized(singly) if ".experts.0." in name}
    assert decided == first_experts


# --- names of tensors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "pattern", "suffix"),
    [
        (llama(), "*.weight", ".weight"),
        (llama(), "lm_head.weight", ".weight"),
        (llama(), "model.layers.1.mlp.down_proj.weight", ".weight"),
        (llama(), "model.layers.{0..3}.*.weight", ".weight"),
        (llama(), r"re:.*\.weight", ".weight"),
        (llama(), "*.mlp.*_proj.weight", ".weight"),
        (deepseek(), "*.e_score_correction_bias", ".e_score_correction_bias"),
        (deepseek("F8_E4M3"), "*.weight_scale_inv", ".weight_scale_inv"),
        (inventory("gpt-oss-120b"), "*.gate_up_proj_blocks", ".gate_up_proj_blocks"),
        (inventory("gpt-oss-120b"), "*.sinks", ".sinks"),
        (qwen2_5_vl(), "model.visual.*.weight", ".weight"),
        (llama(), "*.{bias,weight}", ".weight"),
    ],
)
def test_a_pattern_for_tensors_is_an_error_that_says_so(model: Inventory, pattern: str, suffix: str) -> None:
    (error,) = findings(plan(model, {pattern: "fp8"}), "PQ102")
    assert f"without {suffix!r}" in error


@pytest.mark.parametrize("pattern", ["*.bias", "model.layers.7.mlp.down_proj.weight", "weight", "*.weigh"])
def test_a_pattern_for_tensors_that_are_not_there_reaches_nothing(pattern: str) -> None:
    assert "PQ101" in codes(plan(llama(), {pattern: "fp8"}), "error")


def test_a_pattern_that_reaches_a_layer_is_none_for_tensors() -> None:
    assert findings(plan(llama(), {"model.layers.*": "fp8", "*.q*": "fp8"}), "PQ102") == []


# --- layers without tensors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name", "kind"),
    [
        (llama(), "model.layers.0.self_attn", "attention"),
        (llama(), "model.layers.0.mlp.act_fn", "activation"),
        (mixtral(), "model.layers.0.block_sparse_moe.experts.act_fn", "activation"),
        (mixtral(), "model.layers.0.mlp.experts.act_fn", "activation"),
        (mixtral_modules(), "model.layers.0.block_sparse_moe.experts.act_fn", "activation"),
        (phi3(), "model.layers.0.mlp.activation_fn", "activation"),
        (inventory("gpt2"), "h.0.mlp.act", "activation"),
        (inventory("gpt2"), "lm_head", "head"),
        (t5(), "encoder.embed_tokens", "embedding"),
    ],
)
def test_layers_that_own_no_tensor_are_there_for_every_source(model: Inventory, name: str, kind: str) -> None:
    assert plan(model, default="none")[name].kind == kind


# --- canonical names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "canonical", "checkpoint"),
    [
        ("Mixtral-8x7B-v0.1", "decoder.3.moe.experts.gate_up_proj", "model.layers.3.block_sparse_moe.experts.0.w1"),
        ("Mixtral-8x7B-v0.1", "decoder.3.moe.experts.down_proj", "model.layers.3.block_sparse_moe.experts.0.w2"),
        ("Mixtral-8x7B-v0.1", "decoder.3.moe.experts.act", "model.layers.3.block_sparse_moe.experts.act_fn"),
        ("Qwen3-30B-A3B", "decoder.3.moe.router", "model.layers.3.mlp.gate"),
        ("Qwen3-30B-A3B", "decoder.3.attention.q_norm", "model.layers.3.self_attn.q_norm"),
        ("DeepSeek-V3", "decoder.3.moe.shared_experts.down_proj", "model.layers.3.mlp.shared_experts.down_proj"),
        ("DeepSeek-V3", "decoder.2.mlp.gate_up_proj", "model.layers.2.mlp.gate_proj"),
        ("DeepSeek-V3", "decoder.2.attention.qkv_proj", "model.layers.2.self_attn.kv_a_proj_with_mqa"),
        ("DeepSeek-V3", "mtp.0.eh_proj", "model.layers.61.eh_proj"),
        ("DeepSeek-V3", "mtp.0.head", "model.layers.61.shared_head.head"),
        ("DeepSeek-V3", "mtp.0.moe.router", "model.layers.61.mlp.gate"),
        ("gpt-oss-120b", "decoder.3.moe.router", "model.layers.3.mlp.router"),
        ("gpt-oss-120b", "decoder.3.moe.experts.down_proj", "model.layers.3.mlp.experts"),
        ("t5-small", "decoder.1.cross_attention.o_proj", "decoder.block.1.layer.1.EncDecAttention.o"),
        ("t5-small", "encoder.1.mlp.down_proj", "encoder.block.1.layer.1.DenseReluDense.wo"),
        ("t5-small", "embedding", "shared"),
        ("bert-base-uncased", "encoder.1.attention.o_proj", "bert.encoder.layer.1.attention.output.dense"),
        ("vit-base-patch16-224", "vision.1.mlp.down_proj", "vit.encoder.layer.1.output.dense"),
        ("vit-base-patch16-224", "head", "classifier"),
        ("Qwen2.5-VL-7B-Instruct", "vision.1.attention.qkv_proj", "visual.blocks.1.attn.qkv"),
        ("Qwen2.5-VL-7B-Instruct", "projector.linear_1", "visual.merger.mlp.0"),
        ("gemma-3-4b-it", "vision.1.input_norm", "vision_tower.vision_model.encoder.layers.1.layer_norm1"),
        ("Mamba-Codestral-7B-v0.1", "decoder.1.mixer.in_proj", "backbone.layers.1.mixer.in_proj"),
        ("gpt2", "decoder.1.attention.qkv_proj", "h.1.attn.c_attn"),
        ("gpt2", "final_norm", "ln_f"),
        ("opt-125m", "decoder.1.post_attention_norm", "model.decoder.layers.1.final_layer_norm"),
    ],
)
def test_the_canonical_tree(model: str, canonical: str, checkpoint: str) -> None:
    assert checkpoint in reach(inventory(model), canonical)


MOE = ["Mixtral-8x7B-v0.1", "Qwen3-30B-A3B", "DeepSeek-V3", "gpt-oss-120b"]


@pytest.mark.parametrize("model", MOE)
def test_one_policy_fits_a_family_of_models(model: str) -> None:
    resolved = plan(inventory(model), {"decoder.*.moe": "fp8"})
    assert {layer.kind for layer in resolved.layers() if layer.method == "fp8"} <= {"moe", "linear"}
    assert {layer.method for layer in resolved.layers() if layer.kind == "router"} == {"none"}
    experts = [layer for layer in resolved.layers() if layer.kind == "moe"]
    prediction = (
        {layer.name for layer in experts if layer.name.startswith("model.layers.61.")} if "Deep" in model else set()
    )
    assert {layer.name for layer in experts if layer.method != "fp8"} == prediction


def test_a_rule_for_the_decoder_that_leaves_prediction_layers_to_another_decision_is_noted() -> None:
    resolved = plan(deepseek(), {"decoder.*.moe": "fp8"})
    (note,) = [finding for finding in resolved.findings if finding.code == "PQ304"]
    assert note.level == "note"
    assert "'mtp.*.moe'" in note.message
    assert all(name.startswith("model.layers.2.mlp.") for name in note.layers)


@pytest.mark.parametrize(
    "layers",
    [
        {"decoder.*.moe": "fp8", "mtp.*.moe": "fp8"},
        {"{decoder,mtp}.*.moe": "fp8"},
        {"*.moe": "fp8"},
        {"*.mlp": "fp8"},
        # The dense block has no fellow among prediction layers.
        {"decoder.*.mlp": "fp8"},
    ],
)
def test_no_note_where_prediction_layers_are_not_forgotten(layers: dict[str, str]) -> None:
    assert findings(plan(deepseek(), layers), "PQ304") == []


def test_no_note_where_the_same_rule_reached_them_and_a_later_one_overruled_it_there() -> None:
    rules = [
        {"match": ["decoder.*.moe", "mtp.*.moe"], "method": "fp8"},
        {"match": "mtp", "method": "none"},
    ]
    assert findings(plan(deepseek(), rules), "PQ304") == []


# --- the ends of ranges ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "pattern", "expected"),
    [
        # A negative end counts from the end of its container, prediction layers not counted;
        ("DeepSeek-V3", "model.layers.{-1}.self_attn.o_proj", {60}),
        ("DeepSeek-V3", "model.layers.{59..-1}.self_attn.o_proj", {59, 60}),
        # a non-negative end reaches those.
        ("DeepSeek-V3", "model.layers.{59..61}.self_attn.o_proj", {59, 60, 61}),
        ("DeepSeek-V3", "decoder.{-2..-1}.attention.o_proj", {59, 60}),
        ("DeepSeek-V3", "mtp.{0..-1}.attention.o_proj", {61}),
        # Ranges are clipped to the container.
        ("Meta-Llama-3-8B", "model.layers.{30..99}.self_attn.o_proj", {30, 31}),
        ("Meta-Llama-3-8B", "model.layers.{-99..1}.self_attn.o_proj", {0, 1}),
    ],
)
def test_ranges_of_blocks(model: str, pattern: str, expected: set[int]) -> None:
    assert {int(name.split(".")[2]) for name in reach(inventory(model), pattern)} == expected


def test_each_tower_has_its_own_end() -> None:
    resolved = plan(qwen2_5_vl(), {"*.{-1}.mlp": "fp8"})
    assert quantized(resolved) == each("#.mlp.#_proj", ("model.layers.1", "visual.blocks.2"), ("gate", "up", "down"))


def test_each_block_has_its_own_experts_to_count() -> None:
    uneven = Inventory.from_tensors(
        [
            (f"model.layers.{block}.mlp.experts.{expert}.{name}_proj.weight", (64, 64), "BF16")
            for block, experts in ((0, 2), (1, 4))
            for expert in range(experts)
            for name in ("gate", "up", "down")
        ],
        config={"model_type": "qwen3_moe"},
    )
    last = {name.rpartition(".")[0] for name in reach(uneven, "*.experts.{-1}")}
    assert last == {"model.layers.0.mlp.experts.1", "model.layers.1.mlp.experts.3"}


def test_a_range_that_becomes_empty_reaches_nothing_there() -> None:
    assert reach(qwen2_5_vl(), "*.{2..-1}.mlp.down_proj") == {"visual.blocks.2.mlp.down_proj"}


# --- both sources ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["Qwen2.5-VL-7B-Instruct", "gemma-3-4b-it", "vit-base-patch16-224", "gpt2"])
@pytest.mark.parametrize("layers", [{"vision": "int8"}, {"*.o_proj": "fp8"}, {"*.mlp": "fp8_weight_only"}])
def test_checkpoint_and_module_names_give_the_same_plan(model: str, layers: dict[str, str]) -> None:
    rules = [{"match": pattern, "method": method, "optional": True} for pattern, method in layers.items()]
    stored, tree = (plan(source, rules) for source in (inventory(model), module_inventory(model)))
    compared = 0
    for layer in tree.layers():
        if layer.name in stored:
            assert layer.method == stored[layer.name].method, layer.name
            compared += 1
    assert compared >= 100
