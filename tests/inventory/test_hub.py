"""Repositories of the Hub: what is fetched, who gets the token, and what happens when something fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from policyquant.errors import SourceError
from policyquant.inventory import hub_requests
from policyquant.inventory.hub import parse_hub_name
from policyquant.inventory.layers import StoredModel
from policyquant.inventory.sources import open_source
from tests.inventory.files_on_disk import Tensors, header_of, safetensors_bytes
from tests.inventory.hub_server import COMMIT, Server, redirect, refuse

NAME = "hf://org/tiny"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
WEIGHTS: Tensors = {"layers.0.weight": ("BF16", [64, 1024]), "layers.1.weight": ("BF16", [64, 1024])}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A Hub with a repository of one file of 256 KiB of weights."""
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setattr(hub_requests, "_PAUSE", 0.01)
    with Server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        publish(server, {"config.json": b'{"model_type": "llama"}', "model.safetensors": file_of(WEIGHTS)})
        yield server


def file_of(tensors: Tensors) -> bytes:
    return safetensors_bytes(header_of(tensors))


def publish(server: Server, files: dict[str, bytes], revision: str = "main") -> None:
    for name, content in files.items():
        for each in (revision, COMMIT):
            server.files[f"/org/tiny/resolve/{each}/{name}"] = content


def unpublish(server: Server, name: str) -> None:
    for path in [path for path in server.files if path.endswith(f"/{name}")]:
        del server.files[path]


def templates(model: StoredModel) -> list[tuple[str, int]]:
    return [(stored.template, len(stored.indices)) for stored in model.sets]


def test_a_repository_is_read_as_its_directory_would_be(hub: Server) -> None:
    model = open_source(NAME)
    assert (model.name, model.source, model.config) == ("tiny", NAME, {"model_type": "llama"})
    assert templates(model) == [("layers.#", 2)]
    assert model.findings == ()


def test_weights_are_not_fetched(hub: Server) -> None:
    open_source(NAME)
    (weights,) = [request for request in hub.requests if request.path.endswith("model.safetensors")]
    assert weights.range == "bytes=0-131071"


def test_all_requests_after_the_first_ask_for_its_commit(hub: Server) -> None:
    open_source(NAME)
    assert [request.path.split("/")[4] for request in hub.requests] == ["main", COMMIT, COMMIT, COMMIT]


def sharded(hub: Server) -> None:
    first, second = dict([*WEIGHTS.items()][:1]), dict([*WEIGHTS.items()][1:])
    index = {"metadata": {"total_size": 262_144}, "weight_map": dict(zip(WEIGHTS, SHARDS, strict=True))}
    publish(hub, {"model.safetensors.index.json": json.dumps(index).encode()})
    publish(hub, {SHARDS[0]: file_of(first), SHARDS[1]: file_of(second)})


def test_an_index_is_followed_to_its_shards(hub: Server) -> None:
    sharded(hub)
    model = open_source(NAME)
    assert templates(model) == [("layers.#", 2)]
    assert model.findings == ()


def test_a_missing_shard_is_named(hub: Server) -> None:
    sharded(hub)
    unpublish(hub, SHARDS[1])
    with pytest.raises(SourceError, match=rf"1 of 2 shards missing: {SHARDS[1]}"):
        open_source(NAME)


def test_a_header_longer_than_the_first_request_takes_one_more(hub: Server) -> None:
    publish(hub, {"model.safetensors": file_of({f"layers.{i}.weight": ("BF16", [4]) for i in range(3000)})})
    assert templates(open_source(NAME)) == [("layers.#", 3000)]
    ranges = [request.range for request in hub.requests if request.path.endswith("model.safetensors")]
    assert len(ranges) == 2
    assert str(ranges[1]).startswith("bytes=131072-")


