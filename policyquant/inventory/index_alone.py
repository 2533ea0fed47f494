"""An index without its shards: the cheapest source, with names and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from policyquant.findings import Finding
from policyquant.inventory.checkpoint_files import read_config
from policyquant.inventory.echo import as_text, path_shown
from policyquant.inventory.files import LocalFiles
from policyquant.inventory.index import parse_index
from policyquant.inventory.json_file import read_file
from policyquant.inventory.layers import StoredModel
from policyquant.inventory.stored_model import build_model


def open_index(path: str, data: bytes | None = None) -> StoredModel:
    """The model that an index names; dtypes and shapes are None. A `config.json` beside it is read.

    Raises:
        SourceError: the file is missing or no index.
    """
    label = path_shown(path)
    index = parse_index(read_file(path) if data is None else data, label)
    files = LocalFiles(Path(path).parent)
    note = Finding(
        "PQ437",
        "note",
        f"{label}: an index tells names only: dtypes, shapes and sizes are unknown. Open the directory to read them"
        " from its shards",
    )
    tensors = ((name, None, None) for name in index.weight_map)
    return replace(build_model(files.name, label, read_config(files), tensors, [note]), source=as_text(path))
