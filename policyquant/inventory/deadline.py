"""Ends an exchange with a server at a set time, whatever the server does meanwhile.

A timeout of a socket bounds each wait, not their sum: a server may send one byte of its status line, its headers, the
size of a chunk or a trailer now and then, or interim answers without end. Here a timer shuts the connection down, and
whoever waits on it wakes up.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
import urllib.request
from types import TracebackType
from typing import Any, cast


class Deadline:
    """Watches over the connections that are opened while it is entered."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._watched: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self.end)
        self._timer.daemon = True
        self.over = False

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._forget()

    def left(self) -> float:
        """Seconds."""
        return max(self._end - time.monotonic(), 0.0)

    def watch(self, connected: socket.socket) -> None:
        """Shut this connection down at the end, or now, if that has passed."""
        # A copy of the descriptor: TLS takes the original one over before its handshake.
        copy = connected.dup()
        with self._lock:
            self._watched.append(copy)
            if self.over:
                self._forget()

    def end(self) -> None:
        """End it now."""
        with self._lock:
            self.over = True
            self._forget()

    def _forget(self) -> None:
        for each in self._watched:
            if self.over:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._watched.clear()


class _Connection(http.client.HTTPConnection):
    deadline: Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.watch(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """In this order: its `connect` opens the plain connection through `_Connection`, then begins TLS on it."""


class WatchedRequest(urllib.request.Request):
    """A request whose connection a deadline watches over."""

    def __init__(self, address: str, deadline: Deadline) -> None:
        super().__init__(address)
        self.deadline = deadline


class WatchedHttp(urllib.request.HTTPHandler):
    """Opens `http:` addresses of watched requests."""

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_opens(_Connection, req), req)


class WatchedHttps(urllib.request.HTTPSHandler):
    """Opens `https:` addresses of watched requests, certificates checked as Python does by default."""

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_opens(_SecureConnection, req), req)


def _opens(kind: type[_Connection], request: urllib.request.Request) -> Any:
    def connection(host: str, **options: Any) -> _Connection:
        opened = kind(host, **options)
        opened.deadline = cast("WatchedRequest", request).deadline
        return opened

    return connection
