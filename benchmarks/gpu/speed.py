"""Stage: speed. Every implementation forced in a column of its own, beside torch's and a copy, in one run.

A bar is judged on the better of our Triton and CUDA columns; what dispatch picks must be as fast as the best column.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Final

import torch

from benchmarks.gpu.measure import copy_bandwidth, seconds_of, sets_needed
from benchmarks.gpu.row import Bar, Row
from benchmarks.gpu.rows import families, rows_of
from benchmarks.gpu.stage import Stage, main
from policyquant.kernels import dispatch
from policyquant.kernels import ops as _registered  # noqa: F401 (importing it defines the operators)

FAILED: Final = "failed: "
LESS_EXACT: Final = ("triton_fast_accum",)
"""What dispatch never picks by itself."""
DISPATCHED_AT_LEAST: Final = 0.98


def run(stage: Stage) -> None:
    """Rows of one family after another; what there was no time for is listed as not measured."""
    device = "cpu" if stage.rehearse else "cuda"
    copy = copy_bandwidth(device)
    stage.write(copy_bytes_per_second=copy, rows=[])
    planned = [(family, row) for family in families() for row in rows_of(family, tiny=stage.rehearse)]
    judged = []
    for family, row in planned:
        entry: dict[str, Any] = {"family": family, "operator": row.operator, "shape": row.shape}
        if stage.left < 8:
            entry["status"] = "not measured"
        else:
            entry.update(_measured(row, device, copy, judge=not stage.rehearse))
            judged.append(entry)
        stage.write(rows=[*stage.result["rows"], entry])
        print(_line(entry), flush=True)
    missed = [entry for entry in judged if entry["status"] == "missed"]
    failed = [entry for entry in judged if FAILED in entry["status"]]
    if missed or failed:
        stage.fail(f"{len(missed)} rows miss a bar, {len(failed)} do not run")


def _measured(row: Row, device: str, copy: float, *, judge: bool) -> dict[str, Any]:
    """Seconds of every contender, ratios of every bar, and whether all are reached."""
    if device == "cuda" and torch.cuda.get_device_capability() < row.capability:
        return {"status": "not measured", "reason": f"needs compute capability {row.capability}"}
    try:
        sets = [row.inputs(device) for _ in range(sets_needed(row.bytes) if device == "cuda" else 1)]
        columns: dict[str, Any] = {"dispatched": seconds_of(row.ours, sets, device)}
    except Exception as error:
        return {"status": f"failed: {error!r}"[:500]}
    columns |= _forced(row, sets, device)
    columns |= {name: _seconds_or_reason(call, sets, device) for name, call in row.baselines.items()}
    numbers = {name: value for name, value in columns.items() if isinstance(value, float)}
    result: dict[str, Any] = {"seconds": columns, "copy_ratio": row.bytes / columns["dispatched"] / copy}
    if row.flop:
        result["flop_per_second"] = row.flop / columns["dispatched"]
    ratios = {f"{bar.beside} ≥ {bar.at_least}": _ratio(bar, row, numbers, copy) for bar in row.bars}
    best = min(value for name, value in numbers.items() if name not in (*row.baselines, *LESS_EXACT))
    result["bars"] = ratios
    broken = [f"{name} {said}" for name, said in columns.items() if name not in row.baselines and FAILED in str(said)]
    if broken:
        return {**result, "status": "; ".join(broken)}
    result["dispatched_to_best"] = best / columns["dispatched"]
    if not judge:
        result["status"] = "rehearsed"
        return result
    wanted = {f"{bar.beside} ≥ {bar.at_least}": bar.at_least for bar in row.bars}
    if any(ratio is None for ratio in ratios.values()):
        result["status"] = "not measured"
    elif all(ratio >= wanted[name] for name, ratio in ratios.items()) and (
        result["dispatched_to_best"] >= DISPATCHED_AT_LEAST
    ):
        result["status"] = "passed"
    else:
        result["status"] = "missed"
    return result


def _forced(row: Row, sets: list[Any], device: str) -> dict[str, Any]:
    """Seconds by each implementation that some operator of the row has, or why it does not run."""
    names = dict.fromkeys(each.name for operator in row.operators for each in dispatch.operators()[operator])
    columns: dict[str, Any] = {}
    for name in names:
        chosen = {
            operator: name
            for operator in row.operators
            if any(each.name == name for each in dispatch.operators()[operator])
        }
        with warnings.catch_warnings(), dispatch.force(**chosen):
            warnings.simplefilter("ignore")
            columns[name] = _seconds_or_reason(row.ours, sets, device)
    return columns


def _seconds_or_reason(call: Callable[[Any], object], sets: list[Any], device: str) -> float | str:
    try:
        return seconds_of(call, sets, device)
    except dispatch.KernelUnavailableError as error:
        return str(error)
    except Exception as error:
        return f"{FAILED}{error!r}"[:300]


def _ratio(bar: Bar, row: Row, columns: dict[str, float], copy: float) -> float | None:
    own = [columns[name] for name in bar.by if name in columns]
    if not own:
        return None
    if bar.beside == "copy":
        return row.bytes / min(own) / copy
    if bar.beside not in row.baselines and bar.beside not in columns:
        raise ValueError(f"{row.operator}: no contender {bar.beside!r}")
    return columns[bar.beside] / min(own) if bar.beside in columns else None


def _line(entry: dict[str, Any]) -> str:
    head = f"{entry['operator']:32} {entry['shape']:24} {entry['status']}"
    seconds = {name: value for name, value in entry.get("seconds", {}).items() if isinstance(value, float)}
    times = ", ".join(f"{name} {1e6 * value:.1f}" for name, value in seconds.items())
    bars = ", ".join(
        f"{name}: {'not measured' if ratio is None else f'{ratio:.2f}'}"
        for name, ratio in entry.get("bars", {}).items()
    )
    return f"{head}  [{times} µs]  {bars}".rstrip()


if __name__ == "__main__":
    main(run)
