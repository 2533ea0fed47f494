"""Files made to break a reader: each is refused, or read, in bounded time and memory and with a message of a line."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policyquant.inventory.config_file import parse_config
from policyquant.inventory.index import parse_index
from policyquant.inventory.inventory import Inventory
from policyquant.inventory.json_file import parse_json
from policyquant.inventory.safetensors import parse_header
from policyquant.inventory.saved import parse_inventory
from policyquant.inventory.sources import open_source
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.files_on_disk import header_of, refusal, safetensors_bytes, write_index, write_model

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 10.0
"""What takes more than linear time would take minutes."""

posix = pytest.mark.skipif(sys.platform == "win32", reason="paths of POSIX")


def plain(shape: object) -> Callable[[], object]:
    return lambda: parse_inventory(json.dumps({"tensors": {"x.weight": ["BF16", shape]}}).encode(), "x.json")


def own(**changes: object) -> Callable[[], object]:
    layer = {"template": "x", "indices": [[]], "tensors": [["weight", "BF16", [1]]], **changes}
    value = {"format": "policyquant-inventory", "version": 1, "name": "x", "source": "x", "naming": "module"}
    text = json.dumps({**value, "config": {}, "sets": [layer]}).encode()
    return lambda: parse_inventory(text, "x.json")


def header(shape: object) -> Callable[[], object]:
    entry = {"dtype": "BF16", "shape": shape, "data_offsets": [0, 2]}
    return lambda: parse_header(json.dumps({"x.weight": entry}).encode(), 100, "x.safetensors")


@pytest.mark.parametrize(
    "source",
    [
        plain,
        header,
        lambda shape: own(tensors=[["weight", "BF16", shape]]),
        lambda s: lambda: from_tensors([("x", s, "BF16")]),
    ],
    ids=["plain", "header", "own", "list"],
)
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([4611686018427387904] * 20, "a shape larger than any file"),
        ([2] * 62, "a shape larger than any file"),
        ([0, 1 << 62, 4], "a shape larger than any file"),
        ([10**4000], "a shape larger than any file"),
        ([1] * 65, "more than 64 dimensions"),
        ([9] * 100_000, "more than 64 dimensions"),
    ],
    ids=["product", "many twos", "behind a zero", "digits", "65", "100,000"],
)
def test_no_shape_is_larger_than_a_file(
    source: Callable[[object], Callable[[], object]], shape: Any, message: str
) -> None:
    text = refusal(source(shape))
    assert f"has {message}" in text
    assert len(text) < 300


@pytest.mark.parametrize("shape", [[], [0, 4096], [1] * 64, [2] * 58])
def test_an_unusual_shape_is_read(shape: list[int]) -> None:
    assert Inventory.of(from_tensors([("x.weight", shape, "BF16")])).sets
    assert plain(shape)()


def test_a_packed_dimension_counts_double() -> None:
    assert "larger than any file" in refusal(lambda: from_tensors([("x", [1 << 60], "float4_e2m1fn_x2")]))


@pytest.mark.parametrize("index", [10**9, 10**4000, -1, 1.0])
def test_an_index_that_no_name_has_is_refused(index: object) -> None:
    assert "at most nine digits" in refusal(own(template="x.#", indices=[[index]]))


def test_a_template_that_no_name_has_is_refused() -> None:
    assert "more than 65 parts" in refusal(own(template=".".join("#" * 100_000), indices=[[0] * 100_000]))


@pytest.mark.parametrize("code", ["PQ4", "PQ4010", "pq401", "XX401", "PQ401\n", "PQ\u0664\u0660\u0661", ""])
def test_a_finding_of_a_saved_inventory_has_a_code_of_ours(code: str) -> None:
    value = {"format": "policyquant-inventory", "version": 1, "name": "", "source": "", "naming": "module"}
    finding = {"code": code, "level": "note", "message": "x"}
    text = json.dumps({**value, "config": {}, "sets": [], "findings": [finding]}).encode()
    assert "expected a code as PQ401" in refusal(lambda: parse_inventory(text, "x.json"))


def test_very_many_keys_that_stand_twice_are_one_finding() -> None:
    pairs = ["\n" + ",\n".join(f'"{key}": 1' for _ in range(100_000)) for key in "abcdefgh"]
    begun = time.monotonic()
    (finding,) = parse_config(f"{{{','.join(pairs)}}}".encode(), "config.json").findings
    assert time.monotonic() - begun < MOST_SECONDS
    assert finding.code == "PQ409"
    assert finding.message.startswith("config.json:3:1: the key 'a' stands twice (so do 'b' at config.json:100003:1, ")
    assert len(finding.message) < 300


def test_very_many_tensors_that_stand_twice_are_refused_in_time() -> None:
    entry = '"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]}'
    begun = time.monotonic()
    text = refusal(lambda: parse_header(f"{{{','.join([entry] * 200_000)}}}".encode(), 10**9, "x"))
    assert text == f"x (header):1:{len(entry) + 3}: the key 'a' stands twice in one object"
    assert time.monotonic() - begun < MOST_SECONDS


@posix
@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "a/" * 3000, "x" * 300 + ".safetensors"])
def test_a_path_that_is_too_long_is_refused(tmp_path: Path, name: str) -> None:
    assert "cannot be read: File name too long" in refusal(lambda: open_source(tmp_path / name))


@posix
def test_a_link_to_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("x" * 300)
    assert refusal(lambda: open_source(tmp_path / "link")).endswith("link: cannot be read: File name too long")


@posix
def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "loop: cannot be read: Too many levels of symbolic links" in refusal(lambda: open_source(tmp_path / "loop"))


@posix
def test_a_config_that_is_a_link_to_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, {"a.weight": ("BF16", [2])})
    (tmp_path / "config.json").symlink_to("x" * 300)
    assert "config.json: cannot be read: File name too long" in refusal(lambda: open_source(tmp_path))


@posix
def test_a_shard_whose_name_is_too_long_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, {"a.weight": "x" * 300 + ".safetensors"})
    text = refusal(lambda: open_source(tmp_path))
    assert "xxx...: cannot be read: File name too long" in text
    assert len(text) < 300 + len(str(tmp_path))


UNREADABLE = """
import os, sys
from policyquant.errors import SourceError
from policyquant.inventory.sources import open_source
if os.geteuid() == 0:
    os.setuid(65534)
