"""A repository of the Hugging Face Hub as a source: only JSON files and safetensors headers are fetched.

One request per file asks for its first bytes, which hold most headers whole; a second one fetches the rest of a longer
header. Nothing is stored on disk, and no library beyond the standard one is needed.

`HF_ENDPOINT` sets another server, `HF_TOKEN` a token. The token goes to the endpoint's own origin and to no other: a
redirect to the host that stores the files is followed without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from policyquant.errors import SourceError
from policyquant.inventory.at_once import each_at_once
from policyquant.inventory.echo import name_shown, path_shown
from policyquant.inventory.hub_requests import Client, Reply, Status
from policyquant.inventory.json_file import MOST_BYTES
from policyquant.inventory.safetensors import LENGTH_BYTES, Header, HeaderBudget, header_length, parse_header

SCHEME: Final = "hf://"
DEFAULT_ENDPOINT: Final = "https://huggingface.co"

_FIRST_BYTES: Final = 128 * 1024
"""Of a safetensors file, in its first request: DeepSeek-V3's headers, of some 560 tensors each, take 75 KB."""

_AT_ONCE: Final = 8
"""Requests in flight: a model of 160 shards takes seconds then, and no server minds."""

_PART = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_NAME = re.compile(rf"(?P<repository>{_PART}(?:/{_PART})?)(?:@(?P<revision>[^\s@]{{1,200}}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubName(NamedTuple):
    """A repository, and the branch, tag or commit of it that is meant; None: its main branch."""

    repository: str
    revision: str | None


def parse_hub_name(source: str, revision: str | None = None) -> HubName:
    """Take apart `hf://org/name[@revision]`.

    Raises:
        SourceError: it is no such name, or names another revision than `revision`.
    """
    match = _NAME.fullmatch(source.removeprefix(SCHEME))
    if match is None:
        raise SourceError(
            f"{path_shown(source)}: expected {SCHEME}organisation/name or {SCHEME}organisation/name@revision"
        )
    if revision is not None and match["revision"] not in (None, revision):
        raise SourceError(f"{source}: names the revision {match['revision']!r}, but {revision!r} is asked for")
    return HubName(match["repository"], match["revision"] or revision)


class HubFiles:
    """A repository's files. The first answer tells the commit; all further requests ask for that one, so that the
    files fit together even if somebody pushes meanwhile."""

    def __init__(self, name: HubName, *, endpoint: str | None = None, token: str | None = None) -> None:
        """
        Args:
            name: The repository.
            endpoint: Address of the Hub; None: `HF_ENDPOINT`, or the public one.
            token: For private and gated repositories; None: `HF_TOKEN`, or none.
        """
        address = endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
        self._client = Client(address.rstrip("/"), os.environ.get("HF_TOKEN") if token is None else token)
        self._repository = name.repository
        self._revision = name.revision or "main"
        self._pinned: str | None = None
        revision = f"@{name.revision}" if name.revision else ""
        self.source = f"{SCHEME}{name.repository}{revision}"
        self.name = name.repository.rpartition("/")[2]

    def label(self, file: str) -> str:
        return f"{self.source}/{name_shown(file)}"

    def names(self) -> None:
        return None

    def read(self, file: str) -> bytes | None:
        reply = self._get(file, None, MOST_BYTES)
        return None if reply is None else reply.data

    def headers(self, files: Sequence[str]) -> dict[str, Header | None]:
        headers: dict[str, Header | None] = dict.fromkeys(files)
        budget = HeaderBudget(self.source)
        try:
            for file, header in each_at_once(self._header, files, _AT_ONCE):
                headers[file] = budget.spend(header)
        except BaseException:
            # One failure is enough, and whoever interrupts does not want to wait for the rest.
            self._client.end()
            raise
        return headers

    def _header(self, file: str) -> Header | None:
        label = self.label(file)
        reply = self._get(file, (0, _FIRST_BYTES), _FIRST_BYTES)
        if reply is None:
            return None
        size = reply.size
        if size is None:
            raise SourceError(f"{label}: the server does not tell the file's size")
        if len(reply.data) < min(size, _FIRST_BYTES):
            raise SourceError(f"{label}: the server sent {len(reply.data):,} of {min(size, _FIRST_BYTES):,} bytes")
        length = header_length(reply.data[:LENGTH_BYTES], size, label)
        end = LENGTH_BYTES + length
        data = reply.data[:end]
        if len(data) < end:
            rest = self._get(file, (len(data), end), end - len(data))
            if rest is None or len(data) + len(rest.data) != end or rest.size != size:
                raise SourceError(f"{label}: the file changed, or the server cut its header short")
            data += rest.data
        return parse_header(data[LENGTH_BYTES:], size, label)

    def _get(self, file: str, span: tuple[int, int] | None, most: int) -> Reply | None:
        """A file, or bytes of it; None if the repository has no such file."""
        revision = self._pinned or self._revision
        path = f"/{quote(self._repository)}/resolve/{quote(revision, safe='')}/{quote(file)}"
        reply = self._client.get(path, span, most, self.label(file))
        if reply.status is not Status.FOUND:
            if reply.status is Status.NO_FILE:
                self._pin(reply.commit)
                return None
            raise SourceError(self._refused(reply.status))
        self._pin(reply.commit)
        return reply

    def _pin(self, commit: str | None) -> None:
        if self._pinned is None and commit is not None and _COMMIT.fullmatch(commit):
            self._pinned = commit

    def _refused(self, status: Status) -> str:
        if status is Status.NO_REVISION:
            return f"{self.source}: the repository has no revision {self._revision!r}"
        if status is Status.GATED:
            return f"{self.source}: gated: accept its conditions on its page at {self._client.endpoint}" + (
                "" if self._client.has_token else ", then set HF_TOKEN"
            )
        if self._client.has_token:
            return f"{self.source}: no such repository, or the token (HF_TOKEN) does not allow to read it"
        return f"{self.source}: no such repository, or a private one; for that, set HF_TOKEN"
