"""Triton's interpreter, made right where it is wrong and strict where a GPU is undefined.

- Casts between floats round to nearest even. The interpreter's own casts to FP8 do not (triton-lang/triton#11897),
  and its casts from E5M2 give other subnormal values.
- A value beyond the largest of an FP8 format that is cast to it becomes NaN: what a cast does there differs between
  GPUs and versions, so a kernel clamps first.
- A product of matrices sums exact products in float32; the interpreter multiplies the bits of bfloat16 as integers.
- The largest of nothing but NaN is NaN without a warning.
- What a masked load does not read, and was given no value for, is NaN (integers: an absurd value).
- A histogram of a value that has no bin is an error: what becomes of it differs between versions.
- Arithmetic that gives NaN or infinity warns of nothing, as on a GPU.
"""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_TORCH: Final = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_FP8: Final = (tl.float8e4nv, tl.float8e5)
_original_convert: Final = interpreter._convert_float
_original_min_max: Final = interpreter.ReduceOps.min_max
_original_masked_load: Final = interpreter.InterpreterBuilder.create_masked_load
_original_dot: Final = interpreter.InterpreterBuilder.create_dot
_original_histogram: Final = interpreter.InterpreterBuilder.create_histogram


def _as_tensor(data: Any, dtype: Any) -> torch.Tensor:
    bits = np.array(data, order="C")
    return torch.from_numpy(bits.view(f"int{dtype.primitive_bitwidth}")).view(_TORCH[dtype])


def _convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
    source, target = source.scalar, target.scalar
    if source not in _TORCH or target not in _TORCH:
        return _original_convert(data, source, target, rounding)
    values = _as_tensor(data, source)
    if target in _FP8:
        largest = torch.finfo(_TORCH[target]).max
        values = torch.where(values.float().abs() <= largest, values.float(), torch.nan)
    codes = values.to(_TORCH[target])
    return (
        codes.view(getattr(torch, f"int{target.primitive_bitwidth}")).numpy().view(f"uint{target.primitive_bitwidth}")
    )


def _masked_load(self: Any, ptrs: Any, mask: Any, other: Any, cache_policy: Any, is_volatile: Any) -> Any:
    if other is None:
        dtype = ptrs.get_element_ty()
        size = interpreter._get_np_dtype(dtype)
        poison = np.zeros(ptrs.data.shape, dtype=size)
        # All bits set are NaN in every float format; in integers, -1 or the largest.
        poison.view(np.uint8).reshape(-1)[:] = 0x7F if np.dtype(size).kind == "i" else 0xFF
        other = interpreter.TensorHandle(poison, dtype)
    return _original_masked_load(self, ptrs, mask, other, cache_policy, is_volatile)


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    if a.dtype.scalar not in _TORCH:
        return _original_dot(self, a, b, d, input_precision, max_num_imprecise_acc)
    values = (_as_tensor(each.data, each.dtype.scalar).float().numpy() for each in (a, b))
    return interpreter.TensorHandle(np.matmul(*values) + d.data, d.dtype.scalar)


def _histogram(self: Any, data: Any, bins: Any, mask: Any) -> Any:
    counted = data.data if mask is None else data.data[mask.data]
    if counted.size and not (counted.min() >= 0 and counted.max() < bins):
        raise ValueError(f"a histogram of {bins} bins counts {counted.min()} … {counted.max()}")
    return _original_histogram(self, data, bins, mask)


def _min_max(self: Any, *inputs: Any, **reductions: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN", RuntimeWarning)
        return _original_min_max(self, *inputs, **reductions)


def make_strict() -> None:
    """Replace those parts of the interpreter, for the rest of the process."""
    interpreter._convert_float = _convert
    interpreter.ReduceOps.min_max = _min_max
    interpreter.InterpreterBuilder.create_masked_load = _masked_load
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter.InterpreterBuilder.create_histogram = _histogram
    np.seterr(all="ignore")
