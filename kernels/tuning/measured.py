"""What was measured on a GPU: a file of the user's, for GPUs of one name and one version of Triton.

$XDG_CACHE_HOME/policyquant/tuning/<GPU>-sm_90-triton-3.6.0.json holds, beside what its name says, the configurations
that were faster than the shipped ones: {"families": {family: {shape class: {"configuration": …, "seconds": …,
"before": …}}}}. A file that is broken, of another format or of another GPU is left unread with one warning, and so is a
configuration in it that this version of the kernels would not try.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import torch

from policyquant.kernels.cache import cache_directory
from policyquant.kernels.machine import dotted, machine
from policyquant.kernels.triton.launch import INTERPRETED
from policyquant.kernels.tuning import shipped
from policyquant.kernels.tuning.candidates import why_not

VARIABLE: Final = "POLICYQUANT_TUNING"
FORMAT: Final = 1
INTERPRETER: Final = "Triton's interpreter"

Configurations = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Family → class of shapes → configuration."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What configurations are measured on, or the interpreter in its place."""

    name: str
    capability: tuple[int, int]
    triton: str

    @property
    def path(self) -> Path:
        """Where what was measured on it is kept."""
        major, minor = self.capability
        name = f"{self.name}-sm_{major}{minor}-triton-{self.triton}"
        return cache_directory() / "tuning" / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}.json"

    @property
    def _said(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "GPU": self.name,
            "compute capability": dotted(self.capability),
            "triton": self.triton,
        }


def gpu_at_hand(capability: tuple[int, int] | None = None) -> Gpu | None:
    """The GPU in use, or one that is here of this compute capability. None: none, or several that are not alike.

    Without a GPU and with TRITON_INTERPRET=1 it is the interpreter.
    """
    if "triton" not in machine().packages:
        return None
    if torch.cuda.is_available():
        indices = range(torch.cuda.device_count()) if capability is not None else [torch.cuda.current_device()]
        found = {(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i)) for i in indices}
        alike = {each for each in found if capability in (None, each[1])}
        return Gpu(*alike.pop(), _triton_version()) if len(alike) == 1 else None
    if "triton" in machine().on_cpu and capability in (None, INTERPRETED.capability):
        return Gpu(INTERPRETER, INTERPRETED.capability, _triton_version())
    return None


@cache
def _triton_version() -> str:
    try:
        return version("triton")
    except PackageNotFoundError:  # It was installed under another name, as nightly builds are.
        import triton

        return str(triton.__version__)


def is_ignored() -> bool:
    """Whether the environment says that only shipped tables count."""
    return os.environ.get(VARIABLE) == "0"


@cache
def configurations(capability: tuple[int, int]) -> Configurations:
    """What was measured on the GPU of this compute capability that is here."""
    gpu = None if is_ignored() else gpu_at_hand(capability)
    if gpu is None:
        return {}
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    unfit = []
    for family, classes in read(gpu).items():
        for shape_class, entry in classes.items():
            chosen = entry["configuration"]
            reason = _why_not(family, shape_class, chosen, capability)
            if reason is None:
                found.setdefault(family, {})[shape_class] = chosen
            else:
                unfit.append(f"{family}, {shape_class}: {reason}")
    if unfit:
        more = f" (and {len(unfit) - 1} more)" if len(unfit) > 1 else ""
        _warn(gpu.path, f"not all of it is used: {unfit[0]}{more}")
    return found


def _why_not(family: str, shape_class: str, chosen: Mapping[str, Any], capability: tuple[int, int]) -> str | None:
    try:
        present = shipped(family, capability, shape_class)
    except (KeyError, OSError):
        return "there is no such class of shapes"
    return why_not(family, shape_class, present, chosen, capability)


def tiles_in_use(capability: tuple[int, int] | None) -> str:
    """In words, which tables a GPU of this compute capability takes its tiles from; None: the one in use."""
    gpu = gpu_at_hand(capability)
    if gpu is None:
        return "shipped"
    if is_ignored():
        return f"shipped, as {VARIABLE}=0 asks for" if gpu.path.exists() else "shipped"
    count = sum(map(len, configurations(gpu.capability).values()))
    return f"{count} measured here, the others shipped ({gpu.path})" if count else "shipped"


def read(gpu: Gpu) -> dict[str, dict[str, dict[str, Any]]]:
    """Family → class of shapes → entry, of what was measured on this GPU.

    Nothing, and one warning, if the file is broken or another GPU's.
    """
    try:
        found = json.loads(gpu.path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        _warn(gpu.path, f"it is not used: {error}")
        return {}
    reason = _why_foreign(found, gpu)
    if reason is not None:
        _warn(gpu.path, f"it is not used: {reason}")
        return {}
    families: dict[str, dict[str, dict[str, Any]]] = found["families"]
    return families


def _why_foreign(found: Any, gpu: Gpu) -> str | None:
    if not isinstance(found, dict):
        return "it holds no table"
    for name, expected in gpu._said.items():
        if found.get(name) != expected:
            return f"{name} is {found.get(name)!r}, here it is {expected!r}"
    families = found.get("families")
    if not isinstance(families, dict) or not all(isinstance(classes, dict) for classes in families.values()):
        return "its families are no tables"
    for classes in families.values():
        for entry in classes.values():
            if not isinstance(entry, dict) or not isinstance(entry.get("configuration"), dict):
                return "an entry has no configuration"
    return None


def add(gpu: Gpu, family: str, entries: Mapping[str, Mapping[str, Any]]) -> Path:
    """Put entries of a family, by class of shapes, beside what is there, so that the file is always whole.

    Raises:
        OSError: it cannot be written.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What cannot be read is replaced.
        families = read(gpu)
    families.setdefault(family, {}).update({name: dict(entry) for name, entry in entries.items()})
    text = json.dumps({**gpu._said, "families": families}, indent=1, ensure_ascii=False) + "\n"
    gpu.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=gpu.path.parent, suffix=".tmp", encoding="utf-8", delete=False) as file:
        try:
            file.write(text)
            file.close()
            Path(file.name).replace(gpu.path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    return gpu.path


def _warn(path: Path, said: str) -> None:
    warnings.warn(f"{path}: {said}", RuntimeWarning, stacklevel=2)
