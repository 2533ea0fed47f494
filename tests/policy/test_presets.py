"""The policies that come with the package."""

from __future__ import annotations

import pytest

from policyquant.errors import PolicyQuantError
from policyquant.policy.load import load_policy
from policyquant.policy.policy import PROTECTED
from policyquant.policy.presets import preset_comment, preset_names, preset_text

SAYS = {
    "fp8-block": ({"linear", "moe"}, "fp8_block"),
    "fp8-dynamic": ({"linear", "moe"}, "fp8"),
    "fp8-experts": ({"moe"}, "fp8"),
    "fp8-kv": ({"attention"}, None),
    "fp8-static": ({"linear", "moe"}, "fp8"),
    "int4-g128": ({"linear", "moe"}, "int4_weight_only"),
    "int8-dynamic": ({"linear", "moe"}, "int8"),
    "int8-weight-only": ({"linear", "moe"}, "int8_weight_only"),
    "mxfp4": ({"linear", "moe"}, "mxfp4"),
    "mxfp8": ({"linear", "moe"}, "mxfp8"),
    "nvfp4": ({"linear", "moe"}, "nvfp4"),
}


def test_the_presets_are_these() -> None:
    assert preset_names() == tuple(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_a_preset_decides_by_one_rule_for_kinds(name: str) -> None:
    kinds, method = SAYS[name]
    (rule,) = load_policy(name).rules
    assert rule.patterns == ()
    assert rule.kinds == frozenset(kinds)
    assert rule.fields.method == method
    assert rule.origin == "preset"


@pytest.mark.parametrize("name", SAYS)
def test_a_preset_sets_no_default_and_leaves_protection_alone(name: str) -> None:
    policy = load_policy(name)
    assert policy.default is None
    assert policy.protect_location is None
    assert policy.protect == PROTECTED
    assert not policy.untie


@pytest.mark.parametrize("name", SAYS)
def test_a_preset_names_no_protected_kind(name: str) -> None:
    (rule,) = load_policy(name).rules
    assert rule.kinds is not None
    assert not rule.kinds & PROTECTED


@pytest.mark.parametrize("name", SAYS)
def test_a_preset_s_comment_says_what_it_is_and_when_to_use_it(name: str) -> None:
    what, empty, use, *_ = preset_comment(name).splitlines()
    assert what.endswith(".")
    assert empty == ""
    assert use.startswith("Use it ")


def test_static_scales_are_one_for_each_layer() -> None:
    (rule,) = load_policy("fp8-static").rules
    assert rule.fields.input == {"scheme": "static", "granularity": "tensor"}


def test_groups_of_128() -> None:
    (rule,) = load_policy("int4-g128").rules
    assert rule.fields.weight == {"group": 128, "granularity": "group"}


def test_the_kv_preset_touches_nothing_but_the_cache() -> None:
    (rule,) = load_policy("fp8-kv").rules
    assert rule.fields.kv_cache == {"dtype": "float8_e4m3fn"}
    assert (rule.fields.weight, rule.fields.input, rule.fields.output) == (None, None, None)


def test_a_preset_is_read_from_its_own_text() -> None:
    policy = load_policy("fp8-dynamic")
    assert policy.source == "fp8-dynamic"
    assert policy.files == ("fp8-dynamic",)
    line = policy.rules[0].location.line
    assert line is not None
    assert "kind: [linear, moe]" in preset_text("fp8-dynamic").splitlines()[line - 1]


def test_an_unknown_preset() -> None:
    with pytest.raises(PolicyQuantError, match="no preset is named 'fp8-dynamc'; did you mean 'fp8-dynamic'"):
        preset_text("fp8-dynamc")
