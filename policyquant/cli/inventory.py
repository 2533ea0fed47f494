"""`policyquant inventory`: the layers of a model, as policies see them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping

from policyquant.cli import output
from policyquant.cli.arguments import add_model, add_table_format, example
from policyquant.cli.findings_text import print_findings
from policyquant.cli.layer_table import dtype_text, stored_text
from policyquant.cli.opening import open_model
from policyquant.cli.sizes_text import UNKNOWN_SIZES, bits_text, bytes_text, count_text, parameters_text, shape_text
from policyquant.cli.status import Status
from policyquant.cli.tables import Column, Table, print_table
from policyquant.inventory.inventory import Inventory
from policyquant.inventory.layers import Indices, LayerSet, NameForm, Part
from policyquant.inventory.spans import counted_spans, spans

_COLUMNS = (
    Column("name", fold=True, code=True),
    Column("layers", right=True),
    Column("kind", style="cyan"),
    Column("shape", style="dim"),
    Column("dtype", style="dim"),
    Column("stored as", fold=True),
    Column("canonical name", fold=True, code=True),
    Column("parts", fold=True, code=True),
    Column("fused group", fold=True, code=True, style="dim"),
    Column("tied to", fold=True, code=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "List the layers of a model with their kinds, shapes, stored formats, canonical names and fused groups. Only"
        " headers are read.\n--save writes what was read to a file that every command takes in place of the model."
    )
    parser.epilog = example(
        "inventory path/to/model", "inventory hf://org/name --save model.json.gz", "inventory model.json.gz --json"
    )
    add_model(parser)
    parser.add_argument("--save", metavar="FILE", help="write the inventory to a file, compressed if it ends in .gz")
    parser.add_argument("--all", action="store_true", help="list each layer on a line of its own")
    add_table_format(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print or save the inventory."""
    inventory = open_model(arguments.model)
    if arguments.save is not None:
        inventory.save(arguments.save)
        output.note(f"{arguments.save}: saved {count_text(len(inventory), 'layer')} of {inventory.name}")
    if arguments.format == "json":
        output.write_json(_json(inventory))
    elif arguments.save is None:
        _print(inventory, arguments)
    print_findings(inventory.findings)
    failing = ("error", "warning") if arguments.strict else ("error",)
    return Status.NO if any(finding.level in failing for finding in inventory.findings) else Status.FINE


def _print(inventory: Inventory, arguments: argparse.Namespace) -> None:
    markdown = arguments.format == "markdown"
    family = f"family {inventory.family}" if inventory.family else "no known family, common spellings"
    facts = ", ".join(filter(None, (inventory.architecture, family)))
    title = f"{inventory.name or inventory.source} ({facts})"
    output.write(f"# {title}\n\n" if markdown else f"{title}\n\n")
    rows = [row for layer in inventory.sets for row in _rows(layer, arguments.all)]
    print_table(Table(_COLUMNS, rows).without_empty_columns(), arguments.format)
    output.write(f"\n{_totals(inventory)}\n")


def _rows(layer: LayerSet, each: bool) -> Iterator[tuple[str, ...]]:
    form = layer.names["checkpoint"][0]
    canonical = _canonical(layer)
    if each:
        named = [(form.fill(i), "", [i]) for i in layer.indices]
    else:
        counted = counted_spans(form, layer.indices)
        # With several spans the canonical names of each are no longer at hand; there all of them stand in each line.
        named = [(text, f"{number:,}", list(layer.indices)) for text, number in counted]
    for name, number, indices in named:
        yield (
            name,
            number,
            layer.kind,
            shape_text(layer.shape),
            dtype_text(layer.dtype or ""),
            "" if layer.stored is None else f"{layer.stored.method} ({stored_text(layer.stored.description)})",
            _filled(canonical, indices),
            ", ".join(filter(None, (_part_text(part) for part in layer.parts))) if len(layer.parts) > 1 else "",
            _group(layer),
            layer.tied_to or "",
        )


def _canonical(layer: LayerSet) -> NameForm | None:
    forms = layer.names.get("canonical") or layer.parts[0].names.get("canonical") or ()
    return next((form for form in forms if max((-1, *form.positions)) < len(layer.indices[0])), None)


def _filled(form: NameForm | None, indices: list[Indices]) -> str:
    return "" if form is None else ", ".join(spans(form, indices))


def _part_text(part: Part) -> str:
    name = part.names["checkpoint"][0].template.rpartition(".")[2]
    return f"{part.repeats} x {name}" if part.repeats else name


def _group(layer: LayerSet) -> str:
    labels = dict.fromkeys(part.group.label for part in layer.parts if part.group is not None)
    return ", ".join(label.replace("#", "N") for label in labels)


def _totals(inventory: Inventory) -> str:
    counts: dict[str, int] = {}
    for layer in inventory.sets:
        counts[layer.kind] = counts.get(layer.kind, 0) + len(layer.indices)
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    stored = [layer for layer in inventory.sets if layer.tied_to is None]
    parameters = _sum([(layer.parameters, len(layer.indices)) for layer in stored])
    size = _sum([(layer.bytes, len(layer.indices)) for layer in stored])
    if parameters is None and size is None:
        sizes = f"sizes {UNKNOWN_SIZES}"
    else:
        bits = 8 * size / parameters if size is not None and parameters else None
        sizes = f"{parameters_text(parameters)} parameters, {bytes_text(size)}, {bits_text(bits)} bits per weight"
    return f"{count_text(len(inventory), 'layer')}: {kinds}\n{sizes}"


def _sum(values: list[tuple[int | None, int]]) -> int | None:
    known = [value * times for value, times in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _json(inventory: Inventory) -> Iterator[str]:
    head = {
        "name": inventory.name,
        "architecture": inventory.architecture,
        "family": inventory.family,
        "source": inventory.source,
        "count": len(inventory),
    }
    yield json.dumps(head, ensure_ascii=False, indent=1)[:-2] + ',\n "layers": ['
    separator = "\n  "
    for layer in inventory.sets:
        for indices in layer.indices:
            yield separator + json.dumps(_layer_json(layer, indices), ensure_ascii=False)
            separator = ",\n  "
    tail = {"findings": [finding._asdict() for finding in inventory.findings]}
    yield "\n ],\n" + json.dumps(tail, ensure_ascii=False, indent=1)[2:] + "\n"


def _layer_json(layer: LayerSet, indices: Indices) -> Mapping[str, object]:
    return {
        "name": layer.name(indices),
        "kind": layer.kind,
        "shape": layer.shape,
        "dtype": layer.dtype,
        "stored": None if layer.stored is None else layer.stored._asdict(),
        "names": {
            namespace: [form.fill(indices) for form in forms if max((-1, *form.positions)) < len(indices)]
            for namespace, forms in layer.names.items()
        },
        "group": _group(layer) or None,
        "parts": [
            {
                "name": part.names["checkpoint"][0].template.rpartition(".")[2],
                "shape": part.shape,
                "count": part.repeats or 1,
            }
            for part in layer.parts
            if len(layer.parts) > 1 or part.repeats
        ],
        "tied_to": layer.tied_to,
        "parameters": layer.parameters,
        "bytes": layer.bytes,
    }
