"""What an argument is, told by its name and first bytes: so that arguments in the wrong order are told as such."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from policyquant.errors import SourceError

Given = Literal["model", "plan", "policy"]

_TEXT_OF_POLICIES: Final = (".yaml", ".yml")
_COMPRESSED: Final = b"\x1f\x8b"
_MODELS_KEYS: Final = (b'"policyquant-inventory"', b'"weight_map"', b'"tensors"')
_BEGINNING: Final = 2**16


def what_is(word: str) -> Given | None:
    """What somebody who wrote this word has at hand; None if nothing tells."""
    if word.startswith("hf://") or word.endswith((".safetensors", ".index.json")):
        return "model"
    if _is_preset(word):
        return "policy"
    path = Path(word)
    try:
        if path.is_dir():
            return "model"
        if not path.is_file():
            return None
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
    except (OSError, ValueError):
        return None
    from policyquant.plan.read import is_plan

    if beginning.startswith(_COMPRESSED) or beginning.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        if is_plan(word):
            return "plan"
        if beginning.startswith(_COMPRESSED) or any(key in beginning for key in _MODELS_KEYS):
            return "model"
        if word.endswith(".json") and path.name != "config.json":
            return "policy" if b'"layers"' in beginning or b'"extends"' in beginning else None
        return None
    return "policy" if word.endswith(_TEXT_OF_POLICIES) else None


def policy_in(model: str) -> str | None:
    """The `config.json` of a directory, if it holds a policy of its own."""
    from policyquant.inventory.json_file import parse_json, read_file

    path = str(Path(model) / "config.json")
    try:
        if not Path(path).is_file():
            return None
        config = parse_json(read_file(path), path)
    except (OSError, ValueError, SourceError):
        return None
    declared = config.get("quantization_config") if isinstance(config, dict) else None
    return path if isinstance(declared, dict) and declared.get("quant_method") == "policyquant" else None


def _is_preset(word: str) -> bool:
    from policyquant.policy.presets import is_preset

    return is_preset(word)
