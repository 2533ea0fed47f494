"""`policyquant run`: a model is built as a policy decides, continues a prompt, and is measured."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from policyquant import Inventory, build, extras, load_policy, resolve
from policyquant.models.decoder import DecoderForCausalLM
from policyquant.models.families import model_factory
from policyquant.models.generation import generate
from tests.cli.command import Run, command, process
from tests.cli.run_models import (
    CONFIG,
    END,
    NO_SUCH_SPECIAL_TOKEN,
    USER,
    byte_tokenizer,
    save_model,
    write_json,
)

PROMPT = "Löwe and lamb"
TOKENS = byte_tokenizer()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that no test changes."""
    return save_model(tmp_path_factory.mktemp("run") / "tiny")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model to be damaged."""
    return save_model(tmp_path / "tiny")


def expected(directory: Path, policy: Any, prompt: str = PROMPT, count: int = 12, **sampling: Any) -> list[int]:
    """The tokens that the library gives."""
    model = build(model_factory(CONFIG), policy=policy, source=directory)
    assert isinstance(model, DecoderForCausalLM)
    return list(generate(model, TOKENS.encode(prompt).ids, max_new_tokens=count, **sampling))


def report(run: Run, directory: Path, *words: object, prompt: str = PROMPT) -> Any:
    """What `--json` prints."""
    status, out, err = run("run", directory, "--prompt", prompt, "--max-new-tokens", 12, "--json", "--quiet", *words)
    assert (status, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("policy", [None, "fp8-dynamic", "int8-weight-only"])
def test_the_tokens_are_those_of_generate_and_the_memory_is_the_plans(
    run: Run, saved: Path, policy: str | None
) -> None:
    found = report(run, saved, *(["--policy", policy] if policy else []))
    assert found["token_ids"] == expected(saved, policy)
    assert found["text"] == TOKENS.decode(found["token_ids"])
    assert found["prompt_token_ids"] == TOKENS.encode(PROMPT).ids
    assert (found["policy"], found["ended"]) == (policy, "max new tokens")
    plan = resolve(load_policy(policy or {"version": 1}), Inventory.open(saved))
    assert found["bytes"]["built"] == found["bytes"]["planned"] == plan.total.bytes_after
    assert found["bytes"]["stored"] == plan.total.bytes_before


def test_a_plan_does_as_a_policy_does(run: Run, saved: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", saved, "--policy", "fp8-dynamic", "-o", plan).status == 0
    of_plan, of_policy = report(run, saved, "--policy", plan), report(run, saved, "--policy", "fp8-dynamic")
    assert of_plan["token_ids"] == of_policy["token_ids"]
    assert of_plan["bytes"]["built"] == of_policy["bytes"]["built"] < of_plan["bytes"]["stored"]


def test_a_model_with_a_policy_of_its_own_runs_under_it(run: Run, own: Path) -> None:
    declared = {"quant_method": "policyquant", "version": 1, "layers": [{"match": "decoder.*.mlp", "method": "fp8"}]}
    write_json(own / "config.json", {**CONFIG, "quantization_config": declared})
    found = report(run, own)
    assert found["policy"] == str(own / "config.json")
    assert found["bytes"]["built"] == found["bytes"]["planned"] < found["bytes"]["stored"]


def test_an_fp8_cache_takes_half_the_bytes(run: Run, saved: Path) -> None:
    plain, fp8 = (report(run, saved, "--policy", policy)["bytes"]["kv_cache"] for policy in ("fp8-dynamic", "fp8-kv"))
    scales = 4 * CONFIG["num_hidden_layers"]
    assert fp8 - scales == plain / 2


def test_people_see_the_layers_the_text_and_what_it_took(run: Run, saved: Path) -> None:
    status, out, err = run("run", saved, "--policy", "fp8-dynamic", "--prompt", PROMPT, "--max-new-tokens", 3)
    assert (status, err) == (0, "")
    assert out.startswith("tiny under fp8-dynamic\n\nname ")
    assert "fp8 per channel" in out
    assert "layers with nothing set" in out
    assert "KiB as stored -> " in out
    assert "planned" not in out
    assert f"prompt    {len(PROMPT.encode())} tokens, " in out
    assert "written   3 tokens, " in out
    assert out.endswith(" tokens/s, then stopped by --max-new-tokens\n")


def test_without_a_policy_there_is_no_table(run: Run, saved: Path) -> None:
    out = run("run", saved, "--prompt", PROMPT, "--max-new-tokens", 3).out
    assert out.startswith("tiny, nothing quantized\n\n")
    assert "method" not in out


def test_another_dtype_is_no_dtype_of_the_plan_and_is_told(run: Run, saved: Path) -> None:
    found = report(run, saved, "--dtype", "fp32")["bytes"]
    assert found["built"] == 2 * found["planned"]
    assert "(planned: " in run("run", saved, "--prompt", PROMPT, "--dtype", "fp32").out


# Choosing tokens, and where a text ends


def test_a_seed_repeats_a_run_and_another_one_does_not(run: Run, saved: Path) -> None:
    drawn = [report(run, saved, "--temperature", 1, "--seed", seed)["token_ids"] for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] == expected(saved, None, temperature=1.0, seed=7)


def test_without_a_seed_runs_differ_and_say_how_to_repeat_them(run: Run, saved: Path) -> None:
    first, second = (report(run, saved, "--temperature", 1) for _ in range(2))
    assert first["token_ids"] != second["token_ids"]
    again = report(run, saved, "--temperature", 1, "--seed", first["sampling"]["seed"])
    assert again["token_ids"] == first["token_ids"]


def test_top_k_draws_from_the_likeliest(run: Run, saved: Path) -> None:
    found = report(run, saved, "--temperature", 1, "--seed", 7, "--top-k", 3)
    assert found["token_ids"] == expected(saved, None, temperature=1.0, seed=7, top_k=3)


@pytest.mark.parametrize("listed", [False, True])
def test_a_text_ends_where_the_generations_config_says(run: Run, own: Path, listed: bool) -> None:
    tokens = expected(own, None)
    end = tokens[3]
    write_json(own / "generation_config.json", {"eos_token_id": [999, end] if listed else end})
    write_json(own / "config.json", {**CONFIG, "eos_token_id": 5})
    found = report(run, own)
    assert found["token_ids"] == tokens[: tokens.index(end) + 1]
    assert found["ended"] == "end token"


def test_else_it_ends_where_the_models_config_says(run: Run, own: Path) -> None:
    tokens = expected(own, None)
    write_json(own / "config.json", {**CONFIG, "eos_token_id": tokens[3]})
    assert report(run, own)["token_ids"] == tokens[: tokens.index(tokens[3]) + 1]


def test_a_text_ends_with_the_models_positions(run: Run, own: Path) -> None:
    prompt = "x" * (CONFIG["max_position_embeddings"] - 4)
    found = report(run, own, prompt=prompt)
    assert len(found["token_ids"]) == 5, "the last token is never read, and takes no position"
    assert found["ended"] == "max positions"


# Chat templates


@pytest.mark.parametrize("place", ["tokenizer_config.json", "named in tokenizer_config.json", "chat_template.jinja"])
def test_chat_puts_the_prompt_into_the_template(run: Run, own: Path, place: str) -> None:
    template = json.loads((own / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    if place == "chat_template.jinja":
        (own / place).write_text(template, encoding="utf-8")
        template = "not this one"
    elif place.startswith("named"):
        template = [{"name": "tool_use", "template": "not this one"}, {"name": "default", "template": template}]
    write_json(own / "tokenizer_config.json", {"eos_token": END, "chat_template": template})
    found = report(run, own, "--chat")
    assert found["prompt"] == f"{USER}{PROMPT}{END}{USER}"
    ids = found["prompt_token_ids"]
    assert (ids[0], ids[-1]) == (TOKENS.token_to_id(USER), TOKENS.token_to_id(USER))
    assert ids[1:-2] == TOKENS.encode(PROMPT).ids


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__'"),
        ("{{ messages.append(1) }}", "access to attribute 'append'"),
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ 'a' * 10 ** 9 }}", "the operator ** is not available"),
        ("{{ 'a' * 1000000000 }}", "a repetition is too long"),
        ("{{ '%999999999d' % 1 }}", "the operator % is not available"),
        ("{% for i in range(2000) %}{{ 'a' * 1000 }}{% endfor %}", "more than 1,000,000 characters"),
        ("{% for x in y %}", "Unexpected end of template"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_a_template_is_run_in_a_sandbox(run: Run, own: Path, template: str, said: str) -> None:
    (own / "chat_template.jinja").write_text(template, encoding="utf-8")
    status, out, err = run("run", own, "--prompt", PROMPT, "--chat")
    assert (status, out) == (2, "")
    assert err.startswith(f"error: {own}/chat_template.jinja: the chat template ")
    assert said in err
    assert err.count("\n") == 1


# What is refused


def without(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).unlink()


def holding(name: str, text: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_text(text, encoding="utf-8")


def configured(**changes: Any) -> Callable[[Path], object]:
    return lambda directory: write_json(directory / "config.json", {**CONFIG, **changes})


def word_level(directory: Path) -> None:
    """A tokenizer that knows the word `a` alone, under a number that the model does not have."""
    write_json(
        directory / "tokenizer.json",
        {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 300}, "unk_token": "a"}},
    )


@pytest.mark.parametrize(
    ("damage", "words", "said"),
    [
        (without("tokenizer.json"), (), "tiny: no tokenizer.json; a model is run from a directory with"),
        (without("config.json"), (), "tiny: no config.json"),
        (without("model.safetensors"), (), "tiny: no .safetensors file"),
        (holding("tokenizer.json", "{}"), (), "tokenizer.json: no tokenizer that can be read: "),
        (holding("tokenizer.json", ""), (), "tokenizer.json: no tokenizer that can be read: "),
        (word_level, ("--prompt", "a"), "tokenizer.json: the prompt has the token 300 ('a'); by config.json the model"),
        (holding("config.json", "["), (), "config.json:1:2: not JSON"),
        (holding("tokenizer_config.json", "[]"), (), "tokenizer_config.json: expected a JSON object"),
        (holding("generation_config.json", '{"eos_token_id": "x"}'), (), "eos_token_id is to be a whole number"),
        (without("tokenizer_config.json"), ("--chat",), "tiny: no chat template is there"),
        (configured(model_type="gpt2"), (), "expected one of llama, mistral, mixtral, qwen2, qwen3, qwen3_moe"),
        (configured(num_hidden_layers=10**9), (), "num_hidden_layers is 1000000000"),
        (configured(intermediate_size=64), (), "does not fit tiny"),
        (None, ("--prompt", ""), "the prompt has no tokens"),
        (None, ("--prompt", "x" * 65), "the prompt has 65 tokens; the model reads at most 64"),
        (None, ("--prompt", "\udcff"), "the prompt is not UTF-8"),
        (None, ("--policy", "fp8-dynamc"), "did you mean 'fp8-dynamic'?"),
        (None, ("--temperature", "-1"), "--temperature: expected a number of at least 0, found '-1'"),
        (None, ("--temperature", "nan"), "expected a number of at least 0"),
        (None, ("--max-new-tokens", "0"), "expected a whole number of at least 1"),
        (None, ("--top-k", "1.5"), "expected a whole number of at least 1"),
        (None, ("--top-k", "3"), "--top-k needs a --temperature above 0"),
        (None, ("--seed", "-1"), "expected a whole number from 0"),
        (None, ("--dtype", "fp8"), "invalid choice: 'fp8'"),
    ],
)
def test_what_cannot_be_run_is_a_message(
    run: Run, own: Path, damage: Callable[[Path], object] | None, words: tuple[str, ...], said: str
) -> None:
    if damage is not None:
        damage(own)
    status, _, err = run("run", own, "--prompt", PROMPT, *words)
    assert status == 2
    assert err.startswith("error: ")
    assert said in err


def test_a_policy_that_does_not_fit_stops_before_anything_is_built(run: Run, saved: Path, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text('layers: {"*.self_atn": fp8}', encoding="utf-8")
    status, out, err = run("run", saved, "--prompt", PROMPT, "--policy", policy)
    assert (status, out) == (1, "")
    assert "did you mean '*.self_attn'?" in err
    assert err.endswith("error: 1 error in the plan; no model is built\n")


def test_a_method_that_does_not_run_is_one_line_with_the_rule_before_anything_else(run: Run, saved: Path) -> None:
    status, out, err = run("run", saved, "--prompt", PROMPT, "--policy", "int8-dynamic", "--quiet")
    assert (status, out) == (2, "")
    assert err.startswith("error: int8-dynamic cannot be built for tiny: 1 problem\n  method 'int8' can be planned")
    assert err.endswith("the plan gives it to 14 layers by 'kind: linear, moe' (int8-dynamic:8:5)\n")


def test_a_cause_that_all_blocks_share_is_one_line(run: Run, saved: Path) -> None:
    status, _, err = run("run", saved, "--prompt", PROMPT, "--policy", "fp8-static", "--quiet")
    assert status == 2
    assert ": 1 problem\n  model.layers.{0..1}.self_attn.qkv_proj, q_proj, k_proj, v_proj; model.layers." in err
    assert err.count("no input_scale is stored") == 1


def test_a_plan_of_another_model_is_refused(run: Run, saved: Path, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", num_hidden_layers=3)
    plan = tmp_path / "plan.json"
    assert run("plan", other, "--policy", "fp8-dynamic", "-o", plan).status == 0
    status, _, err = run("run", saved, "--prompt", PROMPT, "--policy", plan)
    assert status == 2
    assert "the plan is for other and does not fit tiny" in err


def test_a_config_of_too_many_blocks_is_refused_with_a_plan_too(run: Run, own: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    assert run("plan", own, "--policy", "fp8-dynamic", "-o", plan).status == 0
    write_json(own / "config.json", {**CONFIG, "num_hidden_layers": 10**9})
    status, out, err = run("run", own, "--prompt", PROMPT, "--policy", plan)
    assert (status, out) == (2, "")
    assert "num_hidden_layers is 1000000000, more than the checkpoint has layers" in err


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("no-such-model", "no-such-model: no such file or directory"),
        ("hf://org/name", "`hf download org/name`"),
        ("FILE", "model.safetensors: a model is run from a directory with config.json, safetensors and tokenizer.json"),
        ("a\0b", "null character"),
    ],
)
def test_what_is_no_directory_of_a_model_is_told(run: Run, saved: Path, model: str, said: str) -> None:
    status, out, err = run("run", saved / "model.safetensors" if model == "FILE" else model, "--prompt", PROMPT)
    assert (status, out) == (2, "")
    assert said in err


def test_packages_that_are_missing_are_named_with_the_extra_that_installs_them(
    run: Run, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in ("jinja2", "tokenizers") else name)
    status, out, err = run("run", saved, "--prompt", PROMPT, "--chat")
    assert (status, out) == (2, "")
    assert err == (
        "error: running a model needs tokenizers and jinja2, which are not installed: pip install 'policyquant[run]'\n"
    )
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "jinja2" else name)
    assert run("run", saved, "--prompt", PROMPT, "--max-new-tokens", 1).status == 0, "only --chat needs it"


# Whole processes


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_while_it_writes_is_silent(own: Path) -> None:
    import signal
    import subprocess

    write_json(own / "config.json", {**CONFIG, "max_position_embeddings": 10**6})
    words = command("run", own, "--prompt", PROMPT, "--max-new-tokens", 100_000)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(1)
        running.send_signal(signal.SIGINT)
        running.stdout.read()
        assert running.stderr.read() == b""
    assert running.returncode == 130


def test_a_process_prints_the_text_and_nothing_to_standard_error(saved: Path) -> None:
    finished = process("run", saved, "--prompt", PROMPT, "--max-new-tokens", 12, "--json")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert json.loads(finished.stdout)["token_ids"] == expected(saved, None)


def test_a_tokenizer_on_which_the_library_panics_is_one_line(own: Path) -> None:
    write_json(
        own / "tokenizer.json",
        {**json.loads(TOKENS.to_str()), "post_processor": NO_SUCH_SPECIAL_TOKEN},
    )
    finished = process("run", own, "--prompt", PROMPT)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr.startswith(f"error: {own}/tokenizer.json: the prompt cannot be turned into tokens: ")
    assert finished.stderr.count("\n") == 1


def test_operators_that_ran_are_told_with_their_implementation_and_how_often(run: Run, saved: Path) -> None:
    words = ["run", saved, "--policy", "fp8-dynamic", "--prompt", PROMPT, "--max-new-tokens", 3]
    out = run(*words, "--kernels").out
    assert re.search(r"^scaled_mm +torch +24$", out, re.MULTILINE)
    found = {each["operator"]: each for each in json.loads(run(*words, "--json", "--quiet").out)["kernels"]}
    # Three times two blocks with four products each: what reads the prompt, and two tokens more.
    assert found["scaled_mm"] == {"operator": "scaled_mm", "implementation": "torch", "launches": 3 * 2 * 4}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_an_error_before_a_weight_is_read(run: Run, saved: Path) -> None:
    status, out, err = run("run", saved, "--prompt", PROMPT, "--device", "cuda")
    assert (status, out) == (2, "")
    assert err.startswith("error: --device cuda: ")
    assert "--device cpu runs anywhere" in err
