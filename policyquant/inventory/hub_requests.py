"""GET requests with byte ranges, as the Hub answers them: redirects, tokens, limits of time and size."""

from __future__ import annotations

import enum
import http.client
import re
import socket
import time
import urllib.error
import urllib.request
from email.message import Message
from typing import IO, Final, NamedTuple
from urllib.parse import urlsplit

from policyquant.errors import SourceError

_TIMEOUT: Final = 20.0
"""Seconds that a connection may stay silent."""

_DEADLINE: Final = 300.0
"""Seconds for one answer in all: a server that sends a byte now and then is never silent."""

_PIECE: Final = 1 << 16
_TRIES: Final = 3
_PAUSE: Final = 0.5
"""Seconds before the second try; twice that before the third."""

_TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (?P<start>\d{1,18})-(?P<end>\d{1,18})/(?P<size>\d{1,18})")
_EMPTY_RANGE = re.compile(r"bytes \*/(?P<size>\d{1,18})")
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Status(enum.Enum):
    """What an answer comes to."""

    FOUND = enum.auto()
    NO_FILE = enum.auto()
    NO_REVISION = enum.auto()
    NO_REPOSITORY = enum.auto()
    GATED = enum.auto()


class Reply(NamedTuple):
    """An answer."""

    status: Status
    data: bytes = b""
    size: int | None = None
    """Of the whole file; None if the server does not tell."""
    commit: str | None = None
    """The commit that the server resolved the revision to."""


