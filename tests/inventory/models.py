"""The 25 real models of `tests/data/models`, described."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

from policyquant.inventory.architectures.describe import Description, describe
from policyquant.inventory.layers import Indices, LayerSet, Part, StoredModel
from policyquant.inventory.sources import open_source

FOLDER = Path(__file__).parent.parent / "data" / "models"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


@cache
def case(name: str) -> dict[str, Any]:
    """The file as it is."""
    with gzip.open(FOLDER / f"{name}.json.gz") as file:
        return json.load(file)  # type: ignore[no-any-return]


@cache
def stored(name: str) -> StoredModel:
    """The model as read."""
    return open_source(FOLDER / f"{name}.json.gz")


@cache
def described(name: str) -> Description:
    """The model with architecture data applied."""
    return describe(stored(name))


def members(part: Part, layer: LayerSet) -> list[Indices]:
    """Index tuples of a part's members."""
    if not part.repeats:
        return list(layer.indices)
    return [(*indices, number) for indices in layer.indices for number in range(part.repeats)]
