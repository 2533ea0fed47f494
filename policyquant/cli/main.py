"""`policyquant COMMAND …`: finds the command, runs it, and turns what happens into messages and an exit status.

Only the module of the command that was asked for is imported. Each has `add_arguments(parser)` and `run(arguments)`,
which returns an exit status.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

from policyquant.cli import output
from policyquant.cli.arguments import CommandParser, add_global_options
from policyquant.cli.status import Status
from policyquant.errors import PolicyError, PolicyQuantError, did_you_mean

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "check": ("policyquant.cli.check", "is a policy valid, and does it fit a model"),
    "inspect": ("policyquant.cli.inspect", "what a policy decides for every layer of a model"),
    "explain": ("policyquant.cli.explain", "why one layer is as it is: every rule, and what it did"),
    "match": ("policyquant.cli.match", "which layers a pattern reaches"),
    "diff": ("policyquant.cli.diff", "what differs between two policies, plans or models"),
    "plan": ("policyquant.cli.plan", "write the resolved plan to a file"),
    "inventory": ("policyquant.cli.inventory", "the layers of a model, as policies see them"),
    "run": ("policyquant.cli.run.command", "build a model as a policy decides, and let it write"),
    "presets": ("policyquant.cli.presets", "list the policies that come with policyquant, or show one"),
    "methods": ("policyquant.cli.methods", "list the quantization methods, or show one"),
    "kernels": ("policyquant.cli.kernels", "which implementation of each operator runs, and why"),
    "schema": ("policyquant.cli.schema", "print the JSON Schema of a policy or a plan, for editors"),
    "init": ("policyquant.cli.init", "write a commented policy to start from"),
}
"""Command → its module, and its help in one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after `policyquant`; None: those of this process, which then exits.

    Returns:
        The exit status, see `Status`.
    """
    if argv is None:
        # A process that lives for half a second and keeps all that it makes gains nothing from looking for garbage.
        gc.disable()
        gc.freeze()
    try:
        try:
            status = _run(sys.argv[1:] if argv is None else list(argv))
        except SystemExit as stop:  # argparse: help was printed, or the request was not understood.
            status = stop.code if isinstance(stop.code, int) else Status.NOT_UNDERSTOOD
        output.flush()
    except BrokenPipeError:
        output.abandon()
        status = Status.PIPE_CLOSED
    except KeyboardInterrupt:
        output.abandon()
        status = Status.INTERRUPTED
    except _reported() as error:
        status = _failed(error)
    finally:
        # Else the interpreter walks through everything once more on its way out; Triton complains where it does not.
        if argv is None and "triton" not in sys.modules:
            gc.freeze()
    return int(status)


def _reported() -> tuple[type[Exception], ...]:
    """What ends with a message. A forced implementation that cannot be had is met only where torch is loaded."""
    dispatch = sys.modules.get("policyquant.kernels.dispatch")
    return (PolicyQuantError,) if dispatch is None else (PolicyQuantError, dispatch.KernelUnavailableError)


def _failed(error: Exception) -> Status:
    try:
        for line in error.problems if isinstance(error, PolicyError) else [error]:
            output.error(str(line))
        output.flush()
    except (BrokenPipeError, PolicyQuantError):  # Nobody can be told.
        output.abandon()
    return Status.NOT_UNDERSTOOD


def _run(words: list[str]) -> int:
    output.prepare()
    # The options before a command take no values, so the first word that is no option is the command.
    position = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    before, command, after = words[:position], words[position : position + 1], words[position + 1 :]
    if not command or any(word in ("-h", "--help", "--version") for word in before):
        _without_command(before)
    name = command[0]
    if name not in COMMANDS:
        output.error(f"no command is named {name!r}{did_you_mean(name, COMMANDS)} (see: policyquant --help)")
        return Status.NOT_UNDERSTOOD
    module_name, summary = COMMANDS[name]
    module = import_module(module_name)
    parser = CommandParser(prog=f"policyquant {name}", description=summary[0].upper() + summary[1:] + ".")
    module.add_arguments(parser)
    add_global_options(parser)
    arguments = parser.read([*before, *after])
    output.settings.quiet, output.settings.verbose = arguments.quiet, arguments.verbose
    status: int = module.run(arguments)
    return status


def _without_command(words: list[str]) -> NoReturn:
    """Help, the version, or what is missing."""
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name.ljust(width)}  {summary}" for name, (_, summary) in COMMANDS.items())
    parser = CommandParser(
        prog="policyquant",
        usage="policyquant [options] COMMAND ...",
        description="One policy file decides, for every layer of a model, how it is quantized and what dtype its output"
        " has.",
        epilog=f"commands:\n{listing}\n\nexample:\n  policyquant inspect path/to/model --policy fp8-dynamic\n\n"
        "exit status: 0 fine; 1 the answer is no (errors found, difference found); 2 the request was not understood,"
        " or cannot be carried out",
    )
    add_global_options(parser)
    parser.read(words)
    parser.print_help(sys.stderr)
    raise SystemExit(Status.NOT_UNDERSTOOD)
