"""Whatever is handed in, a person gets a message and status 2; never a traceback."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import EXPERTS_FP8, MIXTRAL, Run


def missing(path: Path) -> None:
    """No such file."""


def directory(path: Path) -> None:
    path.mkdir()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def binary(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 64)


def nested(path: Path) -> None:
    path.write_text("[" * 100_000, encoding="utf-8")


def other_json(path: Path) -> None:
    path.write_text('{"a": 1}', encoding="utf-8")


def compressed_garbage(path: Path) -> None:
    path.write_bytes(gzip.compress(b"{}")[:-4])


def plan_of_another_version(path: Path) -> None:
    path.write_text(json.dumps({"version": 99, "model": {}, "policy": {}, "layers": []}), encoding="utf-8")


BAD_FILES: list[Callable[[Path], None]] = [
    missing,
    directory,
    empty,
    binary,
    nested,
    other_json,
    compressed_garbage,
    plan_of_another_version,
]

EACH_FILE = pytest.mark.parametrize("make", BAD_FILES, ids=lambda make: make.__name__)
EACH_SUFFIX = pytest.mark.parametrize("suffix", [".json", ".yaml", ".safetensors", ".index.json", ""])


@EACH_FILE
@EACH_SUFFIX
@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "FILE", "--policy", EXPERTS_FP8),
        ("inspect", "FILE"),
        ("inspect", MIXTRAL, "--policy", "FILE"),
        ("check", "FILE"),
        ("explain", "FILE", "lm_head", "--policy", EXPERTS_FP8),
        ("match", "*", "FILE"),
        ("inventory", "FILE"),
    ],
    ids=" ".join,
)
def test_a_bad_file_is_a_message(
    run: Run, in_empty_directory: Path, make: Callable[[Path], None], suffix: str, words: tuple[str, ...]
) -> None:
    path = in_empty_directory / f"bad{suffix}"
    make(path)
    status, out, err = run(*(path.name if word == "FILE" else word for word in words))
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert f"bad{suffix}" in err
    assert len(err) < 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("insepct", MIXTRAL), "no command is named 'insepct'; did you mean 'inspect'? (see: policyquant --help)"),
        (("inspect",), "the following arguments are required: MODEL (see: policyquant inspect --help)"),
        (("inspect", MIXTRAL, "--polcy", "x"), "no option --polcy; did you mean '--policy'?"),
        (("inspect", MIXTRAL, "--pol=x"), "no option --pol"),
        # An option that is required may be there, misspelled: that is what to say, not that it is missing.
        (
            ("run", "model", "--promt", "hi"),
            "no option --promt; did you mean '--prompt'? (see: policyquant run --help)",
        ),
        (("run", "model", "--promt=hi there"), "no option --promt; did you mean '--prompt'?"),
        (("run", "--prmpt", "hi"), "no option --prmpt; did you mean '--prompt'?"),
        (("explain", MIXTRAL, "--polcy=fp8-kv"), "no option --polcy; did you mean '--policy'?"),
        (("explain", MIXTRAL, "-Z"), "no option -Z"),
        (("--qiet", "inspect"), "no option --qiet; did you mean '--quiet'?"),
        (("--strct",), "no option --strct; did you mean '--strict'?"),
        (("run", "model", "--top-k", "3"), "the following arguments are required: --prompt"),
        (("explain", "--", "--promt"), "the following arguments are required: MODEL, NAME"),
        (("inspect", MIXTRAL, "extra", "--polcy", "fp8-kv"), "no option --polcy; did you mean '--policy'?"),
        (("presets", "fp8-kv", "-1"), "one argument too many: '-1'"),
        (("inspect", MIXTRAL, "extra", "--policy", "fp8-kv"), "one argument too many: 'extra'"),
        (("inspect", MIXTRAL, "--policy"), "expected one argument"),
        (
            ("inspect", MIXTRAL, "--policy", "fp8-kv", "--method", "fp88"),
            "no method is named 'fp88'; did you mean 'fp8'?",
        ),
        (
            ("inspect", MIXTRAL, "--policy", "fp8-kv", "--kind", "rooter"),
            "no kind is named 'rooter'; did you mean 'router'?",
        ),
        (("inspect", MIXTRAL, "--policy", "fp8-dynamc"), "did you mean 'fp8-dynamic'?"),
        (("inspect", MIXTRAL, "--policy", "fp8-kv", "--format", "html"), "invalid choice: 'html'"),
        (("inspect", MIXTRAL, "--policy", "fp8-kv", "--quiet", "--verbose"), "not allowed with argument"),
        (("presets", "fp8-dynamc"), "did you mean 'fp8-dynamic'?"),
        (("methods", "fp9"), "no method is named 'fp9'; did you mean 'fp8'?"),
        (("schema", "plans"), "invalid choice: 'plans'"),
        (("inspect", "a\0b", "--policy", "fp8-kv"), "null character"),
        (("inspect", "org/name", "--policy", "fp8-kv"), "write hf://org/name"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else value[:40],
)
def test_a_request_that_is_not_understood_says_why(run: Run, words: tuple[str, ...], message: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


@pytest.mark.parametrize("name", ["\x1b[2J\x1b[31mred", "two\nlines\u202e"])
def test_a_message_cannot_control_the_terminal(run: Run, name: str) -> None:
    err = run("inspect", name, "--policy", "fp8-kv").err
    assert all(character == "\n" or character.isprintable() for character in err)
