"""`policyquant kernels tune`: measures tile configurations on the GPU at hand, and keeps what is faster."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from policyquant.cli import output
from policyquant.cli.status import Status
from policyquant.cli.tables import Column, Table, print_table
from policyquant.errors import PolicyQuantError

if TYPE_CHECKING:
    from policyquant.kernels.tuning.measured import Gpu
    from policyquant.kernels.tuning.tune import Measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that go with `tune` alone."""
    group = parser.add_argument_group("tune")
    group.add_argument("families", metavar="FAMILY", nargs="*", help="families of kernels to tune; none: all")
    group.add_argument(
        "--call",
        metavar="CALL",
        action="append",
        default=[],
        help="measure this call, written as for --explain, in place of the representative ones (repeatable)",
    )
    group.add_argument("--seconds", metavar="N", type=_seconds, help="how long it may take; as long as it takes if not")


def _seconds(word: str) -> float:
    try:
        found = float(word)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {word!r}")
    return found


def check_given(arguments: argparse.Namespace) -> None:
    """Refuse what goes with `tune` alone.

    Raises:
        PolicyQuantError: there is such an argument, and no `tune`.
    """
    if arguments.families:
        raise PolicyQuantError(f"`kernels {arguments.action}` takes no more words, found {arguments.families[0]!r}")
    for option, given in (("--call", bool(arguments.call)), ("--seconds", arguments.seconds is not None)):
        if given:
            raise PolicyQuantError(f"{option} goes with `kernels tune`")


def run(arguments: argparse.Namespace) -> int:
    """Tune, and print what was found."""
    from policyquant.extras import require

    require("triton", extra="triton", by="policyquant kernels tune")
    from policyquant.kernels.tuning import measured
    from policyquant.kernels.tuning.tune import TuningError, tune

    gpu = measured.gpu_at_hand()
    if gpu is None:
        raise PolicyQuantError("there is no GPU to measure on; `kernels tune` is run where the kernels are to run")
    if gpu.name == measured.INTERPRETER:
        output.note("Triton's interpreter stands in for a GPU: calls are tiny, and it alone reads what is measured.")
    try:
        made = tune(arguments.families, arguments.call, gpu=gpu, seconds=arguments.seconds, tell=_tell)
    except (TuningError, ValueError) as failure:  # A ValueError: a word that is not known, or sizes that do not fit.
        raise PolicyQuantError(f"tune: {failure}") from failure
    except OSError as failure:
        raise PolicyQuantError(f"{gpu.path}: cannot be written: {failure.strerror or failure}") from None
    if arguments.json:
        output.write_json([json.dumps(_report(gpu, made), indent=1), "\n"])
    else:
        _print(gpu, made)
    return Status.FINE


def _tell(each: Measured) -> None:
    output.note(f"{each.family}, {each.shape_class}: {_result(each)}")


def _result(each: Measured) -> str:
    found = each.found
    if found is None:
        return f"not measured: {each.refused}"
    if found.before is None:
        return f"the present configuration does not run: {', '.join(found.failed)}"
    if found.best is None or found.seconds is None:
        return "nothing is faster"
    return f"{found.before / found.seconds:.2f} times as fast"


def _print(gpu: Gpu, made: list[Measured]) -> None:
    columns = (
        Column("family", style="cyan"),
        Column("shapes"),
        Column("µs", right=True),
        Column("result", fold=True),
        Column("tried", right=True),
        Column("failed", fold=True),
        Column("not tried", right=True),
    )
    rows = [(each.family, each.shape_class, *_cells(each)) for each in made]
    print_table(Table(columns, rows).without_empty_columns())
    if any(each.found is not None and each.found.best is not None for each in made):
        output.note(f"\nWhat is faster is used from now on: {gpu.path}")


def _cells(each: Measured) -> tuple[str, str, str, str, str]:
    found = each.found
    if found is None:
        return "", _result(each), "", "", ""
    time = "" if found.before is None else f"{1e6 * found.before:.1f}"
    failed = ", ".join(f"{count} {reason}" for reason, count in found.failed.items())
    return time, _result(each), str(found.tried), failed, str(found.left or "")


def _report(gpu: Gpu, made: list[Measured]) -> dict[str, Any]:
    return {
        "GPU": gpu.name,
        "triton": gpu.triton,
        "path": str(gpu.path),
        "classes": [
            {
                "family": each.family,
                "shapes": each.shape_class,
                "calls": list(each.calls),
                "refused": each.refused,
                **({} if each.found is None else _found(each)),
            }
            for each in made
        ],
    }


def _found(each: Measured) -> dict[str, Any]:
    found = each.found
    assert found is not None
    return {
        "before": found.before,
        "seconds": found.seconds,
        "configuration": None if found.best is None else dict(found.best),
        "tried": found.tried,
        "failed": dict(found.failed),
        "left": found.left,
    }
