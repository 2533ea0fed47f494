"""A mutant: one wrong change to a kernel that some test must notice, and how it takes the place of the right one.

Nothing of the repository is touched. A finder put before Python's own hands out the changed source, and hands the same
text to `linecache`, since Triton reads a kernel's source from there. CUDA sources are copied, changed, and compiled for
the CPU.
"""

from __future__ import annotations

import hashlib
import linecache
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Args:
        kind: the fault, in a few words that other kernels' mutants share: "drop the clamp", "swap the scales", …
        file: the source that is changed, from the root of the repository.
        old: text that stands in it exactly once.
        new: what takes its place.
        tests: what must fail, as pytest takes it: files or tests, from the root, divided by spaces.
        select: an expression for pytest's `-k`; "" for all.
        equivalent: why no test can notice it, if none can; then it is not run.
        sources: of a change in kernels/cuda: the sources that its tests need compiled, without the suffix.
    """

    kind: str
    file: str
    old: str
    new: str
    tests: str
    select: str = ""
    equivalent: str = ""
    sources: tuple[str, ...] = ()

    @property
    def module(self) -> str:
        """The name under which the file is imported."""
        return "policyquant." + self.file.removesuffix(".py").replace("/", ".")

    def changed(self) -> str:
        """The whole source with the change.

        Raises:
            ValueError: the old text is not there exactly once.
        """
        source = (ROOT / self.file).read_text(encoding="utf-8")
        if source.count(self.old) != 1:
            raise ValueError(f"{self.file} has this text {source.count(self.old)} times, expected once: {self.old!r}")
        return source.replace(self.old, self.new)


def install(mutant: Mutant) -> None:
    """Let the mutant be imported in this process instead of the right file.

    Raises:
        ValueError: the module was imported already.
    """
    if mutant.sources:
        _install_sources(mutant)
        return
    if mutant.module in sys.modules:
        raise ValueError(f"{mutant.module} was imported before its mutant was installed")
    sys.meta_path.insert(0, _Finder(mutant))


def _install_sources(mutant: Mutant) -> None:
    from policyquant.kernels.cuda import library

    changed = mutant.changed()
    name = hashlib.sha256("\0".join((mutant.file, changed, *mutant.sources)).encode()).hexdigest()[:16]
    folder = ROOT / "build" / "mutants" / "cuda" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path in (*library.SOURCES.glob("*.cuh"), *(library.SOURCES / f"{stem}.cu" for stem in mutant.sources)):
        shutil.copy(path, folder)
    (folder / Path(mutant.file).name).write_text(changed, encoding="utf-8")
    # Before the tests' library is imported, which compiles what is there by default.
    if "tests.kernels.cuda_on_cpu.library" in sys.modules:
        raise ValueError("the CUDA sources were asked for before their mutant was installed")
    library.SOURCES = folder  # type: ignore[misc]


class _Finder(MetaPathFinder):
    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.mutant.module:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                assert spec.origin is not None
                spec.loader = _Loader(name, spec.origin, self.mutant.changed())
                return spec
        return None


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        # Without a time of change, `linecache` takes the entry for one of a loader and keeps it.
        lines: Any = self.source.splitlines(keepends=True)
        linecache.cache[self.path] = (len(self.source), None, lines, self.path)
        return self.source_to_code(self.source.encode(), self.path)

    def get_source(self, fullname: str) -> str:
        return self.source
