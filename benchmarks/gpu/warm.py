"""Calls every row's operator once, so that its Triton kernels are compiled: `warm I/N`, part I of N.

`--by cuda` calls the CUDA library instead.
"""

from __future__ import annotations

import argparse
import sys
import warnings

from benchmarks.gpu.row import Row
from benchmarks.gpu.rows import families, rows_of
from policyquant.kernels import dispatch
from policyquant.kernels import ops as _registered  # noqa: F401 (importing it defines the operators)


def main() -> int:
    """1 if a kernel does not compile."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--by", default="triton")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    device = "cpu" if arguments.rehearse else "cuda"
    rows = [row for family in families() for row in rows_of(family, tiny=arguments.rehearse)]
    bad = 0
    for row in rows[part::parts]:
        reason = _called(row, device, arguments.by)
        if reason is not None:
            bad += 1
            print(f"{row.operator} {row.shape}: {reason}", flush=True)
    return 1 if bad else 0


def _called(row: Row, device: str, implementation: str) -> str | None:
    """Why it cannot be, if so."""
    try:
        with warnings.catch_warnings(), dispatch.force(implementation):
            warnings.simplefilter("ignore")
            row.ours(row.inputs(device))
    except Exception as error:
        return f"{error!r}"
    return None


if __name__ == "__main__":
    sys.exit(main())
