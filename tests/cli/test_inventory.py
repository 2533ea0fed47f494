"""`inventory`: the layers of a model as policies see them, shown and saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import EXPERTS_FP8, MIXTRAL, Run, model


def test_the_table_of_gpt_oss(run: Run) -> None:
    status, out, err = run("inventory", model("gpt-oss-120b"))
    assert (status, err) == (0, "")
    title, table, totals = out.split("\n\n")
    assert title == "gpt-oss-120b (GptOssForCausalLM, family gpt_oss)"
    by_name = {line.split()[0]: " ".join(line.split()[1:]) for line in table.splitlines()}
    assert by_name["model.layers.{0..35}.mlp.experts"] == (
        "36 moe 128x5760x2880 U8 mxfp4 (MXFP4, group 32) decoder.{0..35}.moe.experts down_proj, gate_up_proj"
    )
    assert by_name["model.layers.{0..35}.self_attn.q_proj"] == (
        "36 linear 4096x2880 bf16 decoder.{0..35}.attention.q_proj decoder.N.attention.qkv_proj"
    )
    assert totals.splitlines() == [
        "327 layers: 1 head, 1 embedding, 73 norm, 36 moe, 36 router, 144 linear, 36 attention",
        "117B parameters, 60.8 GiB, 4.47 bits per weight",
    ]


def test_without_shapes_it_is_said_once_that_sizes_are_unknown(run: Run, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": "model.safetensors"}}))
    out = run("inventory", str(index)).out
    assert out.splitlines()[-2:] == ["1 layer: 1 norm", "sizes unknown: the source does not tell all shapes"]


def test_json_lists_each_layer_with_all_its_names(run: Run) -> None:
    shown = json.loads(run("inventory", MIXTRAL, "--json").out)
    assert shown["count"] == len(shown["layers"]) == 1059
    router = next(each for each in shown["layers"] if each["name"] == "model.layers.5.block_sparse_moe.gate")
    assert router["kind"] == "router"
    assert router["names"] == {
        "checkpoint": ["model.layers.5.block_sparse_moe.gate"],
        "module": ["model.layers.5.mlp.gate"],
        "canonical": ["decoder.5.moe.router"],
    }


@pytest.mark.parametrize("name", ["saved.json", "saved.json.gz"])
def test_a_saved_inventory_stands_for_the_model(run: Run, tmp_path: Path, name: str) -> None:
    saved = tmp_path / name
    status, out, err = run("inventory", MIXTRAL, "--save", saved)
    assert (status, out) == (0, "")
    assert err == f"{saved}: saved 1,059 layers of Mixtral-8x7B-v0.1\n"
    of_model, of_saved = (run("inspect", source, "--policy", EXPERTS_FP8) for source in (MIXTRAL, saved))
    assert of_saved == of_model
    assert run("inventory", MIXTRAL, "--save", saved, "--quiet").err == ""


def test_a_place_that_cannot_be_written_is_a_message(run: Run, tmp_path: Path) -> None:
    status, _, err = run("inventory", MIXTRAL, "--save", tmp_path / "nowhere" / "saved.json")
    assert status == 2
    assert "cannot be written" in err


def test_every_model_of_the_collection_has_a_table(run: Run) -> None:
    for source in sorted((Path(__file__).parents[1] / "data" / "models").iterdir()):
        shown = run("inventory", source)
        assert shown.status == 0, source.name
        assert " layers: " in shown.out
