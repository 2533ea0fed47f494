"""The policies that come with the package, by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from policyquant.errors import PolicyQuantError, did_you_mean

_SUFFIX = ".yaml"


@cache
def preset_names() -> tuple[str, ...]:
    """The names of all presets, sorted."""
    folder = files("policyquant.policies")
    return tuple(sorted(path.name[: -len(_SUFFIX)] for path in folder.iterdir() if path.name.endswith(_SUFFIX)))


def is_preset(name: str) -> bool:
    """Whether a word is a preset's name."""
    return name in preset_names()


def preset_bytes(name: str) -> bytes:
    """A preset's file.

    Raises:
        PolicyQuantError: no preset has this name.
    """
    if not is_preset(name):
        raise PolicyQuantError(
            f"no preset is named {name!r}{did_you_mean(name, preset_names())} (known: {', '.join(preset_names())})"
        )
    return files("policyquant.policies").joinpath(name + _SUFFIX).read_bytes()


def preset_text(name: str) -> str:
    """A preset as it is written.

    Raises:
        PolicyQuantError: no preset has this name.
    """
    return preset_bytes(name).decode("utf-8")


def preset_comment(name: str) -> str:
    """What a preset's leading comment says, without `#`: its first line what it is, the rest when to use it.

    Raises:
        PolicyQuantError: no preset has this name.
    """
    lines = []
    for line in preset_text(name).splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# yaml-language-server:"):
            lines.append(line[1:].removeprefix(" "))
    return "\n".join(lines).strip()
