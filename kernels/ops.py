"""The operators, `torch.ops.policyquant.*`, and a Python function for each.

Every operator has an `.out` overload that writes its result into `out` (and `out_scale`, `out_residual`) and returns
nothing. Scales are float32; x ≈ q · scale; weights are [N, K] as stored. Inputs may have any strides and alignment;
results are contiguous. A NaN activation encodes as NaN (int8, which has none: as 0) and ±inf saturates; scales come
from the finite elements and are at least 2**-126. `reference` has a definition of each operator under the same name.
Weights must hold no NaN: their codes are decoded without looking for it.

| operator | scales |
|---|---|
| static_scaled_fp8_quant | [1], or anything that broadcasts against x |
| dynamic_scaled_fp8_quant | result [1] |
| per_token_scaled_fp8_quant, per_channel_int8_quant | result [..., 1], over the last dimension |
| dequantize | broadcast against q |
| scaled_mm | scale_a [1] or [M, 1]; scale_b [1] or [N, 1] |
| int8_weight_only_mm | [1] or [N, 1] |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from policyquant.kernels.cpu import activation, matmul, norm, quantize

# torch leaves these two without types.
_new_library: Any = torch.library.Library
_broadcast_shapes: Any = torch.broadcast_shapes
_library = _new_library("policyquant", "DEF")


_AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def _without_autocast(name: str, overload: str, device: str) -> Callable[..., Any]:
    """The operator as it is outside autocast, which would round the float32 products inside it."""

    def run(*inputs: Any, **keywords: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return getattr(getattr(torch.ops.policyquant, name), overload)(*inputs, **keywords)

    return run


def _define(
    name: str,
    arguments: str,
    results: dict[str, str],
    cpu: Callable[..., Any],
    fake: Callable[..., Any],
    from_out: str | None = None,
    cpu_out: Callable[..., None] | None = None,
) -> None:
    """Define `name` and `name.out`.

    Args:
        results: name of each out argument → its alias letter.
        from_out: a last argument (a dtype) that the `.out` overload reads off its first result instead.
        cpu_out: writes the results where they belong; None: they are computed, then copied there.
    """
    kinds = ", ".join("Tensor" for _ in results)
    _library.define(f"{name}({arguments}) -> {kinds if len(results) == 1 else f'({kinds})'}")
    kept = arguments.rsplit(", ", 1)[0] if from_out is not None else arguments
    outs = ", ".join(f"Tensor({alias}!) {out}" for out, alias in results.items())
    _library.define(f"{name}.out({kept}, *, {outs}) -> ()")

    def write(*inputs: Any, **keywords: Any) -> None:
        targets = [keywords.pop(out) for out in results]
        if from_out is not None:
            keywords[from_out] = targets[0].dtype
        values = cpu(*inputs, **keywords)
        for target, value in zip(targets, values if isinstance(values, tuple) else (values,), strict=True):
            if target.shape != value.shape or target.dtype != value.dtype:
                raise ValueError(
                    f"{name}: an out tensor is {list(target.shape)} {target.dtype}, "
                    f"expected {list(value.shape)} {value.dtype}"
                )
            target.copy_(value)

    def write_nothing(*inputs: Any, **keywords: Any) -> None:
        return None

    _library.impl(name, cpu, "CPU")
    _library.impl(f"{name}.out", write if cpu_out is None else cpu_out, "CPU")
    for device, key in _AUTOCAST.items():
        _library.impl(name, _without_autocast(name, "default", device), key)
        _library.impl(f"{name}.out", _without_autocast(name, "out", device), key)
    torch.library.register_fake(f"policyquant::{name}", fake, lib=_library)
    torch.library.register_fake(f"policyquant::{name}.out", write_nothing, lib=_library)


def _like(x: torch.Tensor, shape: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    return x.new_empty(shape, dtype=dtype)


def _rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return _like(x, tuple(x.shape), dtype), _like(x, (*x.shape[:-1], 1), torch.float32)


def _half(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return _like(x, (*x.shape[:-1], x.shape[-1] // 2), x.dtype)


_CODES = {"out": "a", "out_scale": "b"}
_define(
    "static_scaled_fp8_quant",
    "Tensor x, Tensor scale, ScalarType dtype",
    {"out": "a"},
    quantize.static_scaled_fp8_quant,
    lambda x, scale, dtype: _like(x, tuple(x.shape), dtype),
    "dtype",
    quantize.static_scaled_fp8_quant_out,
)
_define(
    "dynamic_scaled_fp8_quant",
    "Tensor x, float? scale_ub, ScalarType dtype",
    _CODES,
    quantize.dynamic_scaled_fp8_quant,
    lambda x, scale_ub, dtype: (_like(x, tuple(x.shape), dtype), _like(x, (1,), torch.float32)),
    "dtype",
    quantize.dynamic_scaled_fp8_quant_out,
)
_define(
    "per_token_scaled_fp8_quant",
    "Tensor x, float? scale_ub, ScalarType dtype",
    _CODES,
    quantize.per_token_scaled_fp8_quant,
    lambda x, scale_ub, dtype: _rows(x, dtype),
    "dtype",
    quantize.per_token_scaled_fp8_quant_out,
)
_define(
    "per_channel_int8_quant",
    "Tensor w",
    _CODES,
    quantize.per_channel_int8_quant,
    lambda w: _rows(w, torch.int8),
    cpu_out=quantize.per_channel_int8_quant_out,
)
_define(
    "dequantize",
    "Tensor q, Tensor scale, ScalarType dtype",
    {"out": "a"},
    quantize.dequantize,
    lambda q, scale, dtype: _like(q, tuple(_broadcast_shapes(q.shape, scale.shape)), dtype),
    "dtype",
)
_define(
    "scaled_mm",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    matmul.scaled_mm,
    lambda a, b, scale_a, scale_b, bias, out_dtype: _like(a, (a.shape[0], b.shape[0]), out_dtype),
    "out_dtype",
)
_define(
    "int8_weight_only_mm",
    "Tensor x, Tensor q, Tensor scale, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    matmul.int8_weight_only_mm,
    lambda x, q, scale, bias, out_dtype: _like(x, (x.shape[0], q.shape[0]), out_dtype),
    "out_dtype",
)
_define("silu_and_mul", "Tensor x", {"out": "a"}, activation.silu_and_mul, _half)
_define("gelu_and_mul", "Tensor x, str approximate", {"out": "a"}, activation.gelu_and_mul, _half)
_define(
    "rms_norm",
    "Tensor x, Tensor weight, float eps",
    {"out": "a"},
    norm.rms_norm,
    lambda x, weight, eps: _like(x, tuple(x.shape), torch.promote_types(x.dtype, weight.dtype)),
)
_define(
    "fused_add_rms_norm",
    "Tensor x, Tensor residual, Tensor weight, float eps",
    {"out": "a", "out_residual": "b"},
    norm.fused_add_rms_norm,
    lambda x, residual, weight, eps: (
        _like(x, tuple(x.shape), torch.promote_types(x.dtype, weight.dtype)),
        _like(x, tuple(x.shape), x.dtype),
    ),
)

_ops: Any = torch.ops.policyquant


def static_scaled_fp8_quant(
    x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> torch.Tensor:
    """Codes of x / scale; scale is [1] float32."""
    result: torch.Tensor = _ops.static_scaled_fp8_quant.default(x, scale, dtype)
    return result


def dynamic_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and one scale [1]: largest finite magnitude / largest value of dtype, at most `scale_ub`."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.dynamic_scaled_fp8_quant.default(x, scale_ub, dtype)
    return result


def per_token_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and a scale [..., 1] for each row of the last dimension."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.per_token_scaled_fp8_quant.default(x, scale_ub, dtype)
    return result


def per_channel_int8_quant(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes in [-128, 127] of w and a scale [..., 1] for each row: largest magnitude / 127.5."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.per_channel_int8_quant.default(w)
    return result


def dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """q · scale, rounded once to dtype."""
    result: torch.Tensor = _ops.dequantize.default(q, scale, dtype)
    return result


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """(a @ b.T) · scale_a · scale_b.T + bias, [M, N], of fp8 a [M, K] and b [N, K]; float32 sums, rounded once."""
    result: torch.Tensor = _ops.scaled_mm.default(a, b, scale_a, scale_b, bias, out_dtype)
    return result


def int8_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(x @ q.T) · scale.T + bias, [M, N], of x [M, K] and int8 codes q [N, K]; float32 sums, rounded once."""
    result: torch.Tensor = _ops.int8_weight_only_mm.default(
        x, q, scale, bias, x.dtype if out_dtype is None else out_dtype
    )
    return result


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of x = [gate | up], [..., 2N] to [..., N]."""
    result: torch.Tensor = _ops.silu_and_mul.default(x)
    return result


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(gate) · up of x = [gate | up], [..., 2N] to [..., N]."""
    result: torch.Tensor = _ops.gelu_and_mul.default(x, approximate)
    return result


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension."""
    result: torch.Tensor = _ops.rms_norm.default(x, weight, eps)
    return result


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and that sum."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.fused_add_rms_norm.default(x, residual, weight, eps)
    return result