for source in sys.argv[1:]:
    try:
        open_source(source)
    except SourceError as error:
        print(error)
"""


@posix
def test_a_directory_that_may_not_be_entered_is_refused(tmp_path: Path) -> None:
    """In another process, which gives up the rights of root if it has them."""
    import tempfile

    # pytest's own directories are closed to other users.
    with tempfile.TemporaryDirectory() as parent:
        Path(parent).chmod(0o755)
        closed = Path(parent) / "closed"
        closed.mkdir()
        write_model(closed, {"a.weight": ("BF16", [2])})
        closed.chmod(0)
        try:
            command = [sys.executable, "-c", UNREADABLE, str(closed), str(closed / "model.safetensors")]
            run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        finally:
            closed.chmod(0o755)
    lines = run.stdout.splitlines()
    assert run.stderr == ""
    assert [line.partition(": cannot be read: ")[2] for line in lines] == ["Permission denied"] * 2


@posix
def test_a_working_directory_that_is_gone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for source in (".", "model", "model.safetensors"):
        assert refusal(lambda source=source: open_source(source))  # type: ignore[misc]


@posix
@pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 names only")
def test_a_path_that_is_not_utf8_becomes_text(tmp_path: Path) -> None:
    directory = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff"))
    write_model(directory, {"a.weight": ("BF16", [2])})
    write_model(directory, {"b.weight": ("BF16", [2])}, name="x\udcff.safetensors")
    for source in (directory, directory / "model.safetensors", directory / "x\udcff.safetensors"):
        inventory = Inventory.open(source)
        texts = (inventory.name, inventory.source, *(finding.message for finding in inventory.findings))
        assert "\ufffd" in inventory.source
        assert all(text.encode() for text in texts)
        inventory.save(tmp_path / "saved.json")
        assert Inventory.open(tmp_path / "saved.json").source == inventory.source
    missing = refusal(lambda: open_source(directory / "y\udcff"))
    assert missing.encode()


@posix
def test_the_source_of_a_long_or_odd_path_is_the_path_itself(tmp_path: Path) -> None:
    """So that what is written can be told from what was read."""
    directory = tmp_path / "a\nb" / ("x" * 200) / ("y" * 200)
    directory.parent.mkdir(parents=True)
    write_model(directory, {"a.weight": ("BF16", [2])})
    write_index(directory, {"a.weight": "model.safetensors"})
    for source in (directory, *directory.glob("model.*")):
        assert open_source(source).source == str(source)


MEMORY = """
import resource, sys
from policyquant.errors import SourceError
from policyquant.inventory.sources import open_source
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    open_source(sys.argv[1])
except SourceError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measured in Linux's unit")
@pytest.mark.parametrize("rare", ["\U0001f600", "\\ud83d\\ude00"], ids=["emoji", "escaped emoji"])
def test_one_rare_character_does_not_multiply_the_memory_of_a_text(tmp_path: Path, rare: str) -> None:
    path = tmp_path / "x.json.gz"
    text = '{"tensors": {"' + rare + "a" * 100_000_000 + '": ["BF16", [1]]}}'
    path.write_bytes(gzip.compress(text.encode(), compresslevel=1))
    run = subprocess.run([sys.executable, "-c", MEMORY, path], capture_output=True, text=True, cwd=ROOT, check=True)
    message, mebibytes = run.stdout.splitlines()
    assert message.endswith("more than 33,554,432 bytes, and not all of them ASCII characters")
    assert int(mebibytes) < 400


