"""Shapes that a scheme cannot take, found before any data is read."""

from __future__ import annotations

import pytest

from policyquant import Inventory
from tests.plan.models import codes, findings, inventory, llama, llama_without_shapes, mixtral, plan, qwen2_5_vl

RAGGED = llama(inner=400)
"""down_proj reads 400 values: a multiple of 16, but not of 32, 64 or 128."""


@pytest.mark.parametrize(
    ("method", "legal"),
    [
        # Groups along the input must be full, or the format has no place for the last one:
        ("int4_weight_only", False),
        ({"method": "int4_weight_only", "weight": {"group": 64}}, False),
        ({"method": "int4_weight_only", "weight": {"group": 32}}, False),
        ("mxfp8", False),
        ("mxfp4", False),
        ("nvfp4", True),
        # blocks and channels may be smaller at the end.
        ("fp8_block", True),
        ("fp8", True),
        ("fp8_weight_only", True),
        ("int8", True),
        ("int8_weight_only", True),
        ("none", True),
        ("dequantize", True),
    ],
)
def test_ragged_ends(method: object, legal: bool) -> None:
    resolved = plan(RAGGED, {"*.down_proj": method, "*.up_proj": "none"})
    assert codes(resolved, "error") == ([] if legal else ["PQ107"])


@pytest.mark.parametrize("inner", [16, 128, 256, 384, 512])
@pytest.mark.parametrize(("method", "group"), [("int4_weight_only", 128), ("mxfp4", 32), ("mxfp8", 32), ("nvfp4", 16)])
def test_the_input_dimension_must_be_a_multiple_of_the_group(inner: int, method: str, group: int) -> None:
    resolved = plan(llama(inner=inner), {"*.down_proj": method})
    assert ("PQ107" in codes(resolved, "error")) == (inner % group != 0)


def test_the_output_dimension_does_not_matter() -> None:
    assert codes(plan(RAGGED, {"*.gate_up_proj": "int4_weight_only"}), "error") == []


def test_every_layer_is_listed_with_its_shape_the_group_and_what_would_fit() -> None:
    model = llama(inner=96)
    (error,) = [f for f in plan(model, {"*.down_proj": "int4_weight_only"}).findings if f.code == "PQ107"]
    assert error.layers == ("model.layers.{0..1}.mlp.down_proj",)
    for text in ("multiple of 128", "256x96", "group 32", "'*.down_proj'"):
        assert text in error.message


def test_where_no_group_fits_another_method_is_suggested() -> None:
    (error,) = findings(plan(llama(inner=100), {"*.down_proj": "int4_weight_only"}), "PQ107")
    assert "no group" in error
    assert "int8_weight_only" in error


def test_a_later_rule_for_these_layers_mends_it() -> None:
    resolved = plan(RAGGED, {"*.mlp": "int4_weight_only", "*.down_proj": "int8_weight_only"})
    assert codes(resolved, "error") == []


def test_a_preset_is_judged_the_same_way() -> None:
    resolved = plan(qwen2_5_vl(vision_inner=100), extends="int4-g128")
    assert codes(resolved, "error") == ["PQ107"]


@pytest.mark.parametrize("model", [llama_without_shapes()])
def test_unknown_shapes_are_not_judged(model: Inventory) -> None:
    assert codes(plan(model, {"*.mlp": "int4_weight_only"}), "error") == []


def test_experts_in_one_tensor_are_judged_one_by_one() -> None:
    # gpt-oss: 128 experts of 2880x2880.
    model = inventory("gpt-oss-120b")
    assert codes(plan(model, {"*.experts": {"method": "int4_weight_only", "weight": {"group": 64}}}), "error") == []
    assert codes(plan(model, {"*.experts": "int4_weight_only"}), "error") == ["PQ107"] * 1


@pytest.mark.parametrize(("rows", "error"), [(768, False), (770, True)])
def test_a_weight_stored_in_out_is_judged_by_its_input(rows: int, error: bool) -> None:
    conv1d = Inventory.from_tensors(
        [
            ("h.0.attn.c_attn.weight", (rows, 3 * 768), "F32"),
            ("h.0.attn.c_proj.weight", (768, 768), "F32"),
            ("h.0.mlp.c_fc.weight", (768, 3072), "F32"),
            ("h.0.mlp.c_proj.weight", (3072, 768), "F32"),
        ],
        config={"model_type": "gpt2", "n_head": 12, "n_embd": 768},
    )
    assert ("PQ107" in codes(plan(conv1d, {"*.c_attn": "int4_weight_only"}), "error")) == error


def test_embeddings_are_grouped_along_what_a_lookup_gives() -> None:
    assert codes(plan(mixtral(), {"*.embed_tokens": "int4_weight_only"}), "error") == []
