"""Whole processes: how long one runs and how much memory it has at most."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parent.parent
"""Where `-m` finds this package."""

_LAUNCHER: Final = """
import os, sys
devnull = os.open(os.devnull, os.O_WRONLY)
actions = [(os.POSIX_SPAWN_DUP2, devnull, 1), (os.POSIX_SPAWN_DUP2, devnull, 2)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=actions)
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


def policyquant(*words: object) -> list[str]:
    """The command line of our own tool, run by this very interpreter."""
    return [sys.executable, "-m", "policyquant", *map(str, words)]


def python(program: str, *words: object) -> list[str]:
    """A bare interpreter with a program of a few lines."""
    return [sys.executable, "-c", program, *map(str, words)]


def benchmark(module: str, *words: object) -> list[str]:
    """A module of this package as a program, to be run by `output_of`."""
    return [sys.executable, "-m", f"benchmarks.{module}", *map(str, words)]


def output_of(command: Sequence[str]) -> bytes:
    """Run to the end and return what it printed; messages are dropped.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(command, capture_output=True, check=False, cwd=_ROOT)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, list(command), done.stdout, done.stderr)
    return done.stdout


def peak_memory(command: Sequence[str]) -> int:
    """Bytes of resident memory that a process has at most.

    A small process starts it and measures: the system counts what a parent had at the fork to its child.

    Raises:
        RuntimeError: the process failed.
    """
    status, peak = map(int, output_of(python(_LAUNCHER, *command)).split())
    if status:
        raise RuntimeError(f"exit status {status} of {' '.join(command)}")
    return peak
