"""`policyquant init`: write a commented policy to start from."""

from __future__ import annotations

import argparse
import os

from policyquant.cli import output
from policyquant.cli.arguments import add_model, example
from policyquant.cli.status import Status
from policyquant.errors import PolicyQuantError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Write a commented policy to start from. With a model it is fit for that one: its own names, ranges and\n"
        "counts are in the comments, what is worth quantizing is quantized to FP8, and the rest is suggested."
    )
    parser.epilog = example("init path/to/model -o policy.yaml", "init")
    add_model(parser, optional=True)
    parser.add_argument("-o", "--output", metavar="FILE", default="-", help="where to (default: -, stdout)")
    parser.add_argument("--force", action="store_true", help="overwrite FILE if it exists")


def run(arguments: argparse.Namespace) -> int:
    """Write the policy."""
    target: str = arguments.output
    if target != "-" and not arguments.force and os.path.lexists(target):
        raise PolicyQuantError(f"{target}: exists already; --force overwrites it")
    from policyquant.plan.starter import GENERAL, starter_policy

    if arguments.model is None:
        text = GENERAL
    else:
        from policyquant.cli.opening import open_model

        text = starter_policy(open_model(arguments.model))
    if target == "-":
        output.write(text)
        return Status.FINE
    text = _for_file(text, output.one_line(target))
    from policyquant.output_file import write_whole

    write_whole(target, text.encode())
    model = "MODEL" if arguments.model is None else output.one_line(arguments.model)
    output.note(f"{target}: written; what it decides: policyquant inspect {model} --policy {output.one_line(target)}")
    return Status.FINE


def _for_file(text: str, name: str) -> str:
    """The policy with the name of its own file in the commands of its comment."""
    lines = (
        line.replace("policy.yaml", name) if line.startswith("#") and " policyquant " in line else line
        for line in text.splitlines(keepends=True)
    )
    return "".join(lines)
