"""`policyquant inspect`: what a policy decides for every layer of a model."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from policyquant.cli import output
from policyquant.cli.arguments import add_policy, add_selection, add_table_format, example
from policyquant.cli.findings_text import print_findings
from policyquant.cli.layer_table import is_quiet, layer_table, quiet_text
from policyquant.cli.opening import plan_of
from policyquant.cli.patterns import compile_pattern, reaches_nothing
from policyquant.cli.status import Status
from policyquant.cli.tables import print_table
from policyquant.cli.totals_text import totals
from policyquant.plan.plan import Plan
from policyquant.plan.rows import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Show what a policy decides for every layer of a model. Repeated layers share a line, their indices written as"
        " a range;\nnorms, activations and the like for which nothing is set are only counted (--verbose lists them)."
    )
    parser.epilog = example(
        "inspect path/to/model --policy policy.yaml",
        "inspect path/to/model --policy fp8-dynamic --filter 'decoder.*.moe' --all",
        "inspect plan.json --format markdown",
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a model (see `policyquant inventory --help`), or a plan.json without --policy"
    )
    add_policy(parser, required=False)
    parser.add_argument("--all", action="store_true", help="list each layer on a line of its own")
    add_selection(parser)
    add_table_format(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; the status says whether it has errors."""
    pattern = None if arguments.filter is None else compile_pattern(arguments.filter)
    plan = plan_of(arguments.model, arguments.policy)
    rows: Sequence[Row] = plan.rows
    if pattern is not None:
        from policyquant.plan.select import select

        rows = select(plan, pattern)
        if not rows:
            output.error(reaches_nothing(pattern, plan.context))
            return Status.NO
    if arguments.method:
        rows = [row for row in rows if row.scheme.method in arguments.method]
    if arguments.kind:
        rows = [row for row in rows if row.kind in arguments.kind]
    chosen = bool(pattern is not None or arguments.method or arguments.kind)
    if not rows and chosen:
        output.error(f"no layer {_selection(arguments)}")
        return Status.NO
    if arguments.format == "json":
        output.write_json(plan.json_chunks(rows))
    else:
        _print(plan, rows, arguments, chosen)
        print_findings(plan.findings)
    return Status.NO if plan.errors(strict=arguments.strict) else Status.FINE


def _selection(arguments: argparse.Namespace) -> str:
    told = [f"that {arguments.filter!r} reaches"] if arguments.filter is not None else []
    told += [f"of kind {' or '.join(arguments.kind)}"] if arguments.kind else []
    told += [f"with method {' or '.join(arguments.method)}"] if arguments.method else []
    return " ".join(told)


def _print(plan: Plan, rows: Sequence[Row], arguments: argparse.Namespace, chosen: bool) -> None:
    markdown = arguments.format == "markdown"
    every = chosen or arguments.all or output.settings.verbose
    quiet = [] if every else [row for row in rows if is_quiet(row)]
    listed = rows if every else [row for row in rows if not is_quiet(row)]
    title = f"{plan.model.name or plan.model.source} under {plan.policy.source}"
    output.write(f"# {title}\n\n" if markdown else f"{title}\n\n")
    if listed:
        print_table(layer_table(listed, each=arguments.all), arguments.format)
    if quiet:
        output.write(f"\n{quiet_text(quiet)}{'' if markdown else ' (--verbose lists them)'}\n")
    pairs = totals(rows, " listed" if chosen else "")
    width = max(len(title) for title, _ in pairs)
    lines = (f"- {title}: {value}\n" if markdown else f"{title.ljust(width)}  {value}\n" for title, value in pairs)
    output.write("\n" + "".join(lines))
