"""`python -m proof`: compile the kernels for GPUs that are not there, and check their machine code.

Prints a table; the exit status is 1 if anything is not as its case expects.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]


def worker(triton: Path | None, arguments: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Rows by one Triton: that of this Python, or the one in a folder.

    Raises:
        RuntimeError: the worker failed.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["POLICYQUANT_TUNING"] = "0"  # Tiles as shipped, whatever was measured on this machine.
    # What Triton's versions would choose by default, they tell with a warning.
    environment.update(OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join([*([str(triton)] if triton else []), str(ROOT)]))
    command = [sys.executable, "-m", "proof.worker", *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield json.loads(line)
    if process.returncode:
        raise RuntimeError(f"proof.worker ended with status {process.returncode}")


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("kernel", "case", "sm", "compiler", "regs", "shared", "matrix", "µs", "limit", "busiest", "result")
    for row in rows:
        times = row.get("microseconds")
        table.add_row(
            row["kernel"] or row["operator"],
            ", ".join(filter(None, (row["operator"], row["case"]))),
            str(row["architecture"]),
            row["triton"] if "triton" in row else f"nvcc {row['nvcc']}",
            str(row.get("registers", "")),
            str(row.get("shared", "")),
            "\n".join(row.get("matrix", [])),
            f"{times[row['limit']]:.1f}" if times else "",
            row.get("limit") or "",
            _busiest(times) if times else "",
            _verdict(row),
        )
    return table


def _busiest(times: dict[str, float]) -> str:
    """The pipe after DRAM, and its share of the time in DRAM."""
    others = {pipe: time for pipe, time in times.items() if pipe != "dram"}
    pipe = max(others, key=lambda each: others[each])
    return f"{pipe} {others[pipe] / times['dram']:.0%}" if times["dram"] else pipe


def _verdict(row: dict[str, Any]) -> str:
    faults = [f"[red]{key}: {text}[/red]" for key, text in row["faults"].items()]
    waived = [f"[yellow]waived, {key}: {text}[/yellow]" for key, text in row["waived"].items()]
    return "\n".join([*faults, *waived]) or "[green]as expected[/green]"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("families", nargs="*", help="as in proof/cases, or with --cuda in kernels/cuda; default: all")
    parser.add_argument("--cuda", action="store_true", help="the CUDA library's kernels, by nvcc, instead of Triton's")
    parser.add_argument("--library", type=Path, metavar="FILE", help="with --cuda: what is built, not compiled anew")
    parser.add_argument("--quick", action="store_true", help="only the cases marked quick")
    parser.add_argument("--architectures", type=int, nargs="+", metavar="SM", help="such as 89 90; default: all")
    parser.add_argument("--triton", type=Path, action="append", default=[], metavar="DIR", help="another Triton, too")
    parser.add_argument("--jobs", type=int, default=1, help="kernels compiled at a time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    parser.add_argument("--faults", action="store_true", help="print only what is not as expected")
    arguments = parser.parse_args()
    if arguments.cuda:
        return _cuda(parser, arguments)
    if arguments.library:
        parser.error("--library goes with --cuda")
    unknown = sorted(set(arguments.families) - {each.stem for each in (ROOT / "proof" / "cases").glob("[a-z]*.py")})
    if unknown:
        parser.error(f"no table {', '.join(unknown)} in proof/cases")
    missing = [each for each in arguments.triton if not (each / "triton").is_dir()]
    if missing or find_spec("triton") is None:
        parser.error(f"no Triton in {', '.join(map(str, missing)) or sys.prefix}")
    options = [*arguments.families, "--jobs", str(arguments.jobs), *(["--quick"] if arguments.quick else [])]
    if arguments.architectures:
        options += ["--architectures", *map(str, arguments.architectures)]
    rows = [row for triton in (None, *arguments.triton) for row in worker(triton and triton.absolute(), options)]
    return _report(rows, rows, arguments)


def _cuda(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Rows by nvcc. Instances of which no case says how they are launched are not printed, unless they have faults."""
    from policyquant.kernels.cuda.build import BuildError
    from proof import cuda_compile, cuda_rows

    known = cuda_compile.stems()
    unknown = sorted(set(arguments.families) - set(known))
    if unknown:
        parser.error(f"no source {', '.join(unknown)} in kernels/cuda; there are {', '.join(known)}")
    if arguments.triton or arguments.quick:
        parser.error("--cuda goes without --triton and --quick")
    try:
        kernels_of = cuda_compile.Library(arguments.library).compiled if arguments.library else cuda_compile.compiled
        architectures = arguments.architectures or cuda_rows.ARCHITECTURES
        rows = list(cuda_rows.rows(arguments.families or known, architectures, kernels_of))
    except BuildError as error:
        parser.error(str(error))
    return _report(rows, [row for row in rows if row["operator"] or row["faults"]], arguments)


def _report(rows: Sequence[dict[str, Any]], shown: Sequence[dict[str, Any]], arguments: argparse.Namespace) -> int:
    """Print the table and write the report; the exit status."""
    bad = [row for row in rows if row["faults"]]
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(_table(bad if arguments.faults else shown))
    console.print(f"{len(rows)} kernels, {len(bad)} not as expected")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
