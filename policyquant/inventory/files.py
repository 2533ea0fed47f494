"""The files of one checkpoint, wherever they lie: what reading a checkpoint needs of a directory or a repository."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from policyquant.inventory.echo import as_text, name_shown, path_shown
from policyquant.inventory.json_file import MOST_BYTES, file_status, read_file, unreadable
from policyquant.inventory.safetensors import Header, HeaderBudget, read_header


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
        """
        Raises:
            SourceError: the working directory is gone, which a relative path needs.
        """
        self._directory = Path(directory)
        self.source = path_shown(str(directory))
        try:
            self.name = as_text(self._directory.absolute().name)
        except OSError as error:
            raise unreadable(self.source, error) from None

    def label(self, file: str) -> str:
        return path_shown(str(self._directory / name_shown(file)))

    def names(self) -> Sequence[str]:
        try:
            return sorted(entry.name for entry in self._directory.iterdir())
        except OSError as error:
            raise unreadable(self.source, error) from None

    def read(self, file: str) -> bytes | None:
        return read_file(self._path(file), MOST_BYTES, self.label(file)) if self._has(file) else None

    def headers(self, files: Sequence[str]) -> dict[str, Header | None]:
        budget = HeaderBudget(self.source)
        return {file: budget.spend(self._header(file)) for file in files}

    def _header(self, file: str) -> Header | None:
        return read_header(self._path(file), self.label(file)) if self._has(file) else None

    def _path(self, file: str) -> str:
        return str(self._directory / file)

    def _has(self, file: str) -> bool:
        """Whether there is such a file. A link whose target is gone (an incomplete cache) is a missing one."""
        return file_status(self._path(file), self.label(file)) is not None
