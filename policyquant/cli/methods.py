"""`policyquant methods`: the quantization methods, which of them run here, and what a policy may set of each."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator

from policyquant.cli import output
from policyquant.cli.arguments import add_json, example
from policyquant.cli.layer_table import quantization_text
from policyquant.cli.status import Status
from policyquant.cli.tables import Column, Table, print_table
from policyquant.cli.terminal import paint
from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.inventory.kinds import KINDS
from policyquant.methods.documentation import Documentation, documentation
from policyquant.methods.registry import BUILT_IN
from policyquant.policy.methods import METHODS, Choices, MethodSpec, entry_points
from policyquant.policy.scheme import Quantization


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "List the quantization methods and say which of them run here, or say all about one.\n"
        "Methods that installed packages bring are listed after ours."
    )
    parser.epilog = example("methods", "methods fp8")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the method to describe")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or one method."""
    known = [*METHODS.names()]
    if arguments.name is None:
        _print_all(known, arguments.json)
    elif arguments.name in known:
        _print_one(arguments.name, METHODS[arguments.name], arguments.json)
    else:
        raise PolicyQuantError(
            f"no method is named {arguments.name!r}{did_you_mean(arguments.name, known)} (known: {', '.join(known)})"
        )
    return Status.FINE


def _print_all(names: list[str], as_json: bool) -> None:
    # What packages bring is not loaded for a list, so that it costs nothing and one that is broken cannot spoil it.
    specs = {name: METHODS[name] if name in {*METHODS} else None for name in names}
    if as_json:
        methods = [_as_json(name, spec, documentation(name)) for name, spec in specs.items()]
        output.write_json([json.dumps(methods, ensure_ascii=False, indent=1), "\n"])
        return
    columns = (
        Column("method", style="cyan"),
        Column("runs"),
        Column("weight", fold=True),
        Column("input", fold=True),
        Column("what it does", fold=True),
    )
    rows = [(name, _runs_in_short(name), *_cells(name, spec)) for name, spec in specs.items()]
    print_table(Table(columns, rows))
    if not all(map(_has_code, names)):
        output.note("note: a method that does not run yet is decided and counted, but build refuses it")


def _cells(name: str, spec: MethodSpec | None) -> tuple[str, str, str]:
    if spec is None:
        return ("", "", _summary(documentation(name)))
    return (quantization_text(spec.weight), quantization_text(spec.input), spec.summary)


def _print_one(name: str, spec: MethodSpec, as_json: bool) -> None:
    said = documentation(name)
    if as_json:
        output.write_json([json.dumps(_as_json(name, spec, said), ensure_ascii=False, indent=1), "\n"])
        return
    pairs = [
        ("runs", _runs(name)),
        ("weight", quantization_text(spec.weight) or "as it is"),
        ("input", quantization_text(spec.input) or "as it is"),
        ("takes", ", ".join(_kinds(spec))),
        ("shapes", spec.shapes),
        *_settings("weight", spec.weight_choices),
        *_settings("input", spec.input_choices),
    ]
    width = max(len(title) for title, _ in pairs)
    # What a method's file says of when to use it stands below.
    use = [spec.use] if said is None or "When to use it" in said.missing else []
    lines = [spec.name, "", spec.summary, *use, "", *(f"{title.ljust(width)}  {text}" for title, text in pairs)]
    output.write("\n".join(lines) + "\n")
    if said is None:
        return
    for heading, text in said.sections.items():
        output.write_styled(f"\n{paint(heading, 'bold', sys.stdout)}\n")
        output.write(f"{text}\n")
    if said.missing:
        point = entry_points()[name].value if name not in BUILT_IN else BUILT_IN[name]
        output.note(f"note: the file of {point} says nothing under: {', '.join(said.missing)}")


def _has_code(name: str) -> bool:
    return name in BUILT_IN or name in entry_points()


def _package(name: str) -> str | None:
    """The distribution that brings the code of a method; None for ours, and where there is no code."""
    point = None if name in BUILT_IN else entry_points().get(name)
    if point is None:
        return None
    return point.value if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _runs_in_short(name: str) -> str:
    package = _package(name)
    if package is not None:
        return f"by {package}"
    return "yes" if name in BUILT_IN else "not yet"


def _runs(name: str) -> str:
    package = _package(name)
    if package is not None:
        return f"yes, by {package} ({entry_points()[name].value})"
    return "yes" if name in BUILT_IN else "not yet: it is decided and counted, but build refuses it"


def _summary(said: Documentation | None) -> str:
    """The first paragraph of a method's file, without the method's name in front, which stands beside it."""
    text = "" if said is None else re.sub(r"^Method `[^`]*`: ", "", said.summary)
    return text[:1].upper() + text[1:]


def _kinds(spec: MethodSpec) -> list[str]:
    kinds = [kind for kind in KINDS if kind in spec.kinds]
    # `none` reaches routers like anything else.
    if spec.name != "none":
        return [f"{kind} (if named)" if kind == "router" else kind for kind in kinds]
    return [*kinds]


def _settings(side: str, choices: Choices) -> Iterator[tuple[str, str]]:
    for field in choices.fields():
        allowed = getattr(choices, field)
        values = "a positive number" if allowed is True else ", ".join(map(_value, allowed))
        yield f"{side}.{field}", values


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _as_json(name: str, spec: MethodSpec | None, said: Documentation | None) -> dict[str, object]:
    """A method for other programs; of one that is not loaded, what its file says."""
    entry: dict[str, object] = {"name": name, "runs": _has_code(name), "package": _package(name)}
    if spec is None:
        entry["summary"] = _summary(said)
    else:
        entry |= {"summary": spec.summary, "use": spec.use, "shapes": spec.shapes}
        entry["kinds"] = [kind for kind in KINDS if kind in spec.kinds]
        for side, default, choices in (
            ("weight", spec.weight, spec.weight_choices),
            ("input", spec.input, spec.input_choices),
        ):
            entry[side] = _quantization(default)
            entry[f"{side}_choices"] = dict(_choices(choices))
    entry["sections"] = {} if said is None else dict(said.sections)
    return entry


def _quantization(quantization: Quantization | None) -> dict[str, object] | None:
    return None if quantization is None else quantization.as_json()


def _choices(choices: Choices) -> Iterable[tuple[str, object]]:
    """The values of each field that leaves a choice; true: any positive number."""
    for field in choices.fields():
        yield field, getattr(choices, field)
