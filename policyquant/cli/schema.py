"""`policyquant schema`: the JSON Schema of a policy or a plan."""

from __future__ import annotations

import argparse

from policyquant.cli import output
from policyquant.cli.arguments import example
from policyquant.cli.status import Status
from policyquant.schemas import schema_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Print the JSON Schema (draft 2020-12) of a policy, or of what `plan` and `inspect --json` write."
    )
    parser.epilog = example("schema > policy.schema.json", "schema plan")
    parser.add_argument("name", choices=("policy", "plan"), nargs="?", default="policy", help="of which file")


def run(arguments: argparse.Namespace) -> int:
    """Print the schema as it is written."""
    output.write_json([schema_file(arguments.name).read_text(encoding="utf-8")])
    return Status.FINE