class Client:
    """Fetches files below one endpoint. Safe to use from several threads."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        """
        Raises:
            SourceError: the endpoint is no web address, or the token holds what no header may.
        """
        try:
            parts = urlsplit(endpoint)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and endpoint.isascii()
            parts.port  # noqa: B018  (reading it checks it)
        except ValueError:
            valid = False
        if not valid or any(mark.isspace() for mark in endpoint):
            raise SourceError(f"HF_ENDPOINT: {endpoint!r} is no address; expected one as https://huggingface.co")
        token = (token or "").strip()
        if token and not _TOKEN.fullmatch(token):
            raise SourceError("HF_TOKEN: a token has no spaces, line breaks or other than ASCII letters in it")
        self.endpoint = endpoint
        self.has_token = bool(token)
        self._token = token
        self._opener = urllib.request.build_opener(_Redirects(_origin(endpoint), token))

    def get(self, path: str, span: tuple[int, int] | None, most: int, label: str) -> Reply:
        """Fetch a file.

        Args:
            path: Below the endpoint, quoted.
            span: First byte and end of what is wanted; None: the whole file.
            most: Bytes after which reading stops (with `span`) or fails (without).
            label: What to call the file in errors.

        Raises:
            SourceError: no answer, or one that makes no sense.
        """
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                return self._try(path, span, most)
            except urllib.error.HTTPError as error:
                with error:
                    refused = _refusal(error)
                    if refused is not None:
                        return refused
                    if error.code == 416 and span is not None:
                        size = _EMPTY_RANGE.fullmatch(error.headers.get("Content-Range", ""))
                        return Reply(Status.FOUND, b"", int(size["size"]) if size else None)
                    if last or error.code not in _TRANSIENT:
                        raise SourceError(f"{label}: the server answered {error.code} {error.reason}") from None
            except _FinalError as error:
                raise SourceError(f"{label}: {error}") from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                if last:
                    raise SourceError(f"{label}: {_what_failed(error)}") from None
            time.sleep(_PAUSE * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def _try(self, path: str, span: tuple[int, int] | None, most: int) -> Reply:
        request = _Request(self.endpoint + path)
        # A compressed answer has other byte ranges than the file.
        request.add_header("Accept-Encoding", "identity")
        request.add_header("User-Agent", "policyquant")
        if span is not None:
            request.add_header("Range", f"bytes={span[0]}-{span[1] - 1}")
        if self._token:
            # Not among the headers that a redirect carries over: _Redirects decides about it each time.
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        deadline = time.monotonic() + _DEADLINE
        with self._opener.open(request, timeout=_TIMEOUT) as answer:
            headers = answer.headers
            if headers.get("Content-Encoding", "identity") != "identity":
                raise _FinalError("the server sent a compressed answer, which was not asked for")
            # The Hub tells the commit in its own answer, which may be a redirect to where the file is stored.
            commit = headers.get("X-Repo-Commit") or next(iter(request.commits), None)
            size, skip = _extent(headers, answer.status, span)
            wanted = most if span is None else span[1] - span[0]
            data = _read(answer, skip, wanted, deadline, whole=span is None)
        if span is None and size is not None and len(data) < size:
            raise _cut_short(len(data), size)
        if span is not None and size is not None and len(data) < min(span[1], size) - span[0]:
            raise _cut_short(len(data), min(span[1], size) - span[0])
        return Reply(Status.FOUND, data, size, commit)


def _extent(headers: Message, status: int, span: tuple[int, int] | None) -> tuple[int | None, int]:
    """Size of the whole file, and how many bytes come before those that were asked for."""
    if status == 206 and span is not None:
        match = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
        if match is None or int(match["start"]) != span[0]:
            raise _FinalError("the server sent other bytes than were asked for")
        return int(match["size"]), 0
    length = headers.get("Content-Length", "")
    size = int(length) if length.isdecimal() and len(length) < 19 else None
    # A server may ignore the range and send the file from its start.
    return size, 0 if span is None else span[0]


def _read(answer: http.client.HTTPResponse, skip: int, wanted: int, deadline: float, *, whole: bool) -> bytes:
    pieces: list[bytes] = []
    left = skip + wanted + (1 if whole else 0)
    while left > 0:
        if time.monotonic() > deadline:
            raise _FinalError(f"no complete answer within {_DEADLINE:.0f} seconds")
        # `read` would wait for all of the piece, however slowly its bytes come.
        piece = answer.read1(min(left, _PIECE))
        if not piece:
            break
        left -= len(piece)
        pieces.append(piece)
    data = b"".join(pieces)[skip:]
    if whole and len(data) > wanted:
        raise _FinalError(f"more than {wanted:,} bytes")
    return data


def _cut_short(got: int, wanted: int) -> OSError:
    return OSError(f"the answer was cut short: {got:,} of {wanted:,} bytes")


def _refusal(error: urllib.error.HTTPError) -> Reply | None:
    """What the Hub means by an error status; None if it is not one of its own."""
    word = error.headers.get("X-Error-Code", "")
    commit = error.headers.get("X-Repo-Commit")
    if error.code == 404:
        if word == "RepoNotFound":
            return Reply(Status.NO_REPOSITORY)
        if word == "RevisionNotFound":
            return Reply(Status.NO_REVISION)
        return Reply(Status.NO_FILE, commit=commit)
    if error.code == 403 or word == "GatedRepo":
        return Reply(Status.GATED)
    if error.code == 401:
        return Reply(Status.NO_REPOSITORY)
    return None


def _what_failed(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, (TimeoutError, socket.timeout)):
        return f"no answer: {str(reason) or 'timed out'}"
    if isinstance(error, http.client.IncompleteRead):
        return f"the answer was cut short after {len(error.partial):,} bytes"
    return f"no answer: {reason}"


class _FinalError(Exception):
    """An answer that another try would not better."""


class _Request(urllib.request.Request):
    """A request that remembers, through all its redirects, which commit the answers told."""

    commits: list[str]

    def __init__(self, address: str, before: _Request | None = None) -> None:
        if before is None:
            super().__init__(address)
            self.commits = []
            return
        kept = {name: value for name, value in before.headers.items() if name.lower() != "authorization"}
        super().__init__(address, headers=kept, origin_req_host=before.origin_req_host, unverifiable=True)
        self.commits = before.commits


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, with the token only where it was meant to go."""

    def __init__(self, origin: tuple[str, str, int | None], token: str) -> None:
        self._origin = origin
        self._token = token

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> urllib.request.Request:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (scheme == "http" and req.type == "https"):
            raise _FinalError(f"redirected to {newurl[:100]!r}; refused")
        request = _Request(newurl.replace(" ", "%20"), req if isinstance(req, _Request) else None)
        if headers.get("X-Repo-Commit"):
            request.commits.append(headers["X-Repo-Commit"])
        if self._token and _origin(newurl) == self._origin:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        return request

    # Python 3.10 does not know this one.
    http_error_308 = urllib.request.HTTPRedirectHandler.http_error_302


def _origin(address: str) -> tuple[str, str, int | None]:
    parts = urlsplit(address)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), port
