"""Arguments that several commands take, and how all of them read theirs."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, Final, NoReturn

from policyquant.cli import output
from policyquant.cli.given import what_is
from policyquant.cli.status import Status
from policyquant.errors import did_you_mean

MODEL: Final = (
    "a directory with config.json and safetensors, a .safetensors file, an .index.json, a saved inventory, or"
    " hf://organisation/name[@revision]"
)


class _HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs to the terminal's width; examples and listings stay as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(("example:", "commands:")):
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


class CommandParser(argparse.ArgumentParser):
    """`argparse` that takes options in full only, keeps examples as written, and suggests spellings."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", _HelpFormatter)
        super().__init__(allow_abbrev=False, **settings)
        self._words: list[str] = []

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The arguments that these words give. Options may stand between the others."""
        self._words = list(words)
        return self.parse_intermixed_args(self._words)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, and where to read more; exit status 2."""
        unknown = re.fullmatch(r"unrecognized arguments: (.*)", message, re.DOTALL)
        option = self._unknown_option()
        # What is missing may be what was misspelled: argparse looks for the former first.
        if option is not None and (unknown or message.startswith("the following arguments are required")):
            message = f"no option {option}{did_you_mean(option, self._option_string_actions)}"
        elif unknown:
            word = unknown.group(1).split(" ")[0]
            message = f"one argument too many: {word!r}"
            if "--policy" in self._option_string_actions and what_is(word) == "policy":
                message += f"; did you mean --policy {word}?"
        output.error(f"{message} (see: {self.prog} --help)")
        raise SystemExit(Status.NOT_UNDERSTOOD)

    def _unknown_option(self) -> str | None:
        """The first word that looks like an option and is none. `--` ends the options; a number is a value."""
        known = self._option_string_actions
        for word in takewhile(lambda word: word != "--", self._words):
            option = word.partition("=")[0]
            if re.match(r"-[^\d.\s]", option) and " " not in option and option not in known:
                short = option[:2]
                if option.startswith("--") or short not in known:
                    return option
        return None


def add_global_options(parser: argparse.ArgumentParser) -> None:
    """The options that every command takes, before or after its name."""
    group = parser.add_argument_group("everywhere")
    volume = group.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help="no warnings and notes, only results and errors")
    volume.add_argument(
        "-v", "--verbose", action="store_true", help="all findings in full, and every layer they are about"
    )
    group.add_argument("--strict", action="store_true", help="warnings count as errors")
    group.add_argument("--version", action=_Version, help="print the version and exit")


class _Version(argparse.Action):
    """Prints the version; looks it up only then."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from policyquant.version import VERSION

        output.write(f"policyquant {VERSION}\n")
        raise SystemExit(Status.FINE)


def add_model(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """MODEL."""
    parser.add_argument("model", metavar="MODEL", nargs="?" if optional else None, help=MODEL)


def add_policy(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """`--policy`."""
    parser.add_argument(
        "--policy", "-p", metavar="POLICY", required=required, help="a policy file, or the name of a preset"
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for other programs")


def add_table_format(parser: argparse.ArgumentParser) -> None:
    """`--format` and its short form `--json`."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--format",
        choices=("table", "json", "markdown"),
        default="table",
        help="a table (the default), JSON for other programs, or Markdown for a review",
    )
    choice.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """`--filter`, `--method` and `--kind`."""
    parser.add_argument("--filter", metavar="PATTERN", help="only layers that this pattern reaches")
    parser.add_argument(
        "--method", metavar="METHOD", action="append", type=_method, help="only layers with this method (repeatable)"
    )
    parser.add_argument(
        "--kind", metavar="KIND", action="append", type=_kind, help="only layers of this kind (repeatable)"
    )


def _method(word: str) -> str:
    from policyquant.policy.methods import METHODS

    return _known(word, METHODS.names(), "method")


def _kind(word: str) -> str:
    from policyquant.inventory.kinds import KINDS

    return _known(word, KINDS, "kind")


def _known(word: str, known: Iterable[str], what: str) -> str:
    known = tuple(known)
    if word not in known:
        message = f"no {what} is named {word!r}{did_you_mean(word, known)} (known: {', '.join(known)})"
        raise argparse.ArgumentTypeError(message)
    return word


def example(*lines: str) -> str:
    """The end of a help text: how the command is used."""
    return "example:\n" + "\n".join(f"  policyquant {line}" for line in lines)
