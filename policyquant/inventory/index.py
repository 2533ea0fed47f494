"""The index of a sharded checkpoint (`model.safetensors.index.json`): which shard holds which tensor."""

from __future__ import annotations

from typing import NamedTuple

from policyquant.errors import SourceError
from policyquant.inventory.echo import quoted, value_shown
from policyquant.inventory.json_file import parse_json


class Index(NamedTuple):
    """An index as written."""

    weight_map: dict[str, str]
    """Tensor name → name of the shard that holds it, in the order of the file."""
    total_size: object
    """`metadata.total_size`: bytes of all tensors, an integer in a sound file; None if it is not given."""

    def shards(self) -> list[str]:
        """The shards' names, in order."""
        return sorted(set(self.weight_map.values()))


def parse_index(data: bytes, file: str) -> Index:
    """Check and take apart an index.

    Raises:
        SourceError: it is no index, or a shard's name is no plain file name.
    """
    value = parse_json(data, file)
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(weight_map, dict):
        raise SourceError(f"{file}: no index: expected an object with an object `weight_map` in it")
    if not weight_map:
        raise SourceError(f"{file}: its weight_map is empty")
    if set(map(type, weight_map.values())) != {str}:
        name, shard = next((n, s) for n, s in weight_map.items() if type(s) is not str)
        raise SourceError(
            f"{file}: weight_map gives {value_shown(shard)} for {quoted(name)}; expected a shard's file name"
        )
    for shard in set(weight_map.values()):
        _check_shard_name(shard, file)
    metadata = value.get("metadata")
    return Index(weight_map, metadata.get("total_size") if isinstance(metadata, dict) else None)


def _check_shard_name(shard: str, file: str) -> None:
    if shard in ("", ".", "..") or any(mark in shard for mark in "/\\:\0"):
        raise SourceError(
            f"{file}: the shard name {quoted(shard)} leaves the index's directory or is no plain file name; refused"
        )
    if not shard.endswith(".safetensors"):
        raise SourceError(f"{file}: shard {quoted(shard)} is no .safetensors file; other formats are never opened")
