"""Calls of every operator and of every Python function for operators, with small tensors that nothing divides.

An operator is called as `policyquant.kernels.calls` describes it, in all the ways that are listed here. A test fails if
an operator or a function has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import torch

from policyquant.kernels import dispatch
from policyquant.kernels.calls import Call, Described, call

OPERATORS: Final = sorted(dispatch.operators())

_SIZES: Final[Mapping[str, Any]] = {"m": 5, "n": 24, "k": 50, "experts": 3, "heads": 2, "head_dim": 18, "group": 32}
_FP8_RESULT: Final[Mapping[str, Any]] = {"result": torch.float8_e4m3fn}
_BY_COLUMNS: Final[Mapping[str, Any]] = {"column_major": True, "power_of_two": True}
_MIXTURE: Final[tuple[Mapping[str, Any], ...]] = ({"scales": "tensor"}, {"scales": "block", "k": 256, "n": 128})

_ALL: Final[tuple[Mapping[str, Any], ...]] = ({}, {"aligned": False, "bias": True}, {"dtype": torch.float32})
_WAYS: Final[Mapping[str, tuple[Mapping[str, Any], ...]]] = {
    "block_scaled_mm": ({"k": 300, "n": 200}, _FP8_RESULT),
    "scaled_mm": ({"scales": "tensor"}, _FP8_RESULT),
    "fp8_weight_only_mm": ({"scales": "block", "k": 300, "n": 200}, {"codes": torch.float8_e5m2}),
    "scaled_int8_mm": ({"asymmetric": True},),
    "static_scaled_int8_quant": ({"asymmetric": True},),
    "int4_weight_only_mm": ({"asymmetric": True},),
    "mx_dequantize": ({"codes": torch.uint8},),
    "grouped_scaled_mm": _MIXTURE,
    "fused_moe": _MIXTURE,
    "topk_sigmoid": ({"bias": True},),
    **{name: (_BY_COLUMNS,) for name in OPERATORS if "group_fp8_quant" in name},
}
"""Operator → properties of calls, beside those of all operators."""


def ways(operator: str) -> tuple[Mapping[str, Any], ...]:
    """The properties of each of its calls."""
    return (*_ALL, *_WAYS.get(operator, ()))


def example(operator: str, way: Mapping[str, Any], m: int = 5, device: str = "cpu") -> Call:
    """A call of it with `m` rows. Values are the same each time."""
    sizes = {**_SIZES, "scales": "block" if operator == "block_scaled_mm" else "channel", **way, "m": m}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return call(operator, Described(device=device, **sizes))


def named(way: Mapping[str, Any]) -> str:
    """The name of a way in the name of a test."""
    return " ".join(f"{name}={value}".replace("torch.", "") for name, value in way.items()) or "plain"


EXAMPLES: Final = [(operator, way) for operator in OPERATORS for way in ways(operator)]
NAMES: Final = [f"{operator} {named(way)}" for operator, way in EXAMPLES]


def examples(*slow: str) -> list[Any]:
    """All of them as parameters of a test; those in a way that has one of these properties are slow ones."""
    return [
        pytest.param(operator, way, id=name, marks=[] if set(slow).isdisjoint(way) else [pytest.mark.slow])
        for (operator, way), name in zip(EXAMPLES, NAMES, strict=True)
    ]


def results(made: Any) -> tuple[torch.Tensor, ...]:
    """What an operator returns: none, one or several tensors."""
    return () if made is None else made if isinstance(made, tuple) else (made,)


def bits(x: torch.Tensor) -> torch.Tensor:
    """For comparing bit for bit."""
    return x.reshape(-1).contiguous().view(torch.uint8)


def steps(x: torch.Tensor) -> list[int]:
    """The strides that matter: not those of dimensions with at most one element."""
    return [step for step, size in zip(x.stride(), x.shape, strict=True) if size > 1 and x.numel()]


_STATIC: Final = torch.tensor([0.5])
_OF_NORM: Final = torch.linspace(0.5, 2, 40).bfloat16()
_WEIGHTS: Final = torch.linspace(-120, 120, 280).reshape(7, 40)

FUNCTIONS: Final[Mapping[str, Mapping[str, Callable[[Any, torch.Tensor], Any]]]] = {
    "scaled_fp8_quant": {
        "static": lambda run, x: run(x, _STATIC),
        "of the tensor": lambda run, x: run(x, scale_ub=0.5),
        "per token": lambda run, x: run(x, per_token=True),
        "padded": lambda run, x: run(x, per_token=True, padded_rows=64),
    },
    "weight_only_mm": {
        "fp8": lambda run, x: run(x, _WEIGHTS.to(torch.float8_e4m3fn), _STATIC),
        "int8": lambda run, x: run(x, _WEIGHTS.clamp(-128, 127).to(torch.int8), _STATIC),
    },
    **{
        name: {
            "static": lambda run, x: run(x, _STATIC),
            "per token": lambda run, x: run(x),
            "groups": lambda run, x: run(x, group_size=32, column_major=True),
        }
        for name in ("silu_and_mul_quant", "gelu_and_mul_quant")
    },
    "rms_norm_quant": {
        "static": lambda run, x: run(x, _OF_NORM, 1e-6, _STATIC),
        "per token": lambda run, x: run(x, _OF_NORM, 1e-6),
        "groups": lambda run, x: run(x, _OF_NORM, 1e-6, group_size=32, column_major=True),
    },
    "fused_add_rms_norm_quant": {
        "static": lambda run, x: run(x, x, _OF_NORM, 1e-6, _STATIC),
        "per token": lambda run, x: run(x, x, _OF_NORM, 1e-6),
        "groups": lambda run, x: run(x, x, _OF_NORM, 1e-6, group_size=32, power_of_two=True),
    },
}
"""Functions that choose among operators → calls of them, given the function and x [M, 40]."""