def test_a_text_of_very_many_strings_is_refused() -> None:
    text = b'{"a": [' + b'"",' * 3_000_000 + b'""]}'
    assert "more than 2,000,000 values" in refusal(lambda: parse_json(text, "x", most_values=2_000_000))


def test_the_headers_of_all_shards_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("policyquant.inventory.safetensors._MOST_TOTAL_BYTES", 2000)
    shards = {f"{i}.weight": f"model-{i}-of-9.safetensors" for i in range(1, 10)}
    for tensor, shard in shards.items():
        content = {**header_of({tensor: ("BF16", [2])}), "__metadata__": {"a": "b" * 400}}
        (tmp_path / shard).write_bytes(safetensors_bytes(content))
    write_index(tmp_path, shards)
    assert "the headers of its files have more than 2,000 bytes" in refusal(lambda: open_source(tmp_path))


LONG = "x" * 10_000_000


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda: parse_header(json.dumps({LONG: 3}).encode(), 10**8, "f"), id="header entry"),
        pytest.param(
            lambda: parse_header(
                json.dumps({"a": {"dtype": "U8", "shape": [], "data_offsets": [0, 10**4000]}}).encode(), 10**8, "f"
            ),
            id="offset",
        ),
        pytest.param(
            lambda: parse_header(
                json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [10**4000, 10**4000 + 1]}}).encode(),
                10**8,
                "f",
            ),
            id="hole",
        ),
        pytest.param(lambda: parse_header(json.dumps({"__metadata__": {LONG: 3}}).encode(), 10**8, "f"), id="metadata"),
        pytest.param(lambda: parse_index(json.dumps({"weight_map": {LONG: 3}}).encode(), "f"), id="index entry"),
        pytest.param(lambda: parse_index(json.dumps({"weight_map": {"a": LONG}}).encode(), "f"), id="shard"),
        pytest.param(lambda: parse_index(json.dumps({"weight_map": {"a": "/" + LONG}}).encode(), "f"), id="shard path"),
        pytest.param(lambda: parse_json(f'{{"{LONG}": 1, "{LONG}": 1}}'.encode(), "f"), id="key twice"),
        pytest.param(lambda: parse_json(b'{"a": ' + b"1" * 5_000_000 + b"}", "f"), id="digits"),
        pytest.param(lambda: parse_json(b'{"a": -' + b"1" * 4301 + b"}", "f"), id="negative digits"),
        pytest.param(lambda: parse_inventory(json.dumps({"tensors": {LONG: 3}}).encode(), "f"), id="plain entry"),
        pytest.param(
            lambda: parse_inventory(json.dumps({"tensors": {f"{LONG}#.w": ["U8", []]}}).encode(), "f"),
            id="mark in name",
        ),
        pytest.param(lambda: parse_inventory(json.dumps({"tensors": {"a\n\x1b[31m": 3}}).encode(), "f"), id="control"),
        pytest.param(own(template=LONG + "#"), id="template"),
        pytest.param(own(tensors=[[LONG, "X", []]]), id="suffix"),
        pytest.param(own(tensors=[["a", LONG, []]]), id="dtype"),
        pytest.param(lambda: from_tensors([(LONG, (), "U8"), (LONG, (), "U8")]), id="list"),
        pytest.param(lambda: from_tensors([("a", (), LONG)]), id="list dtype"),
        pytest.param(lambda: open_source(f"s3://{LONG}"), id="address"),
        pytest.param(lambda: open_source(f"hf://{LONG}"), id="repository"),
        pytest.param(lambda: open_source("a\nb\x1b[31m"), id="path with a line break"),
    ],
)
def test_a_message_shows_little_of_what_was_found(call: Callable[[], object]) -> None:
    text = refusal(call)
    assert 0 < len(text) < 700
    assert text.isprintable()


