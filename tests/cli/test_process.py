"""What only a whole process shows: exit status, pipes, signals, terminals, encodings."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from policyquant.version import VERSION
from tests.cli.command import EXPERTS_FP8, MIXTRAL, command, model, process

INSPECT = ("inspect", MIXTRAL, "--policy", EXPERTS_FP8)

needs_posix = pytest.mark.skipif(os.name != "posix", reason="signals and pseudo-terminals of POSIX")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (INSPECT, 0),
        (("--version",), 0),
        (("inspect", "--help"), 0),
        (("match", "*.nothing", MIXTRAL), 1),
        (("inspect", "no-such-model", "--policy", EXPERTS_FP8), 2),
        (("no-such-command",), 2),
        ((), 2),
    ],
)
def test_exit_status(words: tuple[str, ...], status: int) -> None:
    assert process(*words).returncode == status


def test_results_go_to_standard_output_and_nothing_to_standard_error() -> None:
    finished = process(*INSPECT)
    assert "block_sparse_moe.experts" in finished.stdout
    assert finished.stderr == ""


def test_messages_go_to_standard_error_and_nothing_to_standard_output() -> None:
    finished = process("inspect", "no-such-model", "--policy", EXPERTS_FP8)
    assert finished.stdout == ""
    assert finished.stderr == "error: no-such-model: no such file or directory\n"


def test_the_installed_command_is_the_same_as_the_module() -> None:
    script = Path(sys.executable).with_name("policyquant")
    if not script.exists():
        pytest.skip("policyquant is not installed beside this Python")
    finished = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert finished.stdout == process("--version").stdout == f"policyquant {VERSION}\n"


@needs_posix
@pytest.mark.parametrize("form", ["table", "json", "markdown"])
def test_a_reader_that_stops_reading_is_no_error(form: str) -> None:
    with subprocess.Popen(
        command("inspect", model("DeepSeek-V3"), "--policy", "fp8-block", "--all", "--format", form),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        message = running.stderr.read()
    assert message == b""
    assert running.returncode == 141


@needs_posix
def test_a_closed_standard_output_is_no_error() -> None:
    finished = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command(*INSPECT)], capture_output=True, text=True, check=False
    )
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_full_disk_is_a_message(form: str) -> None:
    with Path("/dev/full").open("w") as full:
        finished = subprocess.run(
            command(*INSPECT, "--format", form), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert finished.returncode == 2
    assert finished.stderr == "error: the output cannot be written: No space left on device\n"


@needs_posix
def test_an_interrupt_is_silent() -> None:
    # A Hub that never answers: once it is called, the command is at work, and waits for as long as we like.
    with socket.create_server(("127.0.0.1", 0)) as hub:
        hub.settimeout(30)
        address = f"http://127.0.0.1:{hub.getsockname()[1]}"
        with (
            subprocess.Popen(
                command("inspect", "hf://org/name", "--policy", EXPERTS_FP8),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "HF_ENDPOINT": address},
            ) as running,
            hub.accept()[0],
        ):
            running.send_signal(signal.SIGINT)
            output, message = running.communicate()
    assert (output, message) == (b"", b"")
    assert running.returncode == 130


@needs_posix
def test_an_interrupt_while_the_command_line_is_imported_is_silent() -> None:
    # An import that is interrupted the moment it begins stands for one at any time of it.
    script = (
        "import builtins, signal, os\n"
        "from policyquant.cli.entry import main\n"
        "real = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'policyquant.cli.main':\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "raise SystemExit(main())\n"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, timeout=60)
    assert (finished.returncode, finished.stdout, finished.stderr) == (130, b"", b"")


def on_a_terminal(*words: str, width: int = 200, environment: dict[str, str] | None = None) -> str:
    """What the command shows on a terminal of this width."""
    fcntl, pty, termios = pytest.importorskip("fcntl"), pytest.importorskip("pty"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    fcntl.ioctl(
        theirs, termios.TIOCSWINSZ, (40).to_bytes(2, sys.byteorder) + width.to_bytes(2, sys.byteorder) + bytes(4)
    )
    running = subprocess.Popen(
        command(*words), stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm", **(environment or {})}
    )
    os.close(theirs)
    seen = b""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # Linux says so when the other end is closed.
                break
            if not piece:
                break
            seen += piece
    running.wait()
    os.close(ours)
    return seen.decode("utf-8").replace("\r\n", "\n")


@needs_posix
def test_a_terminal_gets_colours() -> None:
    assert "\x1b[" in on_a_terminal(*INSPECT)


@needs_posix
@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"NO_COLOR": "1", "FORCE_COLOR": "1"}])
def test_colours_can_be_refused(environment: dict[str, str]) -> None:
    assert "\x1b" not in on_a_terminal(*INSPECT, environment=environment)


def test_a_pipe_gets_no_colours_unless_they_are_forced() -> None:
    assert "\x1b" not in process(*INSPECT).stdout
    assert "\x1b[" in process(*INSPECT, environment={"FORCE_COLOR": "1"}).stdout


@needs_posix
@pytest.mark.parametrize("width", [200, 160, 120, 80])
def test_lines_fit_the_terminal_and_names_stay_whole(width: int) -> None:
    shown = on_a_terminal(*INSPECT, width=width, environment={"NO_COLOR": "1"})
    table = shown.partition("\n\n")[2].partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= width
    assert any(line.startswith("model.layers.{0..31}.block_sparse_moe.experts.{0..7}.w1") for line in table)


@needs_posix
@pytest.mark.parametrize("width", [100, 80])
def test_what_is_said_of_one_layer_fits_the_terminal(width: int) -> None:
    words = ("explain", MIXTRAL, "model.layers.0.block_sparse_moe.experts.0.w1", "--policy", "fp8-experts")
    shown = on_a_terminal(*words, width=width, environment={"NO_COLOR": "1"}).splitlines()
    assert max(map(len, shown)) <= width


@needs_posix
def test_paragraphs_of_help_fit_the_terminal_and_examples_stay_whole() -> None:
    environment = {"NO_COLOR": "1", "COLUMNS": "80"}
    shown = on_a_terminal("inspect", "--help", width=80, environment=environment)
    paragraphs, _, examples = shown.partition("example:")
    assert max(map(len, paragraphs.splitlines())) <= 80
    assert "  policyquant inspect path/to/model --policy fp8-dynamic --filter 'decoder.*.moe' --all" in examples


@pytest.mark.parametrize("columns", ["20", "1000"])
def test_a_pipe_gets_whole_lines_whatever_the_width(columns: str) -> None:
    assert process(*INSPECT, environment={"COLUMNS": columns}).stdout == process(*INSPECT).stdout


def test_names_that_the_encoding_lacks_are_escaped(tmp_path: Path) -> None:
    source = tmp_path / "model.json"
    source.write_text(json.dumps({"name": "m", "tensors": {"größe.weight": ["BF16", [8, 8]]}}), encoding="utf-8")
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert "gr\\xf6\\xdfe" in process("inventory", source, environment=ascii_only).stdout
    assert "größe" in process("inventory", source, environment={"PYTHONIOENCODING": "utf-8"}).stdout


def test_json_is_utf_8_whatever_the_encoding(tmp_path: Path) -> None:
    source = tmp_path / "model.json"
    source.write_text(json.dumps({"name": "m", "tensors": {"größe.weight": ["BF16", [8, 8]]}}), encoding="utf-8")
    shown = process("inventory", source, "--json", environment={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}).stdout
    assert json.loads(shown)["layers"][0]["name"] == "größe"
