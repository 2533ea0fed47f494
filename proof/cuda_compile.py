"""The machine code of the CUDA library: its sources compiled by nvcc for GPUs that are not there, kernel by kernel."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from policyquant.kernels.cuda import build, library

CACHE = Path(__file__).parents[1] / "build" / "proof"

_SECTION = re.compile(r"^\.text\.(\w+):$", re.MULTILINE)
_OWN = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_(\w+?)_cu_[0-9a-f]{8}")
_USAGE = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Kernel:
    """One instance of a kernel's template.

    Args:
        sass: what nvdisasm prints of it.
        registers: of a thread.
        stack: bytes of a thread, spilled registers included.
        shared: bytes of a block.
    """

    sass: str
    registers: int
    stack: int
    shared: int


def compiled(stem: str, architecture: int) -> dict[str, Kernel]:
    """Every kernel of a source by its name, such as "encode_groups<e4m3fn, Stored<bfloat16, true>>".

    It is taken from the cache if it was compiled before from the same sources by the same nvcc.

    Raises:
        policyquant.kernels.cuda.build.BuildError: nvcc is not found, or it fails.
    """
    nvcc = build.find_nvcc()
    parts = (*library.FLAGS, version(), library.TORCH_VERSION, stem, str(architecture), _SECTION.pattern)
    found = hashlib.sha256(" ".join(parts).encode())
    for path in (library.SOURCES / f"{stem}.cu", *sorted(library.SOURCES.glob("*.cuh"))):
        found.update(path.read_bytes())
    file = CACHE / f"cuda-{stem}-{architecture}-{found.hexdigest()[:24]}.json"
    if not file.exists():
        with tempfile.TemporaryDirectory() as folder:
            source = library.SOURCES / f"{stem}.cu"
            cubin = build.compiled(nvcc, source, Path(folder), [str(architecture)], "-cubin")
            kernels = {name: asdict(kernel) for name, kernel in _read(cubin)}
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(kernels), encoding="utf-8")
        partial.replace(file)
    return {name: Kernel(**kernel) for name, kernel in json.loads(file.read_text(encoding="utf-8")).items()}


@cache
def version() -> str:
    """Of nvcc, such as "13.0.88"."""
    said = subprocess.run([build.find_nvcc(), "--version"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"V(\d[\d.]+)", said)
    return release[1] if release else said


def stems() -> list[str]:
    """Names of the sources that are compiled, without the suffix."""
    return [path.stem for path in library.sources()]


@dataclass(frozen=True, slots=True)
class Library:
    """The machine code in a library that is built, so that what is proven is what runs, and nothing is compiled twice.

    Raises:
        policyquant.kernels.cuda.build.BuildError: it is not a library of the sources that are there.
    """

    path: Path

    def __post_init__(self) -> None:
        if self.path.name != library.path().name:
            raise build.BuildError(f"{self.path} is not built of the sources that are there, {library.path().name} is")

    def compiled(self, stem: str, architecture: int) -> dict[str, Kernel]:
        """As the function of this name."""
        with tempfile.TemporaryDirectory() as folder:
            _tool("cuobjdump", "-xelf", f"sm_{architecture}.cubin", str(self.path.absolute()), folder=folder)
            # They are numbered as they were linked, which is the order of the sources.
            cubins = sorted(Path(folder).glob("*.cubin"), key=lambda path: int(path.name.split(".")[-3]))
            if len(cubins) != len(stems()):
                raise build.BuildError(f"{self.path} has {len(cubins)} parts for {architecture}, not {len(stems())}")
            cubin = cubins[stems().index(stem)]
            # Kernels that no header shares have their source in their names.
            if not {stem}.issuperset(_OWN.findall(cubin.read_bytes().decode("latin-1"))):
                raise build.BuildError(f"{self.path}: {cubin.name} is not made of {stem}.cu")
            return dict(_read(cubin))


def _read(cubin: Path) -> Iterator[tuple[str, Kernel]]:
    sections = _SECTION.split(_tool("nvdisasm", "-c", str(cubin)))[1:]
    code = dict(zip(sections[::2], sections[1::2], strict=True))
    usage = _USAGE.findall(_tool("cuobjdump", "-res-usage", str(cubin)))
    names = _demangled([name for name, *_ in usage])
    for (mangled, registers, stack, shared, local), name in zip(usage, names, strict=True):
        # The label is that of the whole listing, which the reader of machine code expects.
        sass = f".text.{mangled}:{code[mangled]}"
        yield name, Kernel(sass, int(registers), int(stack) + int(local), int(shared))


def _demangled(names: list[str]) -> list[str]:
    said = subprocess.run(["c++filt"], input="\n".join(names), check=True, capture_output=True, text=True).stdout
    return [_short(name) for name in said.splitlines()]


def _short(name: str) -> str:
    """A kernel's name with its template's arguments, enumerators by name, without namespaces and parameters."""
    name = re.sub(r"policyquant::|\(anonymous namespace\)::|^void ", "", name)
    for kind, words in _ENUMERATORS.items():
        name = re.sub(rf"\({kind}\)(\d)", lambda found, words=words: words[int(found[1])], name)
    return re.sub(r"\(.*$", "", name).replace("> >", ">>")


_ENUMERATORS = {
    "Format": ("e4m3fn", "e5m2"),
    "Activation": ("silu", "gelu", "gelu_tanh"),
    "Scales": ("none", "given", "of_rows", "of_groups"),
}


def _tool(name: str, *arguments: str, folder: str | None = None) -> str:
    # Triton brings them along; the toolkit that has nvcc need not have them.
    triton = find_spec("triton")
    assert triton is not None
    assert triton.origin is not None
    path = Path(triton.origin).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True, cwd=folder).stdout
