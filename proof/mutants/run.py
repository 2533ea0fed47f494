"""Runs mutants, each in a forked process that has imported all that is heavy and nothing of ours."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pkgutil
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proof import mutants
from proof.mutants.mutant import ROOT, Mutant, install

_HEAVY = ("numpy", "torch", "hypothesis", "pytest", "triton", "triton.language")
_NOT_TABLES = ("mutant", "run", "__main__")
_SURVIVED, _KILLED, _BROKEN = 0, 1, 3


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutant."""

    table: str
    mutant: Mutant
    status: str
    """killed, survived, equivalent, broken (its tests could not be run: what they printed is in `log`), not run."""
    seconds: float = 0.0
    log: str = ""

    @property
    def bad(self) -> bool:
        return self.status in ("survived", "broken")


def tables() -> dict[str, list[Mutant]]:
    """Family → its mutants."""
    names = sorted(each.name for each in pkgutil.iter_modules(mutants.__path__) if each.name not in _NOT_TABLES)
    return {name: importlib.import_module(f"proof.mutants.{name}").MUTANTS for name in names}


def run(
    chosen: Sequence[tuple[str, Mutant]], jobs: int, seconds: float, report: Callable[[Outcome], None]
) -> list[Outcome]:
    """Run mutants, `jobs` at a time, in random order, and start none after `seconds`.

    The order is set by the date, so that where time runs out other mutants are left each day.
    """
    for module in _HEAVY:
        importlib.import_module(module)
    # What is there now is not looked at again in the forked processes, which would copy its pages.
    gc.freeze()
    outcomes = [Outcome(table, each, "equivalent") for table, each in chosen if each.equivalent]
    waiting = [(table, each) for table, each in chosen if not each.equivalent]
    random.Random(time.strftime("%Y-%m-%d")).shuffle(waiting)
    start, running = time.monotonic(), {}
    while waiting or running:
        if waiting and time.monotonic() - start > seconds:
            outcomes += [Outcome(table, each, "not run") for table, each in waiting]
            waiting = []
        while waiting and len(running) < jobs:
            table, mutant = waiting.pop()
            log = ROOT / "build" / "mutants" / f"{table}-{len(outcomes)}-{len(waiting)}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            running[_fork(mutant, log)] = (table, mutant, log, time.monotonic())
        if not running:
            break
        process, status = os.wait()
        table, mutant, log, began = running.pop(process)
        code = os.waitstatus_to_exitcode(status)
        # A signal: what the mutant wrote, or read, was not its own.
        word = "killed" if code < 0 else {_SURVIVED: "survived", _KILLED: "killed"}.get(code, "broken")
        text = "" if word == "killed" else log.read_text(encoding="utf-8", errors="replace")[-3000:]
        outcomes.append(Outcome(table, mutant, word, time.monotonic() - began, text))
        report(outcomes[-1])
    return outcomes


def _fork(mutant: Mutant, log: Path) -> int:
    process = os.fork()
    if process:
        return process
    code = _BROKEN
    try:
        with log.open("w", encoding="utf-8") as stream, _output_to(stream.fileno()):
            code = _tested(mutant)
    except BaseException:
        log.write_text(traceback.format_exc(), encoding="utf-8")
    finally:
        os._exit(code)


@contextlib.contextmanager
def _output_to(descriptor: int) -> Iterator[None]:
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    yield
    sys.stdout.flush()
    sys.stderr.flush()


def _tested(mutant: Mutant) -> int:
    """What pytest says of the mutant's tests: 0, all pass; 1, some fail; anything else: they could not be run."""
    import pytest

    os.chdir(ROOT)
    install(mutant)
    arguments = [*mutant.tests.split(), "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    # hypothesis was imported before pytest could rewrite its assertions, which is of no interest.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    os.environ["POLICYQUANT_TEST_PROFILE"] = "mutants"
    if mutant.select:
        arguments += ["-k", mutant.select]
    return int(pytest.main(arguments))
