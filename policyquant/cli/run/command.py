"""`policyquant run`: build a model as a policy decides, and let it continue a prompt.

What the request asks for is checked before a weight is read: the files (`model_directory`), the policy, the prompt
(`prompt`, `chat_template`, `tokenizer`). What is written appears as it is made (`writing`), what was built is measured
(`memory`), and both are told (`report`).
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from policyquant.building.planned_only import check_methods_run
from policyquant.cli import output
from policyquant.cli.arguments import add_json, example
from policyquant.cli.findings_text import print_findings, verdict
from policyquant.cli.given import policy_in
from policyquant.cli.layer_table import is_quiet, layer_table, quiet_text
from policyquant.cli.opening import open_model, open_policy
from policyquant.cli.output import one_line
from policyquant.cli.run.model_directory import ModelDirectory, open_directory
from policyquant.cli.status import Status
from policyquant.cli.tables import print_table
from policyquant.cli.totals_text import totals
from policyquant.errors import PolicyQuantError
from policyquant.inventory.checkpoint_files import CONFIG_FILE
from policyquant.plan.plan import Plan
from policyquant.policy.scheme import FLOAT_DTYPES

if TYPE_CHECKING:
    from policyquant.cli.run.prompt import Prompt
    from policyquant.models.decoder import DecoderForCausalLM

_LARGEST_SEED: Final = 2**63 - 1
"""torch takes no larger one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Build a model with every layer as a policy decides, continue a prompt with it, and say what it took: memory"
        " before and after, and tokens with their speed."
    )
    parser.epilog = example(
        "run path/to/model --policy fp8-dynamic --prompt 'The capital of France is'",
        "run path/to/model --policy plan.json --chat --prompt 'Why is the sky blue?'",
    )
    parser.add_argument("model", metavar="MODEL", help="a directory with config.json, safetensors and tokenizer.json")
    parser.add_argument(
        "--policy",
        "-p",
        metavar="POLICY",
        help="a policy file, the name of a preset, or a plan.json; without one nothing is quantized",
    )
    parser.add_argument("--prompt", metavar="TEXT", required=True, help="the text to continue")
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message: put it into the model's chat template"
    )
    parser.add_argument(
        "--max-new-tokens", metavar="N", type=_positive, default=128, help="write at most N tokens (default: 128)"
    )
    parser.add_argument(
        "--temperature",
        metavar="T",
        type=_temperature,
        default=0.0,
        help="draw tokens, from logits divided by T; 0, the default, takes the likeliest",
    )
    parser.add_argument("--top-k", metavar="K", type=_positive, help="draw from the K likeliest tokens only")
    parser.add_argument("--seed", metavar="N", type=_seed, help="draw the same tokens in each run with this N")
    parser.add_argument(
        "--dtype",
        choices=[spelling for spelling in FLOAT_DTYPES if spelling not in FLOAT_DTYPES.values()],
        help="of all that is not quantized (default: as each layer is stored)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where the model is to be: cpu, the default, or cuda"
    )
    parser.add_argument(
        "--kernels", action="store_true", help="tell which implementation of each operator ran, and how often"
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build, write, report."""
    gc.enable()  # Off for commands that end in half a second; models are made of cycles.
    if arguments.top_k is not None and not arguments.temperature:
        raise PolicyQuantError("--top-k needs a --temperature above 0: without one the likeliest token is taken")
    directory = open_directory(arguments.model)
    policy = arguments.policy if arguments.policy is not None else policy_in(directory.path)
    plan = _plan(directory, policy)
    if policy is not None:
        print_findings(plan.findings)
    if plan.errors(strict=arguments.strict and policy is not None):
        output.error(f"{verdict(plan.findings)} in the plan; no model is built")
        return Status.NO
    check_methods_run(plan)

    from policyquant.cli.run.packages import let_others_compute, require

    let_others_compute()
    require("torch", "tokenizers", *(["jinja2"] if arguments.chat else []))
    from policyquant.cli.run.device import check_device
    from policyquant.cli.run.prompt import read_prompt

    check_device(arguments.device)
    prompt = read_prompt(directory, arguments.prompt, chat=arguments.chat)
    if not arguments.json:
        _print_plan(plan, quantized=policy is not None)
    try:
        return _build_and_write(arguments, directory, plan, policy is not None, prompt)
    except (MemoryError, RuntimeError) as failure:
        if isinstance(failure, RuntimeError) and "allocate" not in str(failure):
            raise
        whose = "the GPU's" if arguments.device == "cuda" else "this machine's"
        raise PolicyQuantError(f"{directory.label}: the model does not fit into {whose} memory") from failure


def _plan(directory: ModelDirectory, policy: str | None) -> Plan:
    from policyquant.plan.read import is_plan, read_plan
    from policyquant.plan.resolve import resolve
    from policyquant.policy.load import load_policy

    if policy is not None and is_plan(policy):
        plan = read_plan(policy)
    else:
        read = load_policy({"version": 1}) if policy is None else open_policy(policy)
        plan = resolve(read, open_model(directory.path))
    blocks = directory.config.get("num_hidden_layers")
    if isinstance(blocks, int) and blocks > len(plan):
        # Before so many are constructed.
        raise PolicyQuantError(
            f"{directory.file(CONFIG_FILE)}: num_hidden_layers is {blocks}, more than the checkpoint has layers"
        )
    return plan


def _print_plan(plan: Plan, *, quantized: bool) -> None:
    name = one_line(plan.model.name or plan.model.source)
    if not quantized:
        output.write(f"{name}, nothing quantized\n\n")
        return
    output.write(f"{name} under {one_line(plan.policy.source)}\n\n")
    quiet = [] if output.settings.verbose else [row for row in plan.rows if is_quiet(row)]
    listed = [row for row in plan.rows if row not in quiet]
    if listed:
        print_table(layer_table(listed))
    if quiet:
        output.write(f"\n{quiet_text(quiet)} (--verbose lists them)\n")
    _print_pairs(totals(plan.rows))
    output.write("\n")


def _print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    width = max(len(title) for title, _ in pairs)
    output.write("\n" + "".join(f"{title.ljust(width)}  {value}\n" for title, value in pairs))


def _build_and_write(
    arguments: argparse.Namespace, directory: ModelDirectory, plan: Plan, quantized: bool, prompt: Prompt
) -> int:
    from policyquant.cli.run.memory import measure
    from policyquant.cli.run.report import Sampling, launches_table, report_json, report_pairs
    from policyquant.cli.run.writing import write_text
    from policyquant.kernels.dispatch import launches

    began = time.perf_counter()
    model = _build(directory, plan, arguments.dtype, arguments.device)
    seconds = time.perf_counter() - began
    sampling = Sampling.chosen(arguments.temperature, arguments.top_k, arguments.seed)
    show = _nothing if arguments.json else _show
    launches.clear()  # Loading may have quantized.
    written = write_text(model, prompt, min(arguments.max_new_tokens, prompt.room), sampling, directory.ends, show)
    memory = measure(model, plan, len(prompt.ids) + len(written.ids) - 1)
    if arguments.json:
        policy = plan.policy.source if quantized else None
        output.write_json([report_json(plan.model.name, policy, prompt, written, sampling, memory, seconds, launches)])
    else:
        output.write("\n")
        _print_pairs(report_pairs(prompt, written, sampling, memory, seconds))
        if arguments.kernels:
            output.write("\n")
            print_table(launches_table(launches))
    return Status.FINE


def _build(directory: ModelDirectory, plan: Plan, dtype: str | None, device: str) -> DecoderForCausalLM:
    import torch

    from policyquant.building.build import build
    from policyquant.cli.run.progress import loading_bar
    from policyquant.models.decoder import DecoderForCausalLM
    from policyquant.models.families import model_factory

    with loading_bar() as progress:
        model = build(
            model_factory(directory.config),
            policy=plan,
            source=directory.path,
            device=device,
            dtype=None if dtype is None else getattr(torch, FLOAT_DTYPES[dtype]),
            progress=progress,
        )
    assert isinstance(model, DecoderForCausalLM)
    return model


def _show(text: str) -> None:
    """Print a piece of what the model writes. Tabs are kept: models write code; other control characters are not."""
    first, *others = text.split("\t")
    output.write(first)
    for other in others:
        output.write_styled("\t")
        output.write(other)
    if sys.stdout is not None and sys.stdout.isatty():
        output.flush()


def _nothing(text: str) -> None:
    """Show nothing."""


def _number(convert: Callable[[str], float], holds: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    def read(word: str) -> float:
        try:
            value = convert(word)
        except ValueError:
            value = math.nan
        if not holds(value):
            raise argparse.ArgumentTypeError(f"expected {expected}, found {word!r}")
        return value

    return read


_positive = _number(int, lambda value: value >= 1, "a whole number of at least 1")
_temperature = _number(float, lambda value: 0 <= value < math.inf, "a number of at least 0")
_seed = _number(int, lambda value: 0 <= value <= _LARGEST_SEED, f"a whole number from 0 to {_LARGEST_SEED}")
