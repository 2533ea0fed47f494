"""`policyquant methods`: the quantization methods, and what a policy may set of each."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from policyquant.cli import output
from policyquant.cli.arguments import example
from policyquant.cli.layer_table import quantization_text
from policyquant.cli.status import Status
from policyquant.cli.tables import Column, Table, print_table
from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.inventory.kinds import KINDS
from policyquant.policy.methods import METHODS, Choices, MethodSpec


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = "List the quantization methods, or say all about one."
    parser.epilog = example("methods", "methods fp8_block")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the method to describe")


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or one method."""
    if arguments.name is not None:
        return _print_one(arguments.name)
    rows = [
        (spec.name, quantization_text(spec.weight), quantization_text(spec.input), spec.summary)
        for spec in METHODS.values()
    ]
    columns = (
        Column("method", style="cyan"),
        Column("weight", fold=True),
        Column("input", fold=True),
        Column("what it does", fold=True),
    )
    print_table(Table(columns, rows))
    return Status.FINE


def _print_one(name: str) -> int:
    spec = METHODS.get(name)
    if spec is None:
        raise PolicyQuantError(
            f"no method is named {name!r}{did_you_mean(name, METHODS)} (known: {', '.join(METHODS)})"
        )
    lines = [spec.name, "", spec.summary, spec.use, ""]
    pairs = [
        ("weight", quantization_text(spec.weight) or "as it is"),
        ("input", quantization_text(spec.input) or "as it is"),
        ("takes", _kinds(spec)),
        ("shapes", spec.shapes),
        *_settings("weight", spec.weight_choices),
        *_settings("input", spec.input_choices),
    ]
    width = max(len(title) for title, _ in pairs)
    output.write("\n".join([*lines, *(f"{title.ljust(width)}  {text}" for title, text in pairs)]) + "\n")
    return Status.FINE


def _kinds(spec: MethodSpec) -> str:
    kinds = [kind for kind in KINDS if kind in spec.kinds]
    # `none` reaches routers like anything else.
    if spec.name != "none":
        return ", ".join(f"{kind} (if named)" if kind == "router" else kind for kind in kinds)
    return ", ".join(kinds)


def _settings(side: str, choices: Choices) -> Iterable[tuple[str, str]]:
    for field in choices.fields():
        allowed = getattr(choices, field)
        values = "a positive number" if allowed is True else ", ".join(map(_value, allowed))
        yield f"{side}.{field}", values


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(list(value)) if isinstance(value, tuple) else str(value)
