"""`python -m benchmarks [NAME …]`: run all benchmarks or some, print their tables, and say which bars are reached.

Exit status: 0 if every bar is reached, 1 if one is missed, 2 if there is no such benchmark.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from benchmarks.report import Bar, Outcome

BENCHMARKS: Final = (
    "import_cost",
    "resolve_large",
    "inspect_process",
    "exact_rules",
    "exclusion_list",
    "growth",
    "memory",
    "build_smollm2",
    "build_memory",
    "decode_overhead",
    "operator_cost",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Times of policyquant beside its peers.")
    parser.add_argument("names", metavar="NAME", nargs="*", help=f"which: {', '.join(BENCHMARKS)}; none: all")
    parser.add_argument("--tiny", action="store_true", help="a moment each: whether they run, not how fast")
    arguments = parser.parse_args(argv)
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    bars: list[Bar] = []
    for name in arguments.names or BENCHMARKS:
        outcome = _run(name, arguments.tiny)
        if outcome is not None:
            bars.extend(outcome.bars)
    missed = [bar for bar in bars if not bar.reached]
    print(f"{len(bars) - len(missed)} of {len(bars)} bars reached")
    return 1 if missed and not arguments.tiny else 0


def _run(name: str, tiny: bool) -> Outcome | None:
    module = import_module(f"benchmarks.{name}")
    absent = [package for package in getattr(module, "NEEDS", ()) if find_spec(package) is None]
    if absent:
        print(f"{name}: left out, {' and '.join(absent)} missing; `make bench` has everything\n")
        return None
    purpose = (module.__doc__ or "").partition("\n")[0]
    print(f"{name}: {purpose}\n", flush=True)
    outcome: Outcome = module.run(tiny=tiny)
    for text in (*outcome.tables, *map(str, outcome.bars)):
        print(f"{text}\n")
    sys.stdout.flush()
    return outcome


if __name__ == "__main__":
    raise SystemExit(main())
