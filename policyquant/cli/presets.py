"""`policyquant presets`: the policies that come with the package."""

from __future__ import annotations

import argparse

from policyquant.cli import output
from policyquant.cli.arguments import example
from policyquant.cli.status import Status
from policyquant.cli.tables import Column, Table, print_table
from policyquant.errors import PolicyQuantError
from policyquant.methods.registry import runnable
from policyquant.policy.load import load_policy
from policyquant.policy.presets import preset_comment, preset_names, preset_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "List the policies that come with policyquant and say which of them run here, or print one, with a comment that"
        " says when to use it.\n"
        "A preset's name stands for it wherever a policy is expected, in `extends` too."
    )
    parser.epilog = example("presets", "presets fp8-dynamic", "presets fp8-dynamic > policy.yaml")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the preset to print")


def _to_copy(name: str) -> str:
    """A preset without the line for editors: the schema it names lies beside the presets, not beside a copy."""
    begins = [preset for preset in preset_names() if preset.startswith(name)]
    if name not in begins and len(begins) > 1:
        raise PolicyQuantError(f"no preset is named {name!r}; these begin with it: {', '.join(begins)}")
    first, _, rest = preset_text(name).partition("\n")
    return rest if first.startswith("# yaml-language-server:") else f"{first}\n{rest}"


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or one preset as it is written."""
    if arguments.name is not None:
        output.write(_to_copy(arguments.name))
        return Status.FINE
    lacking = {name: methods_without_code(name) for name in preset_names()}
    rows = [(name, _runs(lacking[name]), preset_comment(name).split("\n", 1)[0]) for name in lacking]
    print_table(Table((Column("preset", style="cyan"), Column("runs"), Column("what it does", fold=True)), rows))
    if any(lacking.values()):
        output.note("note: a preset whose method does not run yet is decided and counted, but build refuses it")
    return Status.FINE


def methods_without_code(name: str) -> list[str]:
    """The methods of a preset that nothing here runs. No method is loaded for it."""
    methods = {rule.fields.method for rule in load_policy(name).rules} - {None}
    return sorted(str(method) for method in methods - {*runnable()})


def _runs(lacking: list[str]) -> str:
    return f"not yet: {', '.join(lacking)}" if lacking else "yes"