def test_a_long_integer_is_located() -> None:
    text = b'{"a": "' + b"1" * 5000 + b'",\n "b": ' + b"2" * 5000 + b"}"
    assert refusal(lambda: parse_json(text, "f")) == "f:2:7: an integer of more than 4,300 digits"


def test_a_name_that_holds_the_mark_of_indices_is_told_with_its_file(tmp_path: Path) -> None:
    write_model(tmp_path, {"a.#.weight": ("BF16", [2])})
    assert f"{tmp_path}: the name 'a.#' holds '#'" in refusal(lambda: open_source(tmp_path))


def test_findings_show_little_of_what_was_found(tmp_path: Path) -> None:
    config = f'{{"dtype": "{LONG}", "torch_dtype": "y", "{LONG}": 1, "{LONG}": 2}}'
    findings = parse_config(config.encode(), "config.json").findings
    assert [finding.code for finding in findings] == ["PQ409", "PQ432"]
    assert all(len(finding.message) < 400 for finding in findings)


def test_numbers_of_thousands_of_digits_in_a_config_are_no_sizes() -> None:
    config = {"model_type": "gpt2", "n_head": 10**4200, "head_dim": 10**4200, "n_embd": 10**4200}
    tensors = [("h.0.attn.c_attn.weight", (4, 12), "F32"), ("h.0.attn.c_attn.bias", (12,), "F32")]
    assert Inventory.of(from_tensors(tensors, config=config)).sets


@pytest.mark.parametrize(
    "name",
    [
        "x{}q.weight",
        "layers.0.x{}a.weight",
        "x{}a.layers.0.q_proj.weight",
        "x{}a.weight.absmax",
        "model.layers.0.self_attn.q_proj{}a.weight",
        "model.layers.0.mlp.experts.{}a.up_proj.weight",
    ],
)
def test_very_many_different_layers_take_linear_time(name: str) -> None:
    def seconds(count: int) -> float:
        begun = time.process_time()
        Inventory.of(from_tensors((name.format(i), (4, 4), "BF16") for i in range(count)))
        return time.process_time() - begun

    few = seconds(3_000)
    assert seconds(15_000) < 10 * few + 0.5
