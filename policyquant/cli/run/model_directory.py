"""The directory that a model is run from: its small files, read and checked before anything large is."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass

from policyquant.cli.opening import open_model
from policyquant.errors import PolicyQuantError, SourceError
from policyquant.inventory.checkpoint_files import CONFIG_FILE
from policyquant.inventory.config_file import parse_config
from policyquant.inventory.echo import path_shown, value_shown
from policyquant.inventory.files import LocalFiles
from policyquant.inventory.json_file import parse_json
from policyquant.inventory.sources import HUB, local_path

TOKENIZER_FILE = "tokenizer.json"
_TAKEN = f"a directory with {CONFIG_FILE}, safetensors and {TOKENIZER_FILE}"


@dataclass(frozen=True)
class ModelDirectory:
    """A model's directory without its weights."""

    path: str
    label: str
    """What to call it in messages."""
    config: Mapping[str, object]
    tokenizer: bytes
    """The content of `tokenizer.json`."""
    tokenizer_config: Mapping[str, object]
    """`tokenizer_config.json`; empty if there is none."""
    chat_template: str | None
    """`chat_template.jinja`, if it is there."""
    ends: frozenset[int]
    """Tokens that end a text."""

    def file(self, name: str) -> str:
        """What to call one of its files in messages."""
        return f"{self.label}/{name}"


def open_directory(name: str) -> ModelDirectory:
    """Read the small files of a model.

    Raises:
        PolicyQuantError: there is no such directory, it lacks a file, or one of them is damaged.
    """
    if name.startswith(HUB):
        raise PolicyQuantError(
            f"{path_shown(name)}: a model is run from files on disk only; download it with"
            f" `hf download {path_shown(name.removeprefix(HUB))}` and give the directory that this prints"
        )
    path, status = local_path(name, _TAKEN)
    if not stat.S_ISDIR(status.st_mode):
        open_model(name)  # Says so if it is a policy, a plan, or damaged.
        raise PolicyQuantError(f"{path_shown(name)}: a model is run from {_TAKEN}")
    files = LocalFiles(path)
    config = _object(files, CONFIG_FILE)
    if config is None:
        raise PolicyQuantError(f"{files.source}: no {CONFIG_FILE}; a model is run from {_TAKEN}")
    tokenizer = files.read(TOKENIZER_FILE)
    if tokenizer is None:
        hint = ""
        if files.read("tokenizer.model") is not None:
            hint = "; tokenizer.model alone is not read: transformers' AutoTokenizer writes one from it"
        raise PolicyQuantError(f"{files.source}: no {TOKENIZER_FILE}; a model is run from {_TAKEN}{hint}")
    template = files.read("chat_template.jinja")
    return ModelDirectory(
        path,
        files.source,
        config,
        tokenizer,
        _object(files, "tokenizer_config.json") or {},
        None if template is None else _text(template, files.label("chat_template.jinja")),
        _ends(files, config),
    )


def _object(files: LocalFiles, name: str) -> Mapping[str, object] | None:
    """A file's JSON object; None if there is no such file."""
    data = files.read(name)
    if data is None:
        return None
    if name == CONFIG_FILE:
        return parse_config(data, files.label(name)).values
    value = parse_json(data, files.label(name), duplicates=[])
    if not isinstance(value, dict):
        raise SourceError(f"{files.label(name)}: expected a JSON object, found {value_shown(value)}")
    return value


def _text(data: bytes, label: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SourceError(f"{label}: not UTF-8") from None


def _ends(files: LocalFiles, config: Mapping[str, object]) -> frozenset[int]:
    """The end tokens that the generation's own config names, and else those of the model's."""
    generation = _object(files, "generation_config.json") or {}
    file = "generation_config.json" if generation.get("eos_token_id") is not None else CONFIG_FILE
    found = generation.get("eos_token_id") if file != CONFIG_FILE else config.get("eos_token_id")
    ends = [] if found is None else found if isinstance(found, list) else [found]
    if not all(type(end) is int for end in ends):
        raise SourceError(
            f"{files.label(file)}: eos_token_id is to be a whole number or a list of them; found {value_shown(found)}"
        )
    return frozenset(ends)
