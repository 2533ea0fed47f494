"""`match`: which layers a pattern reaches, and by which names."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import MIXTRAL, Run, model


@pytest.mark.parametrize(
    ("source", "pattern", "lines", "total"),
    [
        (
            MIXTRAL,
            "*.qkv_proj",
            [f"model.layers.{{0..31}}.self_attn.{part}_proj 32 linear" for part in "kqv"],
            "96 layers, by checkpoint names",
        ),
        (
            MIXTRAL,
            "model.layers.{0,-2..-1}.self_attn.o_proj",
            ["model.layers.{0,30..31}.self_attn.o_proj 3 linear"],
            "3 layers, by checkpoint names",
        ),
        (
            MIXTRAL,
            "decoder.*.moe.router",
            ["model.layers.{0..31}.block_sparse_moe.gate 32 router decoder.{0..31}.moe.router named"],
            "32 layers, by canonical names",
        ),
        (
            model("Phi-3-mini-4k-instruct"),
            "*.v_proj",
            ["model.layers.{0..31}.self_attn.qkv_proj 32 linear v_proj"],
            "32 layers, by checkpoint names",
        ),
        (
            model("gpt-oss-120b"),
            "decoder.0.moe",
            [
                "model.layers.0.mlp.experts 1 moe down_proj, gate_up_proj decoder.0.moe.experts",
                "model.layers.0.mlp.router 1 router decoder.0.moe.router covered, not named",
            ],
            "2 layers, by canonical names",
        ),
    ],
)
def test_what_a_pattern_reaches(run: Run, source: str, pattern: str, lines: list[str], total: str) -> None:
    status, out, _ = run("match", pattern, source)
    assert status == 0
    _title, *table, _empty, last = out.splitlines()
    assert [" ".join(line.split()) for line in table] == lines
    assert last == total


def test_json_lists_each_layer(run: Run) -> None:
    shown = json.loads(run("match", "decoder.{0..1}.moe.router", MIXTRAL, "--json").out)
    assert shown == {
        "pattern": "decoder.{0..1}.moe.router",
        "namespace": "canonical",
        "count": 2,
        "layers": [
            {"name": f"model.layers.{i}.block_sparse_moe.gate", "kind": "router", "parts": []} for i in range(2)
        ],
    }


def test_reaching_nothing_is_a_no_with_the_nearest_names(run: Run) -> None:
    status, out, err = run("match", "decoder.*.mow", MIXTRAL)
    assert (status, out) == (1, "")
    assert err == "error: 'decoder.*.mow' reaches no layer; did you mean 'decoder.*.moe'?\n"
    assert json.loads(run("match", "decoder.*.mow", MIXTRAL, "--json").out)["count"] == 0


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("*.{q,k", "at character 3"),
        ("model.[ab", "at character 7"),
        ("re:(?=x)", "at character"),
        ("", "pattern"),
    ],
)
def test_what_is_no_pattern_says_where(run: Run, pattern: str, message: str) -> None:
    status, out, err = run("match", pattern, MIXTRAL)
    assert (status, out) == (2, "")
    assert message in err


def test_layers_that_another_namespace_would_add_are_noted(run: Run) -> None:
    # The checkpoint's `head` is that of the prediction layer; the canonical one is the model's own, too.
    words = ("match", "*.head", model("DeepSeek-V3"))
    status, out, err = run(*words)
    assert status == 0
    assert "model.layers.61.shared_head.head" in out
    assert "note: canonical names would add lm_head;" in err
    assert run(*words, "--quiet").err == ""
