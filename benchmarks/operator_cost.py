"""What calling an operator costs over the function that does its work: the dispatcher of PyTorch, nothing else.

Tensors are tiny, so that the work itself is small beside the call. The same results are written by both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import torch

from benchmarks.report import Bar, Outcome, table
from policyquant.kernels import ops as _registered  # noqa: F401 (importing it defines the operators)
from policyquant.kernels.cpu import activation, norm, quantize, scaled_mm, weight_only_mm

NEEDS: Final = ("torch",)
MOST_MICROSECONDS: Final = 6.0

_E4M3: Final = torch.float8_e4m3fn


def run(*, tiny: bool = False) -> Outcome:
    """Operator and function in turns, many short rounds each; of both the least disturbed one counts."""
    with torch.no_grad():
        costs = {name: _cost(*pair, rounds=3 if tiny else 100, calls=3 if tiny else 50) for name, pair in _pairs()}
    rows = [
        (name, f"{1e6 * bare:.2f} µs", f"{1e6 * called:.2f} µs", f"{1e6 * (called - bare):.2f} µs")
        for name, (called, bare) in costs.items()
    ]
    outcome = Outcome(
        [table("A call with tiny tensors, minima", ("", "floor: the function", "operator", "adds"), rows)]
    )
    worst = max(costs, key=lambda name: costs[name][0] - costs[name][1])
    called, bare = costs[worst]
    outcome.bars.append(
        Bar(f"the operator that adds most, {worst}", 1e6 * (called - bare), "at most", MOST_MICROSECONDS, "µs")
    )
    return outcome


def _cost(
    operator: Callable[[], object], bare: Callable[[], object], *, rounds: int, calls: int
) -> tuple[float, float]:
    """Seconds a call of each."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for place, function in enumerate((operator, bare)):
            start = time.perf_counter()
            for _ in range(calls):
                function()
            best[place] = min(best[place], (time.perf_counter() - start) / calls)
    return best[0], best[1]


def _pairs() -> list[tuple[str, tuple[Callable[[], object], Callable[[], object]]]]:
    """The operator and its function, for every operator and its `.out` overload, on the same tensors."""
    x, one = torch.ones(1, 16), torch.ones(1)
    wide, codes = x.bfloat16(), x.to(_E4M3)
    integers = torch.ones(1, 16, dtype=torch.int8)
    inputs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "static_scaled_fp8_quant": (quantize.static_scaled_fp8_quant, (wide, one, _E4M3)),
        "dynamic_scaled_fp8_quant": (quantize.dynamic_scaled_fp8_quant, (wide, None, _E4M3)),
        "per_token_scaled_fp8_quant": (quantize.per_token_scaled_fp8_quant, (wide, None, _E4M3)),
        "per_channel_int8_quant": (quantize.per_channel_int8_quant, (wide,)),
        "dequantize": (quantize.dequantize, (integers, one, torch.bfloat16)),
        "scaled_mm": (scaled_mm.scaled_mm, (codes, codes, one, one, None, None, torch.bfloat16)),
        "int8_weight_only_mm": (weight_only_mm.int8_weight_only_mm, (wide, integers, one, None, torch.bfloat16)),
        "silu_and_mul": (activation.silu_and_mul, (wide,)),
        "gelu_and_mul": (activation.gelu_and_mul, (wide, "tanh")),
        "rms_norm": (norm.rms_norm, (wide, wide[0], 1e-6)),
        "fused_add_rms_norm": (norm.fused_add_rms_norm, (wide, wide, wide[0], 1e-6)),
    }
    pairs = []
    for name, (function, arguments) in inputs.items():
        packet = getattr(torch.ops.policyquant, name)
        pairs.append((name, (_call(packet.default, arguments, {}), _call(function, arguments, {}))))
        made = function(*arguments)
        targets = made if isinstance(made, tuple) else (made,)
        given = dict(zip([each.name for each in packet.out._schema.arguments if each.is_out], targets, strict=True))
        kept = arguments[: len(packet.out._schema.arguments) - len(given)]
        writing = getattr(quantize, f"{name}_out", None)
        bare = _written(function, arguments, targets) if writing is None else _call(writing, kept, given)
        pairs.append((f"{name}.out", (_call(packet.out, kept, given), bare)))
    return pairs


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Callable[[], object]:
    return lambda: function(*arguments, **keywords)


def _written(
    function: Callable[..., Any], arguments: tuple[Any, ...], targets: tuple[torch.Tensor, ...]
) -> Callable[[], None]:
    """The function's results, copied to where they belong."""

    def write() -> None:
        made = function(*arguments)
        for target, value in zip(targets, made if isinstance(made, tuple) else (made,), strict=True):
            target.copy_(value)

    return write
