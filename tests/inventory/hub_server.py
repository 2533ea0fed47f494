"""A server on the loopback address that answers as the Hugging Face Hub does: resolving, redirects, ranges, tokens."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    """One request that was made."""

    path: str
    headers: Message

    @property
    def range(self) -> str | None:
        return self.headers["Range"]

    @property
    def token(self) -> str | None:
        return self.headers["Authorization"]


@dataclass
class Server:
    """Serves `files` {path: content}. `before` may answer a request itself and then returns True."""

    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    ranges: bool = True
    before: Callable[[BaseHTTPRequestHandler], bool] | None = None
    address: str = ""

    def __enter__(self) -> Server:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.requests.append(Request(self.path, self.headers))
                if owner.before is None or not owner.before(self):
                    owner.answer(self)

            def log_message(self, *arguments: Any) -> None:
                """Nothing: the tests look at `requests`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Send a file, or the part of it that is asked for."""
        data = self.files.get(unquote(handler.path))
        if data is None:
            refuse(handler, 404, "EntryNotFound")
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
        if wanted and self.ranges:
            start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
            if start >= len(data):
                handler.send_response(416)
                handler.send_header("Content-Range", f"bytes */{len(data)}")
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
            data = data[start:end]
        else:
            handler.send_response(200)
        handler.send_header("X-Repo-Commit", COMMIT)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        try:
            handler.wfile.write(data)
        except OSError:
            handler.close_connection = True  # The client has what it wanted of a file sent whole.


def refuse(handler: BaseHTTPRequestHandler, status: int, word: str = "") -> None:
    """An error as the Hub sends it."""
    handler.send_response(status)
    if word:
        handler.send_header("X-Error-Code", word)
    handler.send_header("Content-Length", "0")
    handler.end_headers()


def redirect(handler: BaseHTTPRequestHandler, address: str, status: int = 302) -> None:
    """Send the client elsewhere, with the commit in this answer, as the Hub does for large files."""
    handler.send_response(status)
    handler.send_header("Location", address)
    handler.send_header("X-Repo-Commit", COMMIT)
    handler.send_header("Content-Length", "0")
    handler.end_headers()
