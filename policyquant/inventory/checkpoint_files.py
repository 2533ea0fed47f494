"""A checkpoint's files → the model they store: `config.json`, then an index and its shards, or one file of weights.

Where an index and its shards disagree, the index decides which tensors the model has, the headers decide what they are,
and each disagreement is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from policyquant.errors import SourceError
from policyquant.findings import Finding
from policyquant.inventory.collapse import Tensor
from policyquant.inventory.config_file import Config, declared_quantization, parse_config, parse_quantization_file
from policyquant.inventory.dtypes import stored_bytes
from policyquant.inventory.echo import name_shown, value_shown
from policyquant.inventory.files import ModelFiles
from policyquant.inventory.index import Index, parse_index
from policyquant.inventory.layers import StoredModel
from policyquant.inventory.safetensors import Header
from policyquant.inventory.spans import listed
from policyquant.inventory.stored_model import build_model

SINGLE_FILE: Final = "model.safetensors"
INDEX_FILE: Final = "model.safetensors.index.json"
CONFIG_FILE: Final = "config.json"
QUANTIZATION_FILE: Final = "hf_quant_config.json"
"""ModelOpt's, which says what other tools write into `config.json`."""

_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,9})-of-(?P<count>\d{1,9})\.safetensors")
PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Ends of names of files that may run code when they are opened, and never are."""


class Selection(NamedTuple):
    """Which tensors a checkpoint has, and the file that each is read from."""

    tensors: Sequence[Tensor]
    findings: list[Finding]
    headers: dict[str, Header]
    """File name → header, of every file that is read."""
    holders: dict[str, str]
    """Tensor name → name of the file that it is read from; empty if there is one file. May have more names than
    `tensors`."""

    def holder(self, name: str) -> str:
        """The file that one of the tensors is read from."""
        return self.holders[name] if self.holders else next(iter(self.headers))


def open_files(files: ModelFiles) -> StoredModel:
    """The model in a directory or a repository.

    Raises:
        SourceError: no checkpoint is there, or it is damaged or incomplete.
    """
    config = read_config(files)
    # Sliced, since the headers of a large model are not to stay in memory while it is built.
    tensors, findings = select_tensors(files)[:2]
    return build_model(files.name, files.source, config, tensors, findings)


def select_tensors(files: ModelFiles, index_file: str | None = None) -> Selection:
    """The tensors of the model in a directory or a repository, and where each lies.

    Args:
        files: where they lie.
        index_file: the index that decides; None: the one that is there, if any.

    Raises:
        SourceError: no checkpoint is there, or it is damaged or incomplete.
    """
    names = files.names()
    if index_file is None:
        index_file = _index_file(files, names)
    if index_file is not None:
        data = files.read(index_file)
        if data is not None:
            return _sharded(files, parse_index(data, files.label(index_file)), index_file, names)
    if names is None:
        header = files.headers([SINGLE_FILE])[SINGLE_FILE]
        if header is None:
            raise SourceError(f"{files.source}: has neither {INDEX_FILE} nor {SINGLE_FILE}")
        return Selection(header.tensors, [], {SINGLE_FILE: header}, {})
    weights = [name for name in names if name.endswith(".safetensors")]
    if not weights:
        raise _no_weights(files, names)
    if SINGLE_FILE in weights or len(weights) == 1:
        chosen = SINGLE_FILE if SINGLE_FILE in weights else weights[0]
        headers = _present(files, [chosen])
        findings = [_unreferenced(files, name, chosen) for name in weights if name != chosen]
        return Selection(headers[chosen].tensors, findings, headers, {})
    return _numbered(files, weights)


def read_config(files: ModelFiles, beside: str = "") -> Config:
    """The values of `config.json` with what there is to say about it; without one, empty values and a note.

    What ModelOpt's file says about quantization is among them, if `config.json` itself says nothing.

    Args:
        files: where it lies.
        beside: the one file that was asked for, if not all of them were.

    Raises:
        SourceError: one of the files is no JSON object.
    """
    config = _config(files, beside)
    if not declared_quantization(config.values):
        data = files.read(QUANTIZATION_FILE)
        if data is not None:
            said = parse_quantization_file(data, files.label(QUANTIZATION_FILE))
            return config._replace(values={**config.values, "quantization_config": said})
    return config


def _config(files: ModelFiles, beside: str) -> Config:
    data = files.read(CONFIG_FILE)
    if data is None:
        missing = f"{beside}: no {CONFIG_FILE} beside it" if beside else f"{files.source}: no {CONFIG_FILE}"
        finding = Finding("PQ434", "note", f"{missing}; the architecture is told from the tensors' names alone")
        return Config({}, (finding,))
    return parse_config(data, files.label(CONFIG_FILE))


def _index_file(files: ModelFiles, names: Sequence[str] | None) -> str | None:
    if names is None or INDEX_FILE in names:
        return INDEX_FILE
    found = [name for name in names if name.endswith(".safetensors.index.json")]
    if len(found) > 1:
        raise SourceError(f"{files.source}: several indices, none of them {INDEX_FILE}: {listed(found)}; name one")
    return found[0] if found else None


def _no_weights(files: ModelFiles, names: Sequence[str]) -> SourceError:
    pickles = [name for name in names if name.endswith(PICKLES)]
    if pickles:
        return SourceError(
            f"{files.source}: no safetensors, only {listed(pickles)}, which may be pickles and are never opened;"
            " convert them to safetensors"
        )
    return SourceError(f"{files.source}: no .safetensors file and no {INDEX_FILE} in this directory")


def _present(files: ModelFiles, wanted: Sequence[str]) -> dict[str, Header]:
    """Headers of files that must be there."""
    headers = files.headers(wanted)
    found = {name: header for name, header in headers.items() if header is not None}
    if len(found) < len(headers):
        missing = [name for name in headers if name not in found]
        raise SourceError(
            f"{files.source}: {len(missing)} of {len(headers)} shards missing: {listed(missing)};"
            " an incomplete download?"
        )
    return found


def _sharded(files: ModelFiles, index: Index, index_file: str, names: Sequence[str] | None) -> Selection:
    headers = _present(files, index.shards())
    held = {shard: {tensor[0]: tensor for tensor in header.tensors} for shard, header in headers.items()}
    tensors: list[Tensor] = []
    astray: list[str] = []
    for name, shard in index.weight_map.items():
        tensor = held[shard].get(name)
        if tensor is None:
            astray.append(name)
        else:
            tensors.append(tensor)
    disagreements = _Disagreements()
    moved: dict[str, str] = {}
    for name in astray:
        claimed = index.weight_map[name]
        found = next((shard for shard, holds in held.items() if name in holds), None)
        if found is None:
            disagreements.add("PQ404", f"claimed in {name_shown(claimed)}, found in no shard", name)
        else:
            tensors.append(held[found][name])
            moved[name] = found
            disagreements.add("PQ403", f"claimed in {name_shown(claimed)}, found in {name_shown(found)}", name)
    missing = set(astray)
    for shard, holds in held.items():
        for name in holds:
            listed = index.weight_map.get(name)
            if listed is None:
                disagreements.add(
                    "PQ405", f"in {name_shown(shard)}, not listed in {name_shown(index_file)}; left out", name
                )
            elif listed != shard and name not in missing:
                disagreements.add(
                    "PQ406", f"taken from {name_shown(listed)}, as indexed; a duplicate is in {name_shown(shard)}", name
                )
    findings = [*disagreements.findings(), *_total_size(index, index_file, tensors)]
    findings += [
        _unreferenced(files, name, index_file)
        for name in names or ()
        if name.endswith(".safetensors") and name not in headers
    ]
    return Selection(tensors, findings, headers, index.weight_map | moved if moved else index.weight_map)


class _Disagreements:
    """Tensors about which an index and its shards disagree. Those of one kind make one finding: a wrong index is often
    wrong about thousands."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, str], list[str]] = {}

    def add(self, code: str, what: str, tensor: str) -> None:
        self._tensors.setdefault((code, what), []).append(tensor)

    def findings(self) -> list[Finding]:
        return [
            Finding(
                code,
                "error" if code == "PQ404" else "warning",
                f"{listed(tensors)}: {what}",
                tuple(dict.fromkeys(tensor.rpartition(".")[0] for tensor in tensors)),
            )
            for (code, what), tensors in self._tensors.items()
        ]