@pytest.mark.parametrize(
    "tensors", [{"layers.0.weight": ("BF16", [4])}, WEIGHTS, {f"layers.{i}.weight": ("BF16", [4]) for i in range(3000)}]
)
def test_a_server_that_ignores_ranges_is_understood(hub: Server, tensors: Tensors) -> None:
    hub.ranges = False
    publish(hub, {"model.safetensors": file_of(tensors)})
    assert templates(open_source(NAME)) == [("layers.#", len(tensors))]


def test_a_redirect_to_another_host_keeps_the_range_and_drops_the_token(hub: Server) -> None:
    with Server() as storage:
        storage.files["/blob"] = file_of(WEIGHTS)

        def to_storage(handler: BaseHTTPRequestHandler) -> bool:
            if not handler.path.endswith("model.safetensors"):
                return False
            redirect(handler, f"{storage.address}/blob")
            return True

        hub.before = to_storage
        assert templates(open_source(NAME, token="hf_secret")) == [("layers.#", 2)]
        assert [request.token for request in hub.requests] == ["Bearer hf_secret"] * 4
        ((sent_to_storage),) = storage.requests
        assert (sent_to_storage.token, sent_to_storage.range) == (None, "bytes=0-131071")


def test_a_redirect_within_the_hub_keeps_the_token(hub: Server) -> None:
    """A renamed repository redirects so, and so do small files."""

    def renamed(handler: BaseHTTPRequestHandler) -> bool:
        if not handler.path.startswith("/old/"):
            return False
        redirect(handler, handler.path.replace("/old/", "/org/"), 307)
        return True

    hub.before = renamed
    assert templates(open_source("hf://old/tiny", token="hf_secret")) == [("layers.#", 2)]
    assert {request.token for request in hub.requests} == {"Bearer hf_secret"}


def test_another_host_gets_no_token_even_if_it_sends_the_request_home(hub: Server) -> None:
    with Server() as elsewhere:
        elsewhere.before = lambda handler: redirect(handler, f"{hub.address}/stolen") is None

        def away(handler: BaseHTTPRequestHandler) -> bool:
            if not handler.path.endswith("config.json"):
                return False
            redirect(handler, f"{elsewhere.address}/x")
            return True

        hub.before = away
        hub.files["/stolen"] = b"{}"
        open_source(NAME, token="hf_secret")
        assert all(request.token is None for request in elsewhere.requests)


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://x"])
def test_a_redirect_to_what_is_no_web_address_is_refused(hub: Server, address: str) -> None:
    hub.before = lambda handler: redirect(handler, address) is None
    with pytest.raises(SourceError, match=r"tiny/config\.json"):
        open_source(NAME)


def test_redirects_that_never_end_are_an_error(hub: Server) -> None:
    hub.before = lambda handler: redirect(handler, handler.path) is None
    with pytest.raises(SourceError, match="more than 5 redirects, the last one to"):
        open_source(NAME)


def private(hub: Server, word: str = "RepoNotFound", status: int = 401) -> None:
    def check(handler: BaseHTTPRequestHandler) -> bool:
        if handler.headers["Authorization"] == "Bearer hf_good":
            return False
        refuse(handler, status, word)
        return True

    hub.before = check


