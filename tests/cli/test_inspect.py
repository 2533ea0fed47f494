"""`inspect`: the table, its totals, what can be left out of it, and its other forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import EXPERTS_FP8, MIXTRAL, Run, model


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_table_of_mixtral_with_fp8_experts(run: Run) -> None:
    status, out, err = run("inspect", MIXTRAL, "--policy", EXPERTS_FP8)
    assert (status, err) == (0, "")
    title = (
        "name                                                     layers  kind       shape       "
        "method  weight           input          rule           at"
    )
    protected = "none    bf16                            protected"
    rule = "fp8     fp8 per channel  fp8 per token  decoder.*.moe  mixtral-experts-fp8.yaml:10"
    left = "none    bf16                            *.qkv_proj     mixtral-experts-fp8.yaml:11"
    assert out.splitlines()[1:] == [
        "",
        title,
        "lm_head                                                       1  head       32000x4096  none    bf16",
        "model.embed_tokens                                            1  embedding  32000x4096  none    bf16",
        f"model.layers.{{0..31}}.block_sparse_moe.experts.{{0..7}}.w1     256  moe        14336x4096  {rule}",
        f"model.layers.{{0..31}}.block_sparse_moe.experts.{{0..7}}.w2     256  moe        4096x14336  {rule}",
        f"model.layers.{{0..31}}.block_sparse_moe.experts.{{0..7}}.w3     256  moe        14336x4096  {rule}",
        f"model.layers.{{0..31}}.block_sparse_moe.gate                   32  router     8x4096      {protected}",
        f"model.layers.{{0..31}}.self_attn.k_proj                        32  linear     1024x4096   {left}",
        "model.layers.{0..31}.self_attn.o_proj                        32  linear     4096x4096   none    bf16",
        f"model.layers.{{0..31}}.self_attn.q_proj                        32  linear     4096x4096   {left}",
        f"model.layers.{{0..31}}.self_attn.v_proj                        32  linear     1024x4096   {left}",
        "",
        "129 layers with nothing set: 65 norm, 32 activation, 32 attention (--verbose lists them)",
        "",
        "layers           1,059, 46.7B parameters",
        "by method        fp8 768 (96.6 % of parameters), none 291 (3.4 % of parameters)",
        "bytes            87.0 GiB -> 45.0 GiB (51.8 %)",
        "bits per weight  16.00 -> 8.28",
    ]


def test_every_layer_is_in_some_line(run: Run) -> None:
    shown = run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--verbose").out
    table = shown.split("\n\n")[1].splitlines()[1:]
    assert sum(int(line.split()[1]) for line in table) == 1059


def test_all_lists_each_layer(run: Run) -> None:
    shown = run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--all").out
    table = shown.split("\n\n")[1].splitlines()
    assert len(table) == 1 + 1059
    assert any(line.startswith("model.layers.31.block_sparse_moe.experts.7.w3 ") for line in table)
    assert "{" not in shown.split("\n\n")[1]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--filter", "decoder.*.moe.router"], ["model.layers.{0..31}.block_sparse_moe.gate"]),
        (["--filter", "model.layers.{0..3}.self_attn.o_proj"], ["model.layers.{0..3}.self_attn.o_proj"]),
        (["--kind", "head", "--kind", "embedding"], ["lm_head", "model.embed_tokens"]),
        (["--kind", "norm", "--filter", "final_norm"], ["model.norm"]),
        (
            ["--method", "fp8", "--filter", "*.experts.3"],
            [f"model.layers.{{0..31}}.block_sparse_moe.experts.3.{part}" for part in ("w1", "w2", "w3")],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_selection(run: Run, options: list[str], names: list[str]) -> None:
    shown = run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, *options).out
    assert [line.split()[0] for line in shown.split("\n\n")[1].splitlines()[1:]] == names
    assert "layers listed" in shown


def test_totals_are_those_of_the_selection(run: Run) -> None:
    shown = json.loads(run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--method", "fp8", "--json").out)
    assert shown["summary"]["layers"] == len(shown["layers"]) == 768
    assert shown["model"]["layers"] == 1059


def test_a_filter_that_reaches_nothing_says_what_was_meant(run: Run) -> None:
    status, out, err = run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--filter", "*.q_porj")
    assert (status, out) == (1, "")
    assert err == "error: '*.q_porj' reaches no layer; did you mean '*.q_proj'?\n"


def test_a_layer_kept_as_it_is_stored_shows_how(run: Run) -> None:
    shown = run("inspect", model("gpt-oss-120b"), "--policy", "fp8-kv", "--kind", "moe").out
    line = shown.split("\n\n")[1].splitlines()[1]
    assert "none    as stored: MXFP4, group 32" in line


def test_outputs_and_kv_caches_have_columns_where_there_are_any(run: Run, tmp_path: Path) -> None:
    policy = write(
        tmp_path / "policy.yaml",
        "version: 1\n"
        "layers:\n"
        '  "*.self_attn": {kv_cache: fp8}\n'
        '  "*.down_proj": fp8\n'
        '  "*.mlp.act_fn": {output: fp8}\n',
    )
    shown = run("inspect", model("Meta-Llama-3-8B"), "--policy", policy).out
    title, *lines = shown.split("\n\n")[1].splitlines()
    assert title.split()[-6:] == ["input", "output", "KV", "cache", "rule", "at"]
    by_name = {line.split()[0]: line for line in lines}
    attention = by_name["model.layers.{0..31}.self_attn"]
    assert attention[title.index("KV cache") :].startswith("fp8 per tensor static")
    assert by_name["model.layers.{0..31}.mlp.act_fn"][title.index("output") :].startswith("fp8 per token")
    assert "KV cache         quantized in 32 layers" in shown


def test_json_is_the_plan(run: Run) -> None:
    from policyquant import Inventory, load_policy, resolve

    shown = run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--json").out
    assert shown == resolve(load_policy(EXPERTS_FP8), Inventory.open(MIXTRAL)).to_json()


def test_markdown_is_a_table_that_keeps_patterns_as_they_are(run: Run) -> None:
    lines = run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--format", "markdown").out.splitlines()
    assert lines[2].startswith("| name | layers | kind |")
    assert lines[3].startswith("|---|---:|---|")
    assert "| `model.layers.{0..31}.self_attn.q_proj` | 32 | linear |" in "\n".join(lines)
    assert "| `*.qkv_proj` |" in "\n".join(lines)
    assert lines[-1] == "- bits per weight: 16.00 -> 8.28"


def test_a_plan_is_inspected_without_a_policy(run: Run, tmp_path: Path) -> None:
    plan = write(tmp_path / "plan.json", run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--json").out)
    assert run("inspect", plan) == run("inspect", MIXTRAL, "--policy", EXPERTS_FP8)
    assert run("inspect", plan, "--filter", "*.experts.0.w1", "--json") == run(
        "inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--filter", "*.experts.0.w1", "--json"
    )


def test_a_model_needs_a_policy(run: Run) -> None:
    status, out, err = run("inspect", MIXTRAL)
    assert (status, out) == (2, "")
    assert "needs --policy" in err


def test_errors_are_printed_in_full_and_give_status_1(run: Run, in_empty_directory: Path) -> None:
    write(in_empty_directory / "policy.yaml", 'version: 1\nlayers:\n  "*.q_projj": fp8\n  "*.o_proj": fp8\n')
    status, out, err = run("inspect", MIXTRAL, "--policy", "policy.yaml")
    assert status == 1
    assert "model.layers.{0..31}.self_attn.o_proj" in out
    assert err.startswith("error PQ101: policy.yaml:3:3: '*.q_projj' reaches no layer; did you mean '*.q_proj'?\n")


@pytest.mark.parametrize("place", ["before", "after"])
def test_strict_makes_warnings_count(run: Run, tmp_path: Path, place: str) -> None:
    policy = write(tmp_path / "policy.yaml", 'version: 1\nlayers:\n  "*.o_proj": fp8\n  "*": int8\n')
    plain = run("inspect", MIXTRAL, "--policy", policy)
    assert (plain.status, "warning PQ201" in plain.err) == (0, True)
    words = ("inspect", MIXTRAL, "--policy", policy)
    assert run(*(("--strict", *words) if place == "before" else (*words, "--strict"))).status == 1


def test_quiet_leaves_out_warnings_and_notes(run: Run, tmp_path: Path) -> None:
    policy = write(tmp_path / "policy.yaml", 'version: 1\nlayers:\n  "*.o_proj": fp8\n  "*": int8\n')
    assert run("inspect", MIXTRAL, "--policy", policy, "--quiet").err == ""


def test_verbose_lists_every_layer_of_a_note(run: Run) -> None:
    words = ("inspect", model("DeepSeek-V3"), "--policy", "int8-dynamic")
    assert len(run(*words).err.splitlines()) == 1
    assert "    model.layers.{0..2}.mlp.down_proj\n" in run(*words, "--verbose").err


def test_thousands_of_errors_are_counted_and_not_all_printed(run: Run, tmp_path: Path) -> None:
    rules = "".join(f'  "nowhere.{i}.q_proj": fp8\n' for i in range(3000))
    policy = write(tmp_path / "policy.yaml", f"version: 1\nlayers:\n{rules}")
    status, _, err = run("inspect", MIXTRAL, "--policy", policy)
    assert status == 1
    assert err.count("error PQ101") == 50
    assert "2950 more errors (--verbose prints all)" in err.replace(",", "")


def test_an_index_alone_has_no_shapes_and_says_so(run: Run, tmp_path: Path) -> None:
    names = ["lm_head.weight", *(f"model.layers.{i}.self_attn.{p}_proj.weight" for i in range(2) for p in "qkvo")]
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "model.safetensors")}
    source = write(tmp_path / "model.safetensors.index.json", json.dumps(index))
    status, out, _ = run("inspect", source, "--policy", "fp8-dynamic")
    assert status == 0
    assert out.splitlines()[-3:] == [
        "layers     11",
        "by method  fp8 8, none 3",
        "bytes      unknown: the source does not tell all shapes",
    ]


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_a_name_cannot_control_the_terminal(run: Run, tmp_path: Path, form: str) -> None:
    name = "model.\x1b[2J\u202eevil\nlm_head.weight"
    source = write(tmp_path / "model.json", json.dumps({"name": "m\x1b[31m", "tensors": {name: ["BF16", [8, 8]]}}))
    shown = run("inspect", source, "--policy", "fp8-dynamic", "--all", "--format", form)
    for text in (shown.out, shown.err):
        assert all(character == "\n" or character.isprintable() for character in text)
    assert "evil\\x0alm_head" in shown.out.replace("\\\\", "\\")


def test_a_selection_without_a_layer_is_an_error_as_a_pattern_without_one_is(run: Run) -> None:
    status, out, err = run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--kind", "conv", "--method", "int8")
    assert (status, out, err) == (1, "", "error: no layer of kind conv with method int8\n")


def test_a_scale_that_the_policy_gives_is_shown(run: Run, in_empty_directory: Path) -> None:
    text = 'layers:\n  "*.self_attn": {kv_cache: {dtype: fp8, scale: 0.02}}\n'
    write(in_empty_directory / "policy.yaml", text)
    out = run("inspect", MIXTRAL, "--policy", "policy.yaml").out
    assert ", scale 0.02" in out


def test_what_is_stored_is_spelled_as_a_policy_would(run: Run) -> None:
    out = run("inspect", model("DeepSeek-V3"), "--policy", "fp8-kv").out
    assert "as stored: fp8, block 128x128" in out
    assert "F8_E4M3" not in out
