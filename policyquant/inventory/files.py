"""The files of one checkpoint, wherever they lie: what reading a checkpoint needs of a directory or a repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from policyquant.errors import SourceError
from policyquant.inventory.json_file import MOST_BYTES, read_file
from policyquant.inventory.safetensors import Header, read_header


class ModelFiles(Protocol):
    """Names here are plain file names, never paths."""

    source: str
    """What a person calls all of it."""
    name: str
    """The model's name."""

    def label(self, file: str) -> str:
        """What a person calls one file."""
        ...

    def names(self) -> Sequence[str] | None:
        """Every file's name, sorted; None where files cannot be listed."""
        ...

    def read(self, file: str) -> bytes | None:
        """A small file's content; None if there is no such file.

        Raises:
            SourceError: it cannot be read, or is larger than any JSON file should be.
        """
        ...

    def headers(self, files: Sequence[str]) -> dict[str, Header | None]:
        """The header of each safetensors file; None for one that does not exist.

        Raises:
            SourceError: one cannot be read, or is no safetensors file.
        """
        ...


class LocalFiles:
    """A directory. Symbolic links are followed: the Hub's cache is made of them."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self.source = str(directory)
        self.name = self._directory.absolute().name

    def label(self, file: str) -> str:
        return str(self._directory / file)

    def names(self) -> Sequence[str]:
        try:
            return sorted(entry.name for entry in self._directory.iterdir())
        except OSError as error:
            raise SourceError(f"{self.source}: cannot be read: {error.strerror}") from None

    def read(self, file: str) -> bytes | None:
        path = self.label(file)
        return read_file(path, MOST_BYTES) if (self._directory / file).exists() else None

    def headers(self, files: Sequence[str]) -> dict[str, Header | None]:
        # A link whose target is gone (an incomplete cache) is a missing file.
        return {file: read_header(self.label(file)) if (self._directory / file).exists() else None for file in files}
