"""Tied layers are one storage: each name is resolved by itself, and one decision holds."""

from __future__ import annotations

import pytest

from policyquant import Inventory
from tests.plan.models import HIDDEN, INNER, VOCABULARY, codes, findings, llama, plan, t5, tied_llama

HEAD, EMBEDDING = "lm_head", "model.embed_tokens"
TABLE = 2 * VOCABULARY * HIDDEN
"""Bytes of the shared weight."""


@pytest.mark.parametrize(
    ("layers", "method"),
    [
        # If just one was decided by a rule that names it, that decision holds for the storage.
        ({"lm_head": "int8_weight_only"}, "int8_weight_only"),
        ({"*.embed_tokens": "int8_weight_only"}, "int8_weight_only"),
        ({"embedding": "fp8_weight_only", "*": "none", "lm_head": "int4_weight_only"}, "int4_weight_only"),
        ([{"kind": "head", "method": "int8_weight_only"}], "int8_weight_only"),
        # Also if it is `none`.
        ({"lm_head": "none"}, "none"),
        # If several were and they agree, so much the better.
        ({"lm_head": "int8_weight_only", "*.embed_tokens": "int8_weight_only"}, "int8_weight_only"),
        ([{"kind": ["head", "embedding"], "method": "int8_weight_only"}], "int8_weight_only"),
        # A broad `none` decides only where no name does.
        ({"lm_head": "int8_weight_only", "model": "none"}, "int8_weight_only"),
        ({"*.embed_tokens": "int8_weight_only", "lm_head": "int8_weight_only", "*": "none"}, "none"),
        ({"*": "none"}, "none"),
        ({"*": "fp8_weight_only"}, "none"),
    ],
)
def test_one_decision_holds_for_the_storage(layers: object, method: str) -> None:
    resolved = plan(tied_llama(), layers)
    assert [resolved[name].method for name in (HEAD, EMBEDDING)] == [method] * 2
    assert codes(resolved, "error") == []


@pytest.mark.parametrize("protect", [[], ["router"]])
def test_a_broad_none_wins_over_another_broad_decision(protect: list[str]) -> None:
    resolved = plan(tied_llama(), {"*": "fp8_weight_only", "model": "none"}, protect=protect)
    assert [resolved[name].method for name in (HEAD, EMBEDDING)] == ["none"] * 2
    resolved = plan(tied_llama(), {"*": "fp8_weight_only"}, protect=protect)
    assert [resolved[name].method for name in (HEAD, EMBEDDING)] == ["fp8_weight_only"] * 2


def test_a_tied_name_says_that_the_tie_decided_it() -> None:
    resolved = plan(tied_llama(), {"*": "none", "lm_head": "int8_weight_only"})
    assert resolved[HEAD].decided_by == "rule"
    decided = resolved[EMBEDDING]
    assert decided.decided_by == "tie"
    assert decided.rule is not None
    assert decided.rule.pattern == "lm_head"
    assert [rule.pattern for rule in decided.beaten] == ["*"]


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ({"lm_head": "none", "*.embed_tokens": "int8_weight_only"}, True),
        ({"lm_head": "int8_weight_only", "*.embed_tokens": "none"}, True),
        ({"lm_head": "int8_weight_only", "*.embed_tokens": "int4_weight_only"}, True),
        (
            {
                "lm_head": "int8_weight_only",
                "embedding": {"method": "int8_weight_only", "weight": {"granularity": "tensor"}},
            },
            True,
        ),
        ({"lm_head": "int8_weight_only", "*.embed_tokens": "int8_weight_only"}, False),
        ({"lm_head": "int8_weight_only", "*.e*": "int8_weight_only"}, False),
    ],
)
def test_two_names_decided_differently_by_name_are_an_error(layers: dict[str, object], error: bool) -> None:
    resolved = plan(tied_llama(), layers)
    assert codes(resolved, "error") == (["PQ108"] if error else [])
    for message in findings(resolved, "PQ108"):
        assert all(text in message for text in (HEAD, EMBEDDING, *layers, "`untie: true`"))


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ({"lm_head": "fp8"}, True),
        ({"lm_head": "fp8_weight_only"}, False),
        ({"*.embed_tokens": "int4_weight_only"}, False),
        ([{"kind": "head", "method": "nvfp4"}], True),
    ],
)
def test_a_method_must_take_every_kind_tied_there(layers: object, error: bool) -> None:
    resolved = plan(tied_llama(), layers)
    assert codes(resolved, "error") == (["PQ109"] if error else [])
    assert all("`untie: true`" in message for message in findings(resolved, "PQ109"))


@pytest.mark.parametrize(
    "layers",
    [{"lm_head": "none", "*.embed_tokens": "int8_weight_only"}, {"lm_head": "fp8"}, {"lm_head": "int8_weight_only"}],
)
def test_untied_each_name_keeps_its_own_decision(layers: dict[str, str]) -> None:
    resolved = plan(tied_llama(), layers, untie=True)
    assert codes(resolved, "error") == []
    assert resolved[HEAD].method == layers["lm_head"]
    assert resolved[EMBEDDING].method == layers.get("*.embed_tokens", "none")