def _total_size(index: Index, index_file: str, tensors: Iterable[Tensor]) -> list[Finding]:
    if index.total_size is None:
        return []
    actual = sum(stored_bytes(dtype, shape) or 0 for _, dtype, shape in tensors)
    if index.total_size == actual:
        return []
    return [
        Finding(
            "PQ401",
            "warning",
            f"{name_shown(index_file)}: metadata.total_size {value_shown(index.total_size)}, actual {actual}",
        )
    ]


def _numbered(files: ModelFiles, weights: Sequence[str]) -> Selection:
    """Shards without an index, whose names tell how many there are."""
    matches = [_NUMBERED.fullmatch(name) for name in weights]
    series = {(match["stem"], match["count"]) for match in matches if match}
    if len(series) != 1 or not all(matches):
        raise SourceError(
            f"{files.source}: {len(weights)} safetensors files, no index, and none named {SINGLE_FILE}:"
            f" {listed(weights)}; name one of them"
        )
    ((stem, count),) = series
    if int(count) > 100_000:
        raise SourceError(f"{files.source}: {name_shown(weights[0])} says that there are {int(count):,} shards")
    wanted = [f"{stem}-{number:0{len(count)}}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
    tensors: list[Tensor] = []
    holder: dict[str, str] = {}
    disagreements = _Disagreements()
    headers = _present(files, wanted)
    for shard, header in headers.items():
        for tensor in header.tensors:
            first = holder.setdefault(tensor[0], shard)
            if first == shard:
                tensors.append(tensor)
            else:
                disagreements.add(
                    "PQ406", f"taken from {name_shown(first)}; a duplicate is in {name_shown(shard)}", tensor[0]
                )
    note = f"{files.source}: no index; all {len(wanted)} shards of {name_shown(stem)} are read as one model"
    return Selection(tensors, [Finding("PQ435", "note", note), *disagreements.findings()], headers, holder)


def _unreferenced(files: ModelFiles, name: str, by: str) -> Finding:
    return Finding("PQ402", "warning", f"{files.label(name)} is unreferenced: {name_shown(by)} is read instead")
