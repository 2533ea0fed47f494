"""The demo's policy fits the demo's model, and has what the demo is to show."""

from __future__ import annotations

from policyquant import Inventory, load_policy, resolve
from tests.cli.command import ROOT, model

POLICY = ROOT / "demo/policy.yaml"


def test_the_policy_fits_the_model_without_errors_and_warnings() -> None:
    plan = resolve(load_policy(POLICY), Inventory.open(model("SmolLM2-135M")))
    assert plan.errors(strict=True) == []


def test_it_shows_several_methods_an_output_and_a_cache() -> None:
    plan = resolve(load_policy(POLICY), Inventory.open(model("SmolLM2-135M")))
    assert {row.scheme.method for row in plan.rows} == {"none", "fp8", "int8_weight_only"}
    assert any(row.scheme.output is not None for row in plan.rows)
    assert any(row.scheme.kv_cache is not None for row in plan.rows)
    assert {plan[f"model.layers.{block}.mlp.up_proj"].method for block in (0, 29)} == {"none"}