@pytest.mark.parametrize(
    ("layers", "untie", "table"),
    [
        ({"lm_head": "none"}, False, TABLE),
        ({"lm_head": "none"}, True, 2 * TABLE),
        ({"lm_head": "int8_weight_only"}, False, TABLE // 2 + 4 * VOCABULARY),
        ({"lm_head": "int8_weight_only"}, True, TABLE + TABLE // 2 + 4 * VOCABULARY),
        ({"*.embed_tokens": "int8_weight_only"}, True, TABLE + TABLE // 2 + 4 * VOCABULARY),
        ([{"kind": ["head", "embedding"], "method": "int8_weight_only"}], False, TABLE // 2 + 4 * VOCABULARY),
        ([{"kind": ["head", "embedding"], "method": "int8_weight_only"}], True, TABLE + 8 * VOCABULARY),
    ],
)
def test_one_storage_counts_once_and_two_count_twice(layers: object, untie: bool, table: int) -> None:
    resolved = plan(tied_llama(), layers, untie=untie)
    norms = 3 * 2 * HIDDEN
    linears = 2 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
    assert resolved.total.bytes_before == TABLE + norms + linears
    assert resolved.total.bytes_after == table + norms + linears
    assert resolved.total.parameters == (TABLE + norms + linears) // 2


def test_what_a_tied_name_emits_is_its_own_affair() -> None:
    resolved = plan(tied_llama(), {"*.embed_tokens": "int8_weight_only", "lm_head": {"output": "fp32"}})
    assert (resolved[HEAD].output, resolved[EMBEDDING].output) == ("float32", None)
    assert [rule.pattern for rule in resolved[HEAD].refined_by] == ["lm_head"]
    # Its rule has done something, and nobody says that it was overruled.
    assert codes(resolved, "error", "warning") == []


@pytest.mark.parametrize(
    ("layers", "method"),
    [
        ({"shared": "int8_weight_only"}, "int8_weight_only"),
        ({"lm_head": "int8_weight_only"}, "int8_weight_only"),
        ({"encoder.embed_tokens": "int8_weight_only"}, "int8_weight_only"),
        ({"*.embed_tokens": "int8_weight_only"}, "int8_weight_only"),
    ],
)
def test_three_names_of_one_storage(layers: object, method: str) -> None:
    resolved = plan(t5(), layers)
    names = ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head")
    assert {resolved[name].method for name in names} == {method}
    assert codes(resolved, "error") == []


def test_a_none_that_a_rule_gave_is_shown_as_what_decided_rather_than_the_default() -> None:
    resolved = plan(t5(), {"decoder.*": "fp8_weight_only", "encoder": "none"}, default="none", protect=[])
    decided = resolved["decoder.embed_tokens"]
    assert (decided.method, decided.decided_by) == ("none", "tie")
    assert decided.rule is not None
    assert decided.rule.pattern == "encoder"


@pytest.mark.parametrize("model", [llama()])
def test_layers_that_only_look_alike_are_not_tied(model: Inventory) -> None:
    resolved = plan(model, {"lm_head": "none", "*.embed_tokens": "int8_weight_only"})
    assert codes(resolved, "error") == []
    assert resolved[EMBEDDING].method == "int8_weight_only"


@pytest.mark.parametrize(
    ("layers", "protect", "code"),
    [
        # Two broad decisions that differ are two decisions.
        ({"*": "int8_weight_only", "model": "fp8_weight_only"}, [], "PQ108"),
        # A broad `none` wins; so does protection, for what it keeps would be quantized with the rest.
        ({"*": "int8_weight_only", "model": "none"}, [], None),
        ({"*": "fp8"}, ["embedding"], None),
        # A name that nothing decides is no `none`: the method must take it.
        ({"*": "fp8"}, [], "PQ109"),
        ({"*": "fp8_weight_only"}, [], None),
    ],
)
def test_broad_decisions_about_one_storage(layers: dict[str, str], protect: list[str], code: str | None) -> None:
    assert codes(plan(tied_llama(), layers, protect=protect), "error") == ([code] if code else [])


@pytest.mark.parametrize(
    ("layers", "code"),
    [
        ({"first": "fp8", "second": "none"}, "PQ108"),
        ({"first": "none", "second": "int8_weight_only"}, "PQ108"),
        # Of two decisions one is named, and holds.
        ({"*": "none", "second": "fp8"}, None),
        ({"first": "fp8", "second": "fp8"}, None),
    ],
)
def test_rules_that_name_linears_which_share_a_weight_must_agree(layers: dict[str, str], code: str | None) -> None:
    model = Inventory.from_tensors([(f"{name}.weight", (64, 64), "BF16") for name in ("first", "second")])
    linears = model.with_classes({"first": "Linear", "second": "Linear"})
    shared = linears.with_shared({"second.weight": "first.weight"})
    resolved = plan(shared, layers)
    assert codes(resolved, "error") == ([code] if code else [])
    if code is None:
        assert [resolved[name].method for name in ("first", "second")] == ["fp8"] * 2


def test_a_tie_to_what_nothing_decided_says_so() -> None:
    resolved = plan(tied_llama(), {"*": "fp8"}, protect=["embedding"], expect={"layers": {"lm_head": "fp8"}})
    (error,) = findings(resolved, "PQ111")
    assert "shares its storage with a layer that is left as it is" in error


def test_layers_stored_apart_count_their_own_parameters() -> None:
    resolved = plan(tied_llama(), {"*": "none"}, untie=True)
    total = resolved.total
    assert total.bytes_before is not None
    assert total.bytes_after is not None
    assert total.bytes_after > total.bytes_before
    assert total.bits_after == total.bits_before
