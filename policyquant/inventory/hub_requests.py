"""GET requests with byte ranges, as the Hub answers them: redirects, tokens, limits of time and size."""

from __future__ import annotations

import enum
import http.client
import re
import threading
import time
import urllib.error
import urllib.request
from email.message import Message
from string import punctuation
from typing import IO, Any, Final, NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from policyquant.errors import SourceError
from policyquant.inventory.deadline import Deadline, WatchedHttp, WatchedHttps, WatchedRequest
from policyquant.inventory.echo import name_shown, quoted

_TIMEOUT: Final = 20.0
"""Seconds that a connection may stay silent."""

_DEADLINE: Final = 60.0
"""Seconds for one file in all, tries and redirects included: a server that sends a byte now and then is never silent.
"""

_MOST_REDIRECTS: Final = 5
"""The Hub takes two: from an old name to the new one, from there to where the file is stored."""

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
        self._origin = _origin(endpoint)
        self._opener = urllib.request.build_opener(WatchedHttp, WatchedHttps, _Redirects)
        self._lock = threading.Lock()
        self._exchanges: set[Deadline] = set()
        self._ended = False

    def end(self) -> None:
        """Make every request fail that runs now or comes later: nobody waits for them any more."""
        with self._lock:
            self._ended = True
            for deadline in self._exchanges:
                deadline.end()

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
        deadline = Deadline(_DEADLINE)
        with self._lock:
            if self._ended:
                deadline.end()
            self._exchanges.add(deadline)
        try:
            with deadline:
                return self._get(path, span, most, label, deadline)
        finally:
            with self._lock:
                self._exchanges.discard(deadline)

    def _get(self, path: str, span: tuple[int, int] | None, most: int, label: str, deadline: Deadline) -> Reply:
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            request = self._request(self.endpoint + path, span, deadline)
            try:
                return self._try(request, span, most)
            except urllib.error.HTTPError as error:
                with error:
                    refused = _refusal(error)
                    if refused is not None:
                        return refused
                    if error.code == 416 and span is not None:
                        size = _EMPTY_RANGE.fullmatch(error.headers.get("Content-Range", ""))
                        return Reply(Status.FOUND, b"", int(size["size"]) if size else None)
                    if last or error.code not in _TRANSIENT:
                        reason = name_shown(str(error.reason))
                        raise SourceError(f"{label}: the server answered {error.code} {reason}") from None
            except _FinalError as error:
                raise SourceError(f"{label}: {error}") from None
            except (OSError, http.client.HTTPException, ValueError) as error:
                if deadline.over:
                    raise SourceError(f"{label}: no complete answer within {_DEADLINE:.0f} seconds") from None
                if last:
                    raise SourceError(f"{label}: {_what_failed(error, self.endpoint)}") from None
            time.sleep(min(_PAUSE * 2**attempt, deadline.left()))
        raise AssertionError("the last try returns or raises")

    def _request(self, address: str, span: tuple[int, int] | None, deadline: Deadline) -> WatchedRequest:
        request = WatchedRequest(address, deadline)
        # A compressed answer has other byte ranges than the file.
        request.add_header("Accept-Encoding", "identity")
        request.add_header("User-Agent", "policyquant")
        if span is not None:
            request.add_header("Range", f"bytes={span[0]}-{span[1] - 1}")
        if self._token and _origin(address) == self._origin:
            request.add_header("Authorization", f"Bearer {self._token}")
        return request

    def _try(self, request: WatchedRequest, span: tuple[int, int] | None, most: int) -> Reply:
        # The Hub tells the commit in its own answer, which may be a redirect to where the file is stored.
        commit: str | None = None
        for _ in range(_MOST_REDIRECTS + 1):
            with self._opener.open(request, timeout=min(_TIMEOUT, max(request.deadline.left(), 0.001))) as answer:
                commit = commit or answer.headers.get("X-Repo-Commit")
                if answer.status not in _REDIRECTS:
                    reply = _read_answer(answer, span, most)
                    if request.deadline.over:  # What our own closing cut short may look complete.
                        raise OSError("no time left")
                    return reply._replace(commit=commit)
                # Its body is of no use, and may have no end.
                address = _target(request, answer)
            request = self._request(address, span, request.deadline)
        raise _FinalError(f"more than {_MOST_REDIRECTS} redirects, the last one to {quoted(address)}")


_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


def _target(request: WatchedRequest, answer: http.client.HTTPResponse) -> str:
    """Where an answer redirects to."""
    location = answer.headers.get("Location")
    if not location:
        raise _FinalError(f"redirected ({answer.status}), but the server does not tell where to")
    try:
        # Headers are read as Latin-1, which keeps their bytes.
        address = urljoin(request.full_url, quote(location, safe=punctuation, encoding="iso-8859-1"))
        parts = urlsplit(address)
        refused = parts.scheme not in ("http", "https") or (parts.scheme == "http" and request.type == "https")
        refused = refused or not parts.hostname
        parts.port  # noqa: B018  (reading it checks it)
    except ValueError:
        refused, address = True, location
    if refused:
        raise _FinalError(f"redirected to {quoted(address)}; refused")
    return address


def _read_answer(answer: http.client.HTTPResponse, span: tuple[int, int] | None, most: int) -> Reply:
    headers = answer.headers
    if headers.get("Content-Encoding", "identity") != "identity":
        raise _FinalError("the server sent a compressed answer, which was not asked for")
    size, skip = _extent(headers, answer.status, span)
    wanted = most if span is None else span[1] - span[0]
    data = _read(answer, skip, wanted, whole=span is None)
    if size is not None:
        expected = size if span is None else min(span[1], size) - span[0]
        if len(data) < expected:
            raise OSError(f"the answer was cut short: {len(data):,} of {expected:,} bytes")
    return Reply(Status.FOUND, data, size)


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


def _read(answer: http.client.HTTPResponse, skip: int, wanted: int, *, whole: bool) -> bytes:
    pieces: list[bytes] = []
    left = skip + wanted + (1 if whole else 0)
    while left > 0:
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


def _what_failed(error: Exception, endpoint: str) -> str:
    if isinstance(error, urllib.error.URLError):  # Nothing was sent yet.
        reason = getattr(error.reason, "strerror", None) or error.reason
        return (
            f"no answer from {urlsplit(endpoint).hostname}: {name_shown(str(reason))}; without a network, give a local"
            " path or a saved inventory; HF_ENDPOINT names another server"
        )
    if isinstance(error, TimeoutError):
        return f"no answer: {error}"
    if isinstance(error, http.client.RemoteDisconnected):
        return "no answer: the server closed the connection"
    if isinstance(error, http.client.BadStatusLine):
        return f"no answer: the server does not speak HTTP; it sent {quoted(str(error).strip())}"
    if isinstance(error, http.client.IncompleteRead):
        return f"the answer was cut short after {len(error.partial):,} bytes"
    return f"no answer: {name_shown(str(error))}"


class _FinalError(Exception):
    """An answer that another try would not better."""


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Hands redirects back as they are: urllib itself would read each one's body, to whatever end."""

    def http_error_302(self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message) -> Any:
        return fp

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _origin(address: str) -> tuple[str, str, int | None]:
    parts = urlsplit(address)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), port
