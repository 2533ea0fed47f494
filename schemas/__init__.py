"""JSON Schemas of the files that people and other tools write and read."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.abc import Traversable


def schema_file(name: str) -> Traversable:
    """The file of a schema: `policy` or `plan`."""
    return files(__name__).joinpath(f"{name}.schema.json")


@cache
def _read(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(schema_file(name).read_text(encoding="utf-8"))
    return schema


def policy_schema() -> dict[str, Any]:
    """The schema of a policy (draft 2020-12). Shared: do not change it."""
    return _read("policy")


def plan_schema() -> dict[str, Any]:
    """The schema of a plan (draft 2020-12). Shared: do not change it."""
    return _read("plan")
