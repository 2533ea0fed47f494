"""The tests of the kernels notice wrong kernels: every mutant of `proof.mutants` is killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from proof.mutants.mutant import ROOT, Mutant
from proof.mutants.run import tables

ALL = [(table, mutant) for table, mutants in tables().items() for mutant in mutants]


@pytest.mark.parametrize(("table", "mutant"), ALL, ids=[f"{table}: {mutant.kind}" for table, mutant in ALL])
def test_a_mutant_changes_what_is_there_and_names_tests_that_are(table: str, mutant: Mutant) -> None:
    assert mutant.changed()
    for each in mutant.tests.split():
        assert (ROOT / each.partition("::")[0]).is_file(), each
    assert mutant.module.startswith("policyquant.kernels.")


def test_text_that_is_not_there_once_is_no_mutant() -> None:
    with pytest.raises(ValueError, match="expected once"):
        Mutant("none", "kernels/ops.py", "no such text", "", "").changed()


@pytest.mark.slow
def test_every_mutant_is_killed() -> None:
    # Of all families together: what is heavy is imported once, and no core waits for the last mutant of each.
    command = [sys.executable, "-m", "proof.mutants", "--seconds", "900"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
