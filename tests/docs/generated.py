"""The parts of the documentation that are made from the code: tables that could otherwise grow stale.

A page marks one with `<!-- generated: NAME -->` … `<!-- end -->`; `python -m tests.docs.refresh` writes it.
"""

from __future__ import annotations

import argparse
import ast
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Final

from policyquant.cli.arguments import CommandParser, add_global_options
from policyquant.cli.main import COMMANDS
from policyquant.cli.presets import methods_without_code
from policyquant.inventory.architectures import family_named, family_names
from policyquant.inventory.architectures.vocabulary import BLOCK, GLOBAL, PREDICTION, TOWER, TOWERS, Role
from policyquant.inventory.kinds import KINDS
from policyquant.methods.documentation import HEADINGS, documentation
from policyquant.methods.registry import BUILT_IN
from policyquant.policy.methods import METHODS, Choices, MethodSpec
from policyquant.policy.presets import preset_comment, preset_names
from policyquant.policy.scheme import Quantization
from tests.docs.pages import ROOT, read
from tests.kernels.pitfalls import PITFALLS

KIND_MEANINGS: Final[Mapping[str, str]] = {
    "linear": "a matrix that multiplies, a transposed one too",
    "moe": "weights of routed experts, however stored",
    "router": "whatever scores experts or shared experts",
    "norm": "a normalization",
    "activation": "an activation function",
    "attention": "an attention, with the KV cache that it may keep",
    "embedding": "a table that is looked up",
    "head": "vocabulary and class outputs",
    "conv": "a convolution; a patch projection too, however stored",
    "other": "anything whose function is not known",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def kinds() -> str:
    """The kinds of layers, and which methods take them."""
    takers = {
        kind: [spec.name for spec in METHODS.values() if kind in spec.kinds and spec.weight is not None]
        for kind in KINDS
    }
    most = max(takers.values(), key=len)

    def taken(kind: str) -> str:
        names = takers[kind]
        if len(names) == len(most):
            return "any that quantizes weights" + (", if a rule names it" if kind == "router" else "")
        return code(names) if names else "none"

    return table(
        ("kind", "is", "methods that take it"), [(f"`{kind}`", KIND_MEANINGS[kind], taken(kind)) for kind in KINDS]
    )


def methods() -> str:
    """The methods with what they do by default and what of it a policy may set."""
    return table(
        ("method", "weight", "input", "a policy may set", "shapes"),
        [
            (
                f"`{spec.name}`",
                _quantization(spec.weight) or _without_weight(spec),
                _quantization(spec.input),
                " · ".join(
                    filter(
                        None,
                        (
                            _choices("weight", spec.weight, spec.weight_choices),
                            _choices("input", spec.input, spec.input_choices),
                        ),
                    )
                ),
                spec.shapes,
            )
            for spec in METHODS.values()
        ],
    )


HEADING_MEANINGS: Final[Mapping[str, str]] = {
    "What it does": "what is stored and what happens to inputs, in words",
    "When to use it": "for which hardware and layers; what it costs, and what to take instead",
    "Numerics": "formulas of scales, codes and result with their sources, and the error that an element can have",
    "Shapes and alignment": "which shapes it takes; the stored tensors with shapes and dtypes",
    "What runs it": "the operators behind `apply`",
    "Example": "a policy, indented; it has to fit a model",
}


def method_headings() -> str:
    """The headings of a method's docstring."""
    return table(("heading", "says"), [(heading, HEADING_MEANINGS[heading]) for heading in HEADINGS])


def runs() -> str:
    """Which methods run, and which are only decided and counted."""

    def link(name: str) -> str:
        return f"[`{name}`](#{name})" if name in BUILT_IN else f"`{name}`"

    return table(
        ("method", "runs", "is"),
        [(link(spec.name), "yes" if spec.name in BUILT_IN else "not yet", spec.summary) for spec in METHODS.values()],
    )


def method(name: str) -> str:
    """What the file of a method says, as Markdown: what is indented there is code here, the example a policy."""
    said = documentation(name)
    assert said is not None
    parts = [said.sections["What it does"]]
    for heading, text in said.sections.items():
        if heading == "Example":
            parts.append(f"**Example.**\n\n```yaml policy model=Meta-Llama-3-8B\n{textwrap.dedent(text)}\n```")
        elif heading != "What it does":
            first, *rest = _INDENTED.split(text)
            parts.append(f"**{heading}.** {first}".rstrip())
            for code, prose in zip(rest[::2], rest[1::2], strict=True):
                parts += [f"```text\n{textwrap.dedent(code).rstrip()}\n```", *filter(None, [prose.strip()])]
    return "\n" + "\n\n".join(map(_filled, parts)) + "\n\n"


_INDENTED: Final = re.compile(r"\n*((?:^ {4}.*\n?|^\n(?= {4}))+)", re.MULTILINE)
"""Lines of a docstring that are indented, with empty ones between."""


def _filled(part: str) -> str:
    """Prose filled anew, since a heading now stands in front of it; code as it is."""
    if "```" in part:
        return part
    paragraphs = (textwrap.fill(" ".join(each.split()), 120, break_long_words=False) for each in part.split("\n\n"))
    return "\n\n".join(paragraphs)


def _quantization(quantization: Quantization | None) -> str:
    return "" if quantization is None else str(quantization)


def _without_weight(spec: MethodSpec) -> str:
    return {"none": "as it is stored", "dequantize": "the model's dtype"}[spec.name]


def _choices(side: str, base: Quantization | None, choices: Choices) -> str:
    """What may be set to something other than what holds anyway."""
    fields = []
    for name in choices.fields():
        allowed = getattr(choices, name)
        if allowed is True:
            fields.append(f"`{name}`")
        elif any(value != getattr(base, name) for value in allowed):
            fields.append(f"`{name}` {', '.join(map(_shown, allowed))}")
    return f"{side} {'; '.join(fields)}" if fields else ""


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def presets() -> str:
    """The presets, whether each runs, and the first line of what it says of itself."""
    rows = [
        (f"`{name}`", "not yet" if methods_without_code(name) else "yes", preset_comment(name).partition("\n")[0])
        for name in preset_names()
    ]
    return table(("preset", "runs", "is"), rows)


def _roles(roles: Mapping[str, Role]) -> str:
    def read_by(role: Role) -> str:
        return "differs" if role.feeds is None else code(role.feeds)

    return table(
        ("name", "kind", "fused name", "must agree within", "its output is read by"),
        [
            (f"`{name}`", role.kind, code(filter(None, [role.fused])), code(filter(None, [role.group])), read_by(role))
            for name, role in roles.items()
        ],
    )


_MANY: Final = 4
"""Families that are listed one by one; what more of them share is what most have."""


def _rows() -> Iterator[tuple[str, str, str]]:
    """Family, checkpoint template and canonical template of everything that the families' data lists."""
    for family in map(family_named, family_names()):
        for checkpoint, canonical in family.layers.items():
            yield family.name, checkpoint, canonical


def _by_canonical(rows: Iterable[tuple[str, str, str]]) -> dict[str, str]:
    """Canonical name → its spellings, each with the families that have it."""
    found: dict[str, dict[str, list[str]]] = {}
    for family, checkpoint, canonical in rows:
        families = found.setdefault(canonical, {}).setdefault(checkpoint, [])
        if family not in families:
            families.append(family)
    return {
        canonical: ", ".join(_with_families(*item) for item in sorted(names.items(), key=lambda item: -len(item[1])))
        for canonical, names in found.items()
    }


def _with_families(checkpoint: str, families: Sequence[str]) -> str:
    name = f"`{checkpoint.replace('#', 'N')}`"
    return name if len(families) > _MANY else f"{name} ({', '.join(families)})"


def blocks() -> str:
    """Where the families keep the blocks of each tower."""
    found = _by_canonical(
        (family, checkpoint[: checkpoint.index(".#") + 2], canonical.partition(".")[0])
        for family, checkpoint, canonical in _rows()
        if ".#." in canonical
    )
    return table(("tower", "its blocks"), [(f"`{tower}`", found[tower]) for tower in TOWERS if tower in found])


def inside_blocks() -> str:
    """What the families call the layers inside a block, relative to it."""
    found = _by_canonical(
        (family, checkpoint.partition(".#.")[2].replace("#", "E"), canonical.partition(".#.")[2])
        for family, checkpoint, canonical in _rows()
        if ".#." in canonical
    )
    order = [*BLOCK, *PREDICTION]
    return table(
        ("canonical name", "in checkpoints"),
        [(f"`{name}`", found[name]) for name in sorted(found, key=lambda name: (order.index(name), name))],
    )


def outside_blocks() -> str:
    """What the families call the layers outside blocks."""
    found = _by_canonical(row for row in _rows() if "#" not in row[2])
    return table(("canonical name", "in checkpoints"), [(f"`{name}`", found[name]) for name in sorted(found)])


def modules() -> str:
    """Where module names differ from checkpoint names."""
    rows: dict[tuple[str, str], list[str]] = {}
    for family in map(family_named, family_names()):
        for old, new in family.modules:
            rows.setdefault((old, new), []).append(family.name)
    return table(
        ("in checkpoints", "in modules", "of"),
        [(f"`{old}`", f"`{new}`" if new else "(left out)", ", ".join(of)) for (old, new), of in rows.items()],
    )


def files(folder: str) -> str:
    """The files of a part of the package with the first sentence of each."""
    rows = []
    place = ROOT / folder if folder.startswith("kernels") else ROOT / "policyquant" / folder
    for path in sorted(place.glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        if said is not None:
            first = re.split(r"(?<=[.!])\s|\n\n|:\n", said, maxsplit=1)[0]
            rows.append((f"`{path.name}`", " ".join(first.split())))
    return table(("file", "is about"), rows)


def commands() -> str:
    """The commands with links to their sections."""
    return table(("command", "says"), [(f"[`{name}`](#{name})", summary) for name, (_, summary) in COMMANDS.items()])


def options(command: str) -> str:
    """The arguments of a command that others do not have; of none: those that all have."""
    everywhere = CommandParser(prog="", add_help=False)
    add_global_options(everywhere)
    shared = {action.dest for action in _actions(everywhere)}
    actions = _actions(everywhere)
    if command:
        actions = [action for action in _actions(parser_of(command)) if action.dest not in shared]
    return table(
        ("argument", "meaning"), [(_spelled(action), (action.help or "").replace("%%", "%")) for action in actions]
    )


def parser_of(command: str) -> CommandParser:
    """The parser of a command."""
    parser = CommandParser(prog=f"policyquant {command}", add_help=False)
    import_module(COMMANDS[command][0]).add_arguments(parser)
    add_global_options(parser)
    return parser


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.help != argparse.SUPPRESS]


def _spelled(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None and not value:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return f"`{value}`"
    takes_value = action.nargs != 0
    return ", ".join(
        f"`{option} {value or action.dest.upper()}`" if takes_value else f"`{option}`"
        for option in action.option_strings
    )


SECTION: Final = re.compile(r"^## (?P<code>PQ\d{3}): (?P<title>.+)\n\n\*(?P<level>\w+)\.\*", re.MULTILINE)
"""The beginning of a finding's section."""


def findings() -> str:
    """All codes with links to their sections."""
    return table(
        ("code", "level", "finding"),
        [
            (f"[{match['code']}](#{match['code'].lower()})", match["level"].lower(), match["title"])
            for match in SECTION.finditer(read("docs/findings.md"))
        ],
    )


def operators() -> str:
    """The functions of `ops`: what each computes, and what runs it on a GPU, the preferred first."""
    from policyquant.kernels import dispatch, ops

    def runs(name: str) -> str:
        every = dispatch.operators().get(name, ())
        return ", ".join(dict.fromkeys(each.name for each in every if each.name != dispatch.PLAIN))

    def meaning(name: str) -> str:
        text = " ".join((getattr(ops, name).__doc__ or "").strip().split("\n\n")[0].split())
        return re.sub(r"(?<!\w)\[", "\\\\[", text.split(". ")[0].rstrip("."))

    return table(
        ("operator", "gives", "kernels, the preferred first"),
        [(f"`{name}`", meaning(name), runs(name)) for name in ops.__all__],
    )


def pitfalls() -> str:
    """What goes wrong in kernels, and where it is tested."""
    return table(
        ("what goes wrong", "shown by", "held by"),
        [
            (
                each.what,
                each.way + (f": {each.reason}" if each.reason else ""),
                code(name.split("::")[1] for name in each.tests),
            )
            for each in PITFALLS
        ],
    )


GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "kinds": kinds,
    "methods": methods,
    "method-headings": method_headings,
    "method-runs": runs,
    **{f"method-{name}": partial(method, name) for name in BUILT_IN},
    "presets": presets,
    "block": lambda: _roles(BLOCK),
    "prediction": lambda: _roles(PREDICTION),
    "tower": lambda: _roles(TOWER),
    "global": lambda: _roles(GLOBAL),
    "blocks": blocks,
    "inside-blocks": inside_blocks,
    "outside-blocks": outside_blocks,
    "modules": modules,
    "findings": findings,
    "commands": commands,
    "options-everywhere": lambda: options(""),
    **{f"options-{command}": partial(options, command) for command in COMMANDS},
    "files-policy": lambda: files("policy"),
    "files-inventory": lambda: files("inventory"),
    "files-architectures": lambda: files("inventory/architectures"),
    "files-plan": lambda: files("plan"),
    "operators": operators,
    "pitfalls": pitfalls,
    "files-kernels": lambda: files("kernels"),
    "files-kernels-cpu": lambda: files("kernels/cpu"),
    "files-checkpoint": lambda: files("checkpoint"),
    "files-methods": lambda: files("methods"),
    "files-layers": lambda: files("layers"),
    "files-models": lambda: files("models"),
    "files-building": lambda: files("building"),
    "files-cli": lambda: files("cli"),
    "files-cli-run": lambda: files("cli/run"),
}
"""Name → its text as it has to be."""
