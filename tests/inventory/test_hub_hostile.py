"""A server that misbehaves: whatever it sends or withholds, a request ends in bounded time with a message."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from policyquant.errors import SourceError
from policyquant.inventory import hub_requests
from policyquant.inventory.at_once import each_at_once
from policyquant.inventory.hub_requests import Client, Status

Answer = Callable[[socket.socket], None]
ROOT = Path(__file__).parents[2]

MOST_SECONDS = 5.0
"""Until a request must have ended; its deadline is set to a tenth of that."""


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """A server that reads each request and answers with whatever bytes `answer` sends; yields its host and port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            answer(connection)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(hub_requests, "_PAUSE", 0.01)
    monkeypatch.setattr(hub_requests, "_DEADLINE", 0.5)


def endless(start: bytes, piece: bytes, pause: float = 0.0) -> Answer:
    """Sends `start`, then `piece` again and again."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:
            connection.sendall(piece)
            time.sleep(pause)

    return answer


def said(address: str) -> str:
    begun = time.monotonic()
    with pytest.raises(SourceError) as refused:
        Client(address, None).get("/x", None, 1_000_000, "x")
    assert time.monotonic() - begun < MOST_SECONDS
    return str(refused.value)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(endless(b"", b"H", 0.02), id="status line"),
        pytest.param(endless(OK + b"A: ", b"b", 0.02), id="header"),
        pytest.param(endless(OK + b"Content-Length: 1000\r\n\r\n", b" ", 0.02), id="body"),
        pytest.param(endless(OK + b"\r\n", b" ", 0.02), id="body of unknown length"),
        pytest.param(endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.001), id="interim answers"),
        pytest.param(endless(CHUNKED, b"0", 0.02), id="size of a chunk"),
        pytest.param(endless(CHUNKED + b"2\r\n{}\r\n0\r\n", b"A: b\r\n", 0.001), id="trailers"),
    ],
)
def test_an_answer_that_drips_ends_at_the_deadline(answer: Answer) -> None:
    with serving(answer) as host:
        assert said(f"http://{host}") == "x: no complete answer within 0 seconds"


def test_a_handshake_that_drips_ends_at_the_deadline() -> None:
    """The start of a TLS record of 16 KB, of which byte after byte comes."""
    with serving(endless(b"\x16\x03\x03\x40\x00", b"\x02", 0.02)) as host:
        assert said(f"https://{host}") == "x: no complete answer within 0 seconds"


@pytest.mark.parametrize("length", [b"", b"Content-Length: 1000000000\r\n"])
def test_the_body_of_a_redirect_is_not_read(length: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(OK + b"Content-Length: 2\r\n\r\n{}")

    with serving(answer) as target:
        start = b"HTTP/1.1 302 Found\r\nLocation: http://" + target.encode() + b"/y\r\n" + length + b"\r\n"
        with serving(endless(start, b" " * 1000)) as host:
            reply = Client(f"http://{host}", None).get("/x", None, 1000, "x")
    assert (reply.status, reply.data) == (Status.FOUND, b"{}")


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", "more than 5 redirects, the last one to 'http://"),
        (b"HTTP/1.1 302 Found\r\n\r\n", "redirected (302), but the server does not tell where to"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n", "redirected to 'http://['; refused"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://a:b/\r\n\r\n", "redirected to 'http://a:b/'; refused"),
        (b"HTTP/1.1 302 Found\r\nLocation: ftp://a/" + b"b" * 5000 + b"\r\n\r\n", "...; refused"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "the server does not speak HTTP; it sent 'SSH-2.0-OpenSSH_9.6'"),
        (b"\x1b[31m" + b"x" * 5000 + b"\r\n", r"it sent '\x1b[31mxxx"),
        (b"", "no answer: the server closed the connection"),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n", "the server answered 103 Early Hints"),
        (b"HTTP/1.1 418 " + b"t" * 5000 + b"\r\n\r\n", "the server answered 418 ttt"),
        (OK + b"A: b\r\n" * 1000 + b"\r\n", "no answer: got more than 100 headers"),
        (OK + b"A: " + b"b" * 100_000 + b"\r\n\r\n", "no answer: got more than 65536 bytes"),
        (CHUNKED + b"-5\r\n", "x: "),
        (CHUNKED + b"zz\r\n", "x: "),
    ],
)
def test_an_answer_that_makes_no_sense_is_said_in_a_line(sent: bytes, message: str) -> None:
    with serving(lambda connection: connection.sendall(sent)) as host:
        text = said(f"http://{host}")
    assert message in text
    assert len(text) < 300
    assert text.isprintable()


def test_without_a_network_the_host_is_named_and_what_else_there_is() -> None:
    with serving(lambda _: None) as host:
        pass
    text = said(f"http://{host}")
    for part in ("no answer from 127.0.0.1: Connection refused", "a local path", "HF_ENDPOINT"):
        assert part in text


def test_the_first_error_ends_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_requests, "_DEADLINE", 60.0)
    with serving(endless(OK + b"Content-Length: 1000\r\n\r\n", b" ", 0.02)) as host:
        client = Client(f"http://{host}", None)
        ended = threading.Event()

        def fetch() -> None:
            with contextlib.suppress(SourceError):
                client.get("/x", None, 1000, "x")
            ended.set()

        threading.Thread(target=fetch, daemon=True).start()
        time.sleep(0.2)
        assert not ended.is_set()
        client.end()
        assert ended.wait(MOST_SECONDS)


def test_calls_at_once_do_not_outlive_the_first_error() -> None:
    begun = []
    release = threading.Event()

    def call(item: int) -> None:
        begun.append(item)
        if item == 0:
            raise SourceError("first")
        release.wait(MOST_SECONDS)

    with pytest.raises(SourceError, match="first"):
        list(each_at_once(call, range(1000), 4))
    assert not release.is_set()
    release.set()
    time.sleep(0.2)
    assert len(begun) <= 4


def test_calls_at_once_all_return() -> None:
    assert sorted(each_at_once(lambda item: item * 2, range(50), 8)) == [(item, item * 2) for item in range(50)]


INTERRUPTED = """
import sys
from policyquant.inventory.hub import HubFiles, HubName
files = HubFiles(HubName("a/b", None), endpoint=sys.argv[1])
print("begun", flush=True)
files.headers([f"{i}.safetensors" for i in range(100)])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_an_interrupt_ends_the_process_at_once() -> None:
    with serving(endless(OK + b"Content-Length: 100000\r\n\r\n", b" ", 0.02)) as host:
        command = [sys.executable, "-c", INTERRUPTED, f"http://{host}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as run:
            assert run.stdout is not None
            assert run.stdout.readline() == "begun\n"
            time.sleep(0.3)
            run.send_signal(signal.SIGINT)
            begun = time.monotonic()
            assert run.wait(timeout=MOST_SECONDS) != 0
            assert time.monotonic() - begun < 2.0