def test_a_private_repository_opens_with_a_token(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    private(hub)
    assert templates(open_source(NAME, token="hf_good")) == [("layers.#", 2)]
    monkeypatch.setenv("HF_TOKEN", "hf_good\n")
    assert templates(open_source(NAME)) == [("layers.#", 2)]


def test_without_a_token_a_private_repository_says_what_is_missing(hub: Server) -> None:
    private(hub)
    with pytest.raises(SourceError, match="no such repository, or a private one; for that, set HF_TOKEN"):
        open_source(NAME)


def test_a_token_that_does_not_help_is_said_but_never_shown(hub: Server) -> None:
    private(hub)
    with pytest.raises(SourceError, match=r"the token .* does not allow to read it") as refused:
        open_source(NAME, token="hf_bad")
    assert "hf_bad" not in str(refused.value)


def test_a_gated_repository_says_where_to_accept_its_conditions(hub: Server) -> None:
    private(hub, "GatedRepo", 403)
    with pytest.raises(SourceError, match="gated: accept its conditions on its page"):
        open_source(NAME)


@pytest.mark.parametrize(
    ("status", "word", "message"),
    [
        (404, "RepoNotFound", "no such repository, or a private one"),
        (404, "RevisionNotFound", "the repository has no revision 'main'"),
        (404, "EntryNotFound", "has neither model.safetensors.index.json nor model.safetensors"),
        (404, "", "has neither model.safetensors.index.json nor model.safetensors"),
        (400, "", "the server answered 400"),
    ],
)
def test_what_is_not_there_is_said(hub: Server, status: int, word: str, message: str) -> None:
    hub.before = lambda handler: refuse(handler, status, word) is None
    with pytest.raises(SourceError, match=message):
        open_source(NAME)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_is_tried_again(hub: Server, status: int) -> None:
    failures = iter([True, True])

    def fail_twice(handler: BaseHTTPRequestHandler) -> bool:
        if not next(failures, False):
            return False
        refuse(handler, status)
        return True

    hub.before = fail_twice
    assert templates(open_source(NAME)) == [("layers.#", 2)]


def test_a_lasting_failure_is_an_error(hub: Server) -> None:
    hub.before = lambda handler: refuse(handler, 503) is None
    with pytest.raises(SourceError, match="the server answered 503"):
        open_source(NAME)
    assert len(hub.requests) == 3


def cut(handler: BaseHTTPRequestHandler) -> bool:
    """Promises more than it sends, then closes the connection."""
    handler.send_response(200 if handler.headers.get("Range") is None else 206)
    handler.send_header("Content-Length", "5000")
    handler.send_header("Content-Range", "bytes 0-4999/5000")
    handler.end_headers()
    handler.wfile.write(b'{"model_type": ')
    handler.close_connection = True
    return True


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_an_answer_that_is_cut_short_is_an_error(hub: Server, file: str) -> None:
    hub.before = lambda handler: handler.path.endswith(f"/{file}") and cut(handler)
    with pytest.raises(SourceError, match=rf"{file}: no answer: the answer was cut short: 15 of 5,000 bytes"):
        open_source(NAME)


def test_a_header_that_changes_between_two_requests_is_an_error(hub: Server) -> None:
    publish(hub, {"model.safetensors": file_of({f"layers.{i}.weight": ("BF16", [4]) for i in range(3000)})})

    def shrink(handler: BaseHTTPRequestHandler) -> bool:
        if str(handler.headers.get("Range", "")).startswith("bytes=131072-"):
            publish(hub, {"model.safetensors": file_of(WEIGHTS)})
        return False

    hub.before = shrink
    with pytest.raises(SourceError, match="changed, or the server cut its header short"):
        open_source(NAME)


@pytest.mark.parametrize("told", ["bytes 5-10/100", "", "items 0-1/2", "bytes 0-131071/*"])
def test_other_bytes_than_asked_for_are_refused(hub: Server, told: str) -> None:
    def lie(handler: BaseHTTPRequestHandler) -> bool:
        if handler.headers.get("Range") is None:
            return False
        handler.send_response(206)
        handler.send_header("Content-Range", told)
        handler.send_header("Content-Length", "4")
        handler.end_headers()
        handler.wfile.write(b"1234")
        return True

    hub.before = lie
    with pytest.raises(SourceError, match="the server sent other bytes than were asked for"):
        open_source(NAME)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "model.safetensors: empty"),
        (b"1234", "4 bytes; a safetensors file has at least 8"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "says that its header has 1,099,511,627,776 bytes"),
        ((1 << 20).to_bytes(8, "little") + bytes(200_000), "but only 200,000 follow"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
        (file_of(WEIGHTS)[:-1], "truncated: its tensors take 262,144 bytes, 262,143 are there"),
    ],
)
def test_a_damaged_file_is_refused_as_on_disk(hub: Server, content: bytes, message: str) -> None:
    publish(hub, {"model.safetensors": content})
    with pytest.raises(SourceError) as refused:
        open_source(NAME)
    assert message in str(refused.value)


