"""`policyquant diff`: what differs between two policies, plans or models."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from policyquant.cli import output
from policyquant.cli.arguments import add_policy, add_table_format, example
from policyquant.cli.findings_text import print_findings, verdict
from policyquant.cli.given import what_is
from policyquant.cli.sizes_text import bits_text, bytes_text, count_text, share_text
from policyquant.cli.status import Status
from policyquant.errors import PolicyQuantError

if TYPE_CHECKING:
    from policyquant.plan.diff import PlanDiff
    from policyquant.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.usage = (
        "policyquant diff [options] MODEL A B            two policies (or plans) on one model\n"
        "       policyquant diff [options] A.json B.json        two plans\n"
        "       policyquant diff [options] --policy P MODEL_A MODEL_B"
    )
    parser.description = (
        "Show what differs between two policies on one model, two plans, or two models under one policy: which\n"
        "layers, what happens to them before and after, the rules that say so, and bytes. Layers are compared by\n"
        "their names. What counts is what happens to a layer, not which rule said so. Exit status: 0 no difference,\n"
        "1 a difference (or errors in one of the two)."
    )
    parser.epilog = example(
        "diff path/to/model old.yaml new.yaml",
        "diff path/to/model fp8-dynamic fp8-block --format markdown",
        "diff path/to/model plan.json policy.yaml    # does the policy still say what was locked?",
        "diff old-plan.json new-plan.json",
        "diff --policy fp8-dynamic path/to/model path/to/finetuned-model",
    )
    parser.add_argument(
        "what",
        metavar="WHAT",
        nargs="+",
        help="a model, policies (files or presets) and plans, in one of the forms above",
    )
    add_policy(parser, required=False)
    add_table_format(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the differences; the status says whether there are any."""
    from policyquant.plan.diff import diff_plans

    plans = _plans(arguments.what, arguments.policy)
    names = arguments.what[-2:]
    diff = diff_plans(*plans)
    if arguments.format == "json":
        import json

        output.write_json([json.dumps(diff.as_json(), ensure_ascii=False, indent=1), "\n"])
    else:
        _print(diff, plans, names, arguments.format)
    broken = False
    for name, plan in zip(names, plans, strict=True):
        errors = plan.errors(strict=arguments.strict)
        if errors:
            broken = True
            output.message(f"{output.one_line(name)}: {verdict(errors)}")
            print_findings(errors)
    return Status.NO if diff or broken else Status.FINE


def _plans(words: list[str], policy: str | None) -> tuple[Plan, Plan]:
    """The two plans that the arguments name."""
    from policyquant.plan.read import is_plan, read_plan

    if policy is not None:
        if len(words) != 2:
            raise PolicyQuantError(f"with --policy, diff takes two models; found {count_text(len(words), 'argument')}")
        for word in words:
            if is_plan(word):
                raise PolicyQuantError(f"{word}: a plan has its policy in it; --policy takes two models")
        return _resolved(words[0], policy), _resolved(words[1], policy)
    if len(words) == 2:
        first, second = words
        given = what_is(first), what_is(second)
        if given[0] == "model" and given[1] in ("policy", "plan"):
            raise PolicyQuantError(
                f"one policy or plan is missing: policyquant diff {first} {second} B compares the two on that model"
            )
        for word in words:
            if not is_plan(word):
                raise PolicyQuantError(
                    f"{word}: no plan; to compare policies, name the model first: policyquant diff MODEL A B"
                    if os.path.lexists(word)
                    else f"{word}: no such file; two arguments are two plans"
                )
        return read_plan(first), read_plan(second)
    if len(words) != 3:
        raise PolicyQuantError(
            f"diff takes MODEL A B, two plans, or --policy P and two models; found {count_text(len(words), 'argument')}"
            " (see: policyquant diff --help)"
        )
    return _on_one_model(*words)


def _on_one_model(model: str, first: str, second: str) -> tuple[Plan, Plan]:
    from policyquant.cli.opening import open_model, open_policy
    from policyquant.plan.read import is_plan, read_plan
    from policyquant.plan.resolve import resolve

    locked = {word: read_plan(word) for word in (first, second) if is_plan(word)}
    if first in locked and second in locked:
        raise PolicyQuantError("two plans are compared without a model: policyquant diff A.json B.json")
    # Policies first: their faults are found at once, a model may take longer.
    policies = {word: open_policy(word) for word in (first, second) if word not in locked}
    inventory = open_model(model)
    for plan in locked.values():
        if plan.model.name != inventory.name:
            of = plan.model.name or plan.model.source
            output.note(f"note: the plan is for {of}, compared with {inventory.name or inventory.source}")
    before, after = (locked[word] if word in locked else resolve(policies[word], inventory) for word in (first, second))
    return before, after


def _resolved(model: str, policy: str) -> Plan:
    from policyquant.cli.opening import resolve_model

    return resolve_model(model, policy)


def _print(diff: PlanDiff, plans: tuple[Plan, Plan], names: list[str], form: str) -> None:
    from policyquant.cli.diff_table import diff_table
    from policyquant.cli.tables import print_table

    markdown = form == "markdown"
    before, after = (output.one_line(name) for name in names)
    models = dict.fromkeys(plan.model.name or plan.model.source for plan in plans)
    on = f" on {output.one_line(next(iter(models)))}" if len(models) == 1 and names[0] not in models else ""
    output.write(f"{'# ' if markdown else ''}{before} -> {after}{on}\n\n")
    if diff:
        print_table(diff_table(diff), "markdown" if markdown else "table")
        output.write("\n")
    lines = _totals(diff)
    width = max(len(title) for title, _ in lines)
    for title, value in lines:
        output.write(f"- {title}: {value}\n" if markdown else f"{title.ljust(width)}  {value}\n")


def _totals(diff: PlanDiff) -> list[tuple[str, str]]:
    one, other = diff.before.total, diff.after.total
    changed, removed, added = (sum(each.count for each in part) for part in (diff.changed, diff.removed, diff.added))
    told = [f"{count_text(changed, 'layer')} of {one.layers:,}"] if changed or not diff else []
    told += [f"{removed:,} only before"] if removed else []
    told += [f"{added:,} only after"] if added else []
    share = share_text(other.bytes_after, one.bytes_after)
    return [
        ("differ", ", ".join(told) if diff else "no layer"),
        (
            "bytes",
            f"{bytes_text(one.bytes_after)} -> {bytes_text(other.bytes_after)}" + (f" ({share})" if share else ""),
        ),
        ("bits per weight", f"{bits_text(one.bits_after)} -> {bits_text(other.bits_after)}"),
    ]
