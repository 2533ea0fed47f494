"""`policyquant explain`: why one layer is as it is."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from policyquant.cli import output, terminal
from policyquant.cli.arguments import add_json, add_model, add_policy, example
from policyquant.cli.layer_table import dtype_text, quantization_text, stored_text
from policyquant.cli.opening import resolve_model
from policyquant.cli.output import one_line
from policyquant.cli.sizes_text import bytes_text, count_text, shape_text
from policyquant.cli.status import Status
from policyquant.cli.tables import Column, Table, print_table, wrapped
from policyquant.errors import PolicyQuantError
from policyquant.inventory.collapse import template_of
from policyquant.inventory.spans import escape
from policyquant.plan.context import Context
from policyquant.plan.explain import Explanation, Outcome, PartExplanation, RuleOutcome
from policyquant.plan.plan import Plan
from policyquant.plan.rows import LayerPlan
from policyquant.plan.select import select
from policyquant.plan.suggest import suggestion
from policyquant.policy.patterns import Pattern, PatternError

_MARKS: Final[dict[Outcome, str]] = {
    "decides": "=>",
    "sets": "+",
    "overruled": "-",
    "passes over": "~",
    "stopped by protection": "x",
    "does not reach": "",
}
"""What a rule did, at a glance."""

_ANY_WIDTH: Final = 1_000_000
"""Of a file or a pipe."""

_MOST_RULES_APART: Final = 20
"""Rules that do not reach the layer are listed, unless there are more of them than this."""

_COLUMNS: Final = (
    Column("   rule", fold=True, code=True),
    Column("says", fold=True, code=True),
    Column("outcome", fold=True),
    Column("by", style="dim"),
    Column("at", fold=True, style="dim"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "Say all about one layer under a policy: what it is, its names, what is decided, what it belongs to, and every"
        " rule\nin order with what it did: => decides, + sets something, - is overruled, ~ passes over, x is stopped by"
        " protection."
    )
    parser.epilog = example("explain path/to/model model.layers.0.mlp.down_proj --policy policy.yaml")
    add_model(parser)
    parser.add_argument("name", metavar="NAME", help="a layer's name, in any namespace (checkpoint, module, canonical)")
    add_policy(parser, required=False)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    plan = resolve_model(arguments.model, arguments.policy, "explain")
    try:
        explanation = plan.explain(arguments.name)
    except KeyError as error:
        raise PolicyQuantError(_no_layer(plan, arguments.name, str(error.args[0]))) from None
    if arguments.json:
        output.write_json([json.dumps(_json(plan, explanation), ensure_ascii=False, indent=1), "\n"])
    else:
        _print(explanation)
    return Status.FINE


def _no_layer(plan: Plan, name: str, message: str) -> str:
    """Why a name is no layer's, as far as it can be told."""
    try:
        as_name, as_pattern = Pattern.compile(escape(name)), Pattern.compile(name)
    except PatternError:
        return message
    for pattern, what in ((as_name, "a module or a fused name"), (as_pattern, "a pattern")):
        rows = select(plan, pattern)
        if rows:
            count = count_text(sum(row.count for row in rows), "layer")
            example = rows[0].form.fill(rows[0].indices[0])
            return f"{name!r} is {what} that stands for {count}; explain takes one, such as {example!r}"
    context = plan.context
    if context is None:
        return message
    layer, _, last = name.rpartition(".")
    if layer in plan and last in _tensors(context, plan[layer].name):
        return f"{name!r} is a tensor; the layer is {layer!r}"
    return f"no layer is named {name!r}{suggestion(context, as_name)}"


def _tensors(context: Context, name: str) -> set[str]:
    """Last parts of the names of a layer's tensors."""
    template, _ = template_of(name)
    sets = (layer for layer in context.units_of_layer if layer.name_template == template)
    return {tensor.suffix for layer in sets for tensor in layer.tensors}