def test_a_json_file_without_end_is_not_read_to_its_end(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policyquant.inventory.hub.MOST_BYTES", 1000)
    publish(hub, {"config.json": b" " * 5000})
    with pytest.raises(SourceError, match="more than 1,000 bytes"):
        open_source(NAME)


def test_a_silent_server_is_given_up(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_requests, "_TIMEOUT", 0.05)
    hub.before = lambda handler: time.sleep(0.3) is None
    with pytest.raises(SourceError, match=r"config\.json: no answer: timed out"):
        open_source(NAME)


def test_a_server_that_drips_is_given_up(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_requests, "_DEADLINE", 0.2)

    def drip(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        for _ in range(40):
            try:
                handler.wfile.write(b" ")
                handler.wfile.flush()
            except OSError:
                break
            time.sleep(0.02)
        return True

    hub.before = drip
    with pytest.raises(SourceError, match="no complete answer within 0 seconds"):
        open_source(NAME)
    assert len(hub.requests) == 1


def test_a_host_that_is_not_found_is_named_with_what_else_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_requests, "_PAUSE", 0.01)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")  # Reserved: no server will ever have this name.
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(SourceError, match=r"no answer from hub\.invalid: .*a local path or a saved inventory; HF_ENDP"):
        open_source(NAME)


def test_nobody_listening_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_requests, "_PAUSE", 0.01)
    with Server() as gone:
        address = gone.address
    monkeypatch.setenv("HF_ENDPOINT", address)
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(SourceError, match=r"config\.json: no answer"):
        open_source(NAME)


@pytest.mark.parametrize(
    ("name", "revision", "path"),
    [
        ("hf://org/tiny@v1.0", None, "/org/tiny/resolve/v1.0/config.json"),
        ("hf://org/tiny", "v1.0", "/org/tiny/resolve/v1.0/config.json"),
        ("hf://org/tiny@refs/pr/1", None, "/org/tiny/resolve/refs%2Fpr%2F1/config.json"),
        ("hf://gpt2", None, "/gpt2/resolve/main/config.json"),
    ],
)
def test_a_revision_is_asked_for(hub: Server, name: str, revision: str | None, path: str) -> None:
    with pytest.raises(SourceError):
        open_source(name, revision=revision)
    assert hub.requests[0].path == path


@pytest.mark.parametrize(
    "name", ["hf://", "hf://a/b/c", "hf://../x", "hf://a b/c", "hf://a/b@", "hf://a/b?x=1", "hf://a/b@x y", "hf://-a/b"]
)
def test_what_is_no_repository_name_is_refused(name: str) -> None:
    with pytest.raises(SourceError, match="expected hf://organisation/name"):
        parse_hub_name(name)


def test_two_revisions_at_once_are_refused() -> None:
    with pytest.raises(SourceError, match="names the revision 'a', but 'b' is asked for"):
        parse_hub_name("hf://org/tiny@a", "b")


@pytest.mark.parametrize("token", ["a b", "a\r\nX-Header: 1", "ä"])
def test_a_token_that_no_header_may_hold_is_refused(hub: Server, token: str) -> None:
    with pytest.raises(SourceError, match="HF_TOKEN: a token has no spaces") as refused:
        open_source(NAME, token=token)
    assert token not in str(refused.value)
    assert hub.requests == []


@pytest.mark.parametrize("endpoint", ["huggingface.co", "file:///x", "http://", "http://a:b", "http://a b", "ftp://x"])
def test_an_endpoint_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(SourceError, match=r"HF_ENDPOINT: .* is no address"):
        open_source(NAME)


def test_a_compressed_answer_is_refused(hub: Server) -> None:
    def compressed(handler: Any) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", "0")
        handler.end_headers()
        return True

    hub.before = compressed
    with pytest.raises(SourceError, match="compressed answer"):
        open_source(NAME)
