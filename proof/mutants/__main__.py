"""`python -m proof.mutants`: run the mutants of the kernels, say which were killed; exit status 1 if one was not."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

from proof.mutants.run import Outcome, run, tables


def _print(outcome: Outcome) -> None:
    mutant = outcome.mutant
    print(f"{outcome.status:10} {outcome.seconds:5.1f} s  {outcome.table}: {mutant.kind} ({mutant.file})", flush=True)
    if outcome.bad:
        print(f"  - {mutant.old!r}\n  + {mutant.new!r}\n{outcome.log}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.mutants", description=__doc__)
    parser.add_argument("families", nargs="*", help="families to run; default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument(
        "--seconds", type=float, default=3600, help="start none after this time; in an order that the date sets"
    )
    parser.add_argument("--kind", default="", help="only mutants whose kind contains this")
    arguments = parser.parse_args()
    known = tables()
    unknown = sorted(set(arguments.families) - set(known))
    if unknown:
        parser.error(f"no table {', '.join(unknown)}; there are {', '.join(known)}")
    chosen = [
        (table, mutant)
        for table in arguments.families or known
        for mutant in known[table]
        if arguments.kind in mutant.kind
    ]
    outcomes = run(chosen, arguments.jobs, arguments.seconds, _print)
    count = Counter(outcome.status for outcome in outcomes)
    print(", ".join(f"{number} {status}" for status, number in sorted(count.items())) or "no mutants")
    return 1 if any(outcome.bad for outcome in outcomes) else 0


if __name__ == "__main__":
    # Without a GPU kernels are interpreted; forked processes and torch's threads do not go together.
    os.environ["TRITON_INTERPRET"], os.environ["OMP_NUM_THREADS"] = "1", "1"
    status = main()
    sys.stdout.flush()
    # Triton's library complains of leaks when Python takes it down.
    os._exit(status)