def _print(explanation: Explanation) -> None:
    output.write(f"{one_line(explanation.layer.name)}\n\n")
    pairs = [(title, one_line(text)) for title, text in _facts(explanation) if text]
    width = max(len(title) for title, _ in pairs)
    room = max((terminal.width() or _ANY_WIDTH) - width - 2, 20)
    for title, text in pairs:
        first, *others = wrapped(text, room)
        output.write(f"{title.ljust(width)}  {first}\n" + "".join(f"{' ' * (width + 2)}{line}\n" for line in others))
    alike: dict[tuple[RuleOutcome, ...], list[PartExplanation]] = {}
    for part in explanation.parts:
        alike.setdefault(part.rules, []).append(part)
    for rules, parts in alike.items():
        names = ", ".join(one_line(part.name) for part in parts)
        output.write(
            f"\nrules, the last that reaches it wins{f' ({names})' if len(explanation.parts) > 1 else ''}:\n\n"
        )
        _print_rules(rules)


def _facts(explanation: Explanation) -> Iterator[tuple[str, str]]:
    layer = explanation.layer
    note = " (protected: only a rule that names it quantizes it or lowers its precision)"
    yield "kind", layer.kind + (note if explanation.protected else "")
    yield "shape", " ".join(filter(None, (shape_text(layer.shape), dtype_text(layer.dtype or ""))))
    yield "stored as", stored_text(layer.stored or "")
    for namespace in ("checkpoint", "module", "canonical"):
        names = dict.fromkeys(name for part in explanation.parts for name in part.names.get(namespace, ()))
        yield f"{namespace} names", ", ".join(names)
    if len(explanation.parts) > 1:
        yield "parts", ", ".join(part.name for part in explanation.parts)
    yield "decision", _decision(layer)
    yield "decided by", _decided_by(layer)
    yield "bytes", f"{bytes_text(layer.bytes_before)} -> {bytes_text(layer.bytes_after)}"
    if layer.group is not None and explanation.group:
        yield "fused group", f"{layer.group}: {', '.join(explanation.group)}"
    yield "tied to", explanation.tied_to or ""
    yield "tied by", ", ".join(explanation.tied_by)
    yield "feeds", "not known" if explanation.feeds is None else ", ".join(explanation.feeds)
    yield "fed by", ", ".join(explanation.fed_by)


def _decision(layer: LayerPlan) -> str:
    scheme = layer.scheme
    sides = (
        ("weight", scheme.weight),
        ("input", scheme.input),
        ("output", scheme.output),
        ("KV cache", scheme.kv_cache),
    )
    return "; ".join([scheme.method, *(f"{side} {quantization_text(value)}" for side, value in sides if value)])


def _decided_by(layer: LayerPlan) -> str:
    rule = "" if layer.rule is None else f"{layer.rule.pattern} at {layer.rule.place}"
    if layer.decided_by == "rule":
        return rule
    words = {
        "default": "the default",
        "tie": "the layer that it is tied to",
        "protection": "protection, which stopped every rule that would quantize it",
        "nothing": "nothing: no rule and no default",
    }
    return words[layer.decided_by] + (f" ({rule})" if rule else "")


def _print_rules(rules: Sequence[RuleOutcome]) -> None:
    apart = [rule for rule in rules if rule.outcome == "does not reach"]
    hidden = len(apart) > _MOST_RULES_APART and not output.settings.verbose
    shown = [rule for rule in rules if not hidden or rule.outcome != "does not reach"]
    if shown:
        print_table(Table(_COLUMNS, [_rule_row(rule) for rule in shown]).without_empty_columns())
    elif not hidden:
        output.write("none\n")
    if hidden:
        output.write(f"\n{count_text(len(apart), 'more rule')} not reaching it (--verbose lists them)\n")


def _rule_row(rule: RuleOutcome) -> tuple[str, ...]:
    outcome = f"{rule.outcome}: {rule.reason}" if rule.reason else rule.outcome
    namespace = "" if rule.namespace is None else rule.namespace
    return (f"{_MARKS[rule.outcome]:2} {rule.text}", rule.says, outcome, namespace, rule.place)


def _json(plan: Plan, explanation: Explanation) -> dict[str, object]:
    layer = explanation.layer
    template, indices = template_of(layer.name)
    row = next(row for row in plan.rows if row.form.template == template and indices in row.members)
    text = next(line for line, each in zip(row.as_json_lines(), row.indices, strict=True) if each == indices)
    return {
        "layer": json.loads(text),
        "protected": explanation.protected,
        "parts": [asdict(part) for part in explanation.parts],
        "group": explanation.group,
        "tied_to": explanation.tied_to,
        "tied_by": explanation.tied_by,
        "feeds": explanation.feeds,
        "fed_by": explanation.fed_by,
    }
