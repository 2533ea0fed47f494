"""Whatever holds a model → `StoredModel`: the one place that tells the kinds of sources apart."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from policyquant.collector import collector_paused
from policyquant.errors import SourceError
from policyquant.inventory.checkpoint_files import CONFIG_FILE, PICKLES, open_files, read_config
from policyquant.inventory.echo import as_text, path_shown, quoted
from policyquant.inventory.files import LocalFiles
from policyquant.inventory.index_alone import open_index
from policyquant.inventory.json_file import file_status, parse_json, read_file
from policyquant.inventory.layers import StoredModel
from policyquant.inventory.safetensors import read_header
from policyquant.inventory.saved import decompressed, inventory_from_json
from policyquant.inventory.stored_model import build_model

HUB: Final = "hf://"
_MOST_COMPARED: Final = 1000
"""Names beside a missing one."""

_TAKEN: Final = (
    "a directory with config.json and safetensors, a .safetensors file, an .index.json, a saved inventory, or"
    " hf://organisation/name"
)


def open_source(source: object, *, revision: str | None = None, token: str | None = None) -> StoredModel:
    """Read what a source stores: names, dtypes, shapes and config. No weight is read and nothing is run.

    Args:
        source: Path of a directory with `config.json` and safetensors shards, of one `.safetensors` file, of an
            `.index.json` (names only), or of a saved inventory; `hf://organisation/name[@revision]`; an `nn.Module`;
            or an iterable of (name, shape, dtype).
        revision: Branch, tag or commit of a Hub repository.
        token: For a private or gated Hub repository; None: `HF_TOKEN`.

    Raises:
        SourceError: there is no such source, or it is damaged. What is merely odd about it is in the model's findings.
    """
    with collector_paused():
        if isinstance(source, (str, os.PathLike)):
            return _from_name(os.fsdecode(source), revision, token)
        return _from_python(source)


def _from_name(path: str, revision: str | None, token: str | None) -> StoredModel:
    if path.startswith(HUB):
        from policyquant.inventory.hub import HubFiles, parse_hub_name

        return open_files(HubFiles(parse_hub_name(path, revision), token=token))
    return _from_path(*local_path(path, _TAKEN))


def local_path(path: str, taken: str) -> tuple[str, os.stat_result]:
    """A path as a person wrote it, with `~` expanded, and what the system knows of it.

    Args:
        path: As written.
        taken: What could be given instead, for messages.

    Raises:
        SourceError: nothing is there, or it is no path.
    """
    if "\0" in path:
        raise SourceError(f"{quoted(path)}: no path has a null character in it")
    if "://" in path:
        raise SourceError(f"{path_shown(path)}: no source of this kind; expected {taken}")
    if path.startswith("~"):
        try:
            path = str(Path(path).expanduser())
        except RuntimeError:
            raise SourceError(f"{path_shown(path)}: there is no such home directory") from None
    status = file_status(path)
    if status is None:
        raise _no_such(path)
    return path, status


def _from_python(source: object) -> StoredModel:
    from policyquant.inventory.module_tree import from_module, is_module

    if is_module(source):
        return from_module(source)
    if isinstance(source, Iterable):
        from policyquant.inventory.tensor_list import from_tensors

        return from_tensors(cast("Iterable[tuple[str, Any, Any]]", source))
    raise SourceError(
        f"found {type(source).__name__}; expected {_TAKEN}, an nn.Module, or (name, shape, dtype) triples"
    )


def _from_path(path: str, status: os.stat_result) -> StoredModel:
    if stat.S_ISDIR(status.st_mode):
        return replace(open_files(LocalFiles(path)), source=as_text(path))
    if path.endswith(".safetensors"):
        return _one_file(path)
    label = path_shown(path)
    if path.endswith(PICKLES):
        raise SourceError(f"{label}: may be a Python pickle, which is never opened; convert it to safetensors")
    if path.endswith(".gguf"):
        raise SourceError(f"{label}: GGUF files are not read; expected {_TAKEN}")
    return _json_file(path, label)


def _one_file(path: str) -> StoredModel:
    header = read_header(path)
    files = LocalFiles(Path(path).parent)
    stem = as_text(Path(path).name.removesuffix(".safetensors"))
    label = path_shown(path)
    name = files.name if stem == "model" else stem
    return replace(build_model(name, label, read_config(files, label), header.tensors), source=as_text(path))


def _json_file(path: str, label: str) -> StoredModel:
    data = decompressed(read_file(path), label)
    if path.endswith(".index.json"):
        return open_index(path, data)
    if not data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        raise SourceError(f"{label}: no model; expected {_TAKEN}")
    value = parse_json(data, label)
    if isinstance(value, dict) and "tensors" not in value and "format" not in value:
        if "weight_map" in value:
            return open_index(path, data)
        if Path(path).name == CONFIG_FILE or "model_type" in value:
            raise SourceError(f"{label}: a config, which lists no layers; expected {_TAKEN}")
    return inventory_from_json(value, label)


def _no_such(path: str) -> SourceError:
    parent = Path(path).parent
    try:
        beside = [entry.name for entry in islice(parent.iterdir(), _MOST_COMPARED)]
    except OSError:
        beside = []
    close = difflib.get_close_matches(Path(path).name, beside, n=1, cutoff=0.6)
    hint = f"; did you mean {quoted(str(parent / close[0]))}?" if close else ""
    if not hint and path.count("/") == 1 and not path.startswith((".", "/", "~")):
        hint = f"; for a repository of the Hugging Face Hub write {HUB}{path_shown(path)}"
    return SourceError(f"{path_shown(path)}: no such file or directory{hint}")
