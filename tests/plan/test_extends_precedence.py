"""What a policy extends comes before its own rules; the last of everything holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyquant import Inventory, Plan, load_policy, resolve
from tests.plan.models import codes, llama, mixtral, plan

DOWN = "model.layers.0.mlp.down_proj"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, text in {
        "int8.yaml": "layers: {'*.mlp': int8}",
        "fp8.yaml": "layers: {'*.mlp': fp8}",
        "none.yaml": "layers: {'*': none}",
        "default-int8.yaml": "default: int8",
        "default-fp8.yaml": "default: fp8",
        "int8-on-fp8.yaml": "extends: fp8.yaml\nlayers: {'*.down_proj': int8}",
        "lifted.yaml": "protect: [router]",
        "untied.yaml": "untie: true",
        "grouped.yaml": "groups: [['*.o_proj', '*.qkv_proj']]",
    }.items():
        (tmp_path / name).write_text(text + "\n")
    return tmp_path


def of(files: Path, text: str, model: Inventory | None = None) -> Plan:
    (files / "policy.yaml").write_text(text + "\n")
    return resolve(load_policy(files / "policy.yaml"), model or llama())


@pytest.mark.parametrize(
    ("policy", "method"),
    [
        # A preset's or a file's rules come before one's own,
        ("extends: fp8-dynamic", "fp8"),
        ("extends: fp8-dynamic\nlayers: {'*.mlp': int8}", "int8"),
        # in whatever order the keys stand.
        ("layers: {'*.mlp': int8}\nextends: fp8-dynamic", "int8"),
        ("extends: none.yaml\nlayers: {'*.mlp': int8}", "int8"),
        # They are read left to right,
        ("extends: [int8.yaml, fp8.yaml]", "fp8"),
        ("extends: [fp8.yaml, int8.yaml]", "int8"),
        ("extends: [none.yaml, fp8-dynamic]", "fp8"),
        # depth first,
        ("extends: [int8-on-fp8.yaml, none.yaml]", "none"),
        ("extends: [none.yaml, int8-on-fp8.yaml]", "int8"),
        # each file once, where it is met first.
        ("extends: [fp8.yaml, int8.yaml, fp8.yaml]", "int8"),
        ("extends: [fp8.yaml, none.yaml, int8-on-fp8.yaml]", "int8"),
        ("extends: [int8-on-fp8.yaml, fp8.yaml]", "int8"),
        # The last default holds; it comes before every rule all the same.
        ("extends: [default-int8.yaml, default-fp8.yaml]", "fp8"),
        ("extends: [default-fp8.yaml, default-int8.yaml]", "int8"),
        ("extends: default-fp8.yaml\ndefault: int8", "int8"),
        ("extends: [int8.yaml, default-fp8.yaml]", "int8"),
        ("default: int8\nextends: fp8-dynamic", "fp8"),
        # Without any it is none.
        ("extends: fp8-kv", "none"),
    ],
)
def test_the_order_of_rules(files: Path, policy: str, method: str) -> None:
    assert of(files, policy)[DOWN].method == method


@pytest.mark.parametrize(
    "preset",
    ["fp8-dynamic", "fp8-static", "fp8-block", "fp8-experts", "int8-dynamic", "int8-weight-only", "int4-g128", "mxfp8"],
)
def test_presets_decide_by_rules_and_set_no_default(preset: str) -> None:
    resolved = plan(mixtral(), extends=preset)
    assert {layer.decided_by for layer in resolved.layers()} <= {"rule", "nothing", "protection"}
    assert "rule" in {layer.decided_by for layer in resolved.layers()}
    assert codes(resolved, "error", "warning") == []
    # Nor do they touch what is protected.
    kept = [layer.method for layer in resolved.layers() if layer.kind in ("head", "embedding", "router")]
    assert set(kept) == {"none"}


def test_presets_go_together() -> None:
    resolved = plan(llama(), extends=["fp8-dynamic", "fp8-kv"])
    assert resolved[DOWN].method == "fp8"
    assert resolved["model.layers.0.self_attn"].kv_cache is not None


def test_the_place_of_an_extended_rule_is_in_its_own_file(files: Path) -> None:
    rule = of(files, "extends: [fp8-dynamic, int8.yaml]")[DOWN].rule
    assert rule is not None
    assert (Path(rule.file).name, rule.line, rule.column) == ("int8.yaml", 1, 10)
    (beaten,) = of(files, "extends: [fp8-dynamic, int8.yaml]")[DOWN].beaten
    assert beaten.file == "fp8-dynamic"


@pytest.mark.parametrize(
    ("policy", "method"),
    [
        ("extends: lifted.yaml\nlayers: {'*': fp8}", "fp8"),
        ("extends: lifted.yaml\nprotect: [head, embedding, router]\nlayers: {'*': fp8}", "none"),
        ("protect: [embedding, router]\nlayers: {'*': fp8}", "fp8"),
        ("layers: {'*': fp8}", "none"),
    ],
)
def test_the_last_protection_holds(files: Path, policy: str, method: str) -> None:
    assert of(files, policy)["lm_head"].method == method


def test_groups_of_extended_files_add_up(files: Path) -> None:
    assert codes(of(files, "extends: grouped.yaml\nlayers: {'*.o_proj': fp8}"), "error") == ["PQ105"]
    own = "extends: grouped.yaml\ngroups: [['*.up_proj', '*.down_proj']]\nlayers: {'*.o_proj': fp8, '*.down_proj': fp8}"
    assert codes(of(files, own), "error") == ["PQ105"] * 2
