"""Encoding to blocks that share a scale of 8 bits, and back: MXFP8, MXFP4 (OCP Microscaling Formats 1.0) and NVFP4."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import microscaling as plain
from policyquant.kernels.operators.refusals import other_than_floats
from policyquant.kernels.registration import CODES, define, like

_ops: Any = torch.ops.policyquant


def _mxfp8(x: torch.Tensor, scaling_mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    plain.check_mode(scaling_mode)
    return like(x, tuple(x.shape), plain.E4M3), like(x, plain.block_shape(x, plain.MX_BLOCK, False), plain.E8M0)


def _mxfp4(x: torch.Tensor, scaling_mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    plain.check_mode(scaling_mode)
    shape = plain.block_shape(x, plain.MX_BLOCK, True)
    return like(x, (*x.shape[:-1], x.shape[-1] // 2), torch.uint8), like(x, shape, plain.E8M0)


def _nvfp4(x: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    plain.check_global_scale(global_scale)
    shape = plain.block_shape(x, plain.NVFP4_BLOCK, True)
    return like(x, (*x.shape[:-1], x.shape[-1] // 2), torch.uint8), like(x, shape, plain.E4M3)


def _one(x: torch.Tensor) -> torch.Tensor:
    return like(x, (1,), torch.float32)


def _mx_values(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return like(q, plain.decoded_shape(q, scale, plain.MX_BLOCK), dtype)


def _nvfp4_values(q: torch.Tensor, scale: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    plain.check_global_scale(global_scale)
    return like(q, plain.decoded_shape(q, scale, plain.NVFP4_BLOCK), dtype)


def _refuses(on: dispatch.Machine, x: torch.Tensor, *rest: Any, **outs: Any) -> str | None:
    return other_than_floats(x)


def _refuses_result(on: dispatch.Machine, *inputs: Any, out: torch.Tensor) -> str | None:
    return other_than_floats(out)


for _name, _plain, _fake in (("mxfp8_quant", plain.mxfp8_quant, _mxfp8), ("mxfp4_quant", plain.mxfp4_quant, _mxfp4)):
    define(
        _name,
        "Tensor x, str scaling_mode",
        CODES,
        _plain,
        _fake,
        implementations=(dispatch.triton("microscaling", _name, refuses=_refuses),),
    )
define("nvfp4_global_scale", "Tensor x", {"out": "a"}, plain.nvfp4_global_scale, _one)
define(
    "nvfp4_quant",
    "Tensor x, Tensor global_scale",
    CODES,
    plain.nvfp4_quant,
    _nvfp4,
    implementations=(dispatch.triton("microscaling", "nvfp4_quant", refuses=_refuses),),
)
define(
    "mx_dequantize",
    "Tensor q, Tensor scale, ScalarType dtype",
    {"out": "a"},
    plain.mx_dequantize,
    _mx_values,
    "dtype",
    implementations=(dispatch.triton("microscaling", "mx_dequantize", refuses=_refuses_result),),
)
define(
    "nvfp4_dequantize",
    "Tensor q, Tensor scale, Tensor global_scale, ScalarType dtype",
    {"out": "a"},
    plain.nvfp4_dequantize,
    _nvfp4_values,
    "dtype",
    implementations=(dispatch.triton("microscaling", "nvfp4_dequantize", refuses=_refuses_result),),
)


def mxfp8_quant(x: torch.Tensor, scaling_mode: str = "floor") -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes of x [..., K] and a power of two for each block of 32, [..., ceil(K / 32)] float8_e8m0fnu.

    The last block may be shorter. A block of zeros has the scale 2**-127.

    Args:
        x: float32, bfloat16 or float16.
        scaling_mode: with A the largest finite magnitude of a block and F = 448 the format's largest value,
            "floor" is 2**(floor(log2(A)) - 8), so that up to 1/8 of A saturates (OCP MX 1.0, section 6.3);
            "rceil" is the least power of two with A ≤ F · scale, so that nothing does (cuBLAS; torchao's RCEIL);
            "even" is "floor" of A rounded to the format's mantissa bits (torchao's EVEN).

    Raises:
        ValueError: another scaling mode.
    """
    result: tuple[torch.Tensor, torch.Tensor] = _ops.mxfp8_quant.default(x, scaling_mode)
    return result


def mxfp4_quant(x: torch.Tensor, scaling_mode: str = "floor") -> tuple[torch.Tensor, torch.Tensor]:
    """E2M1 codes of x [..., K], two a byte, [..., K / 2] uint8, and a power of two for each block of 32.

    The first of two codes lies in the low half of a byte. E2M1 has no NaN: where an element is NaN, its block's scale
    is, and so is what is decoded of the block. F is 6 here, and "floor" is 2**(floor(log2(A)) - 2). Otherwise as
    `mxfp8_quant`.

    Raises:
        ValueError: another scaling mode, or K is odd.
    """
    result: tuple[torch.Tensor, torch.Tensor] = _ops.mxfp4_quant.default(x, scaling_mode)
    return result


def nvfp4_global_scale(x: torch.Tensor) -> torch.Tensor:
    """[1] float32: the largest finite magnitude of x / (448 · 6), at least 2**-126 (ModelOpt's weight_scale_2).

    compressed-tensors stores its inverse.
    """
    result: torch.Tensor = _ops.nvfp4_global_scale.default(x)
    return result


def nvfp4_quant(
    x: torch.Tensor, global_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """E2M1 codes of x [..., K], two a byte, E4M3 scales of blocks of 16, [..., ceil(K / 16)], and the global scale.

    A block's scale is (its largest finite magnitude / (6 · global_scale)) in E4M3, 2**-9 at least, 1 for zeros, as
    ModelOpt makes it; the codes are those of x / (scale · global_scale). NaN and packing are as for `mxfp4_quant`.

    Args:
        global_scale: [1] float32; one below 2**-126 is taken for 2**-126. None: `nvfp4_global_scale` of x.

    Raises:
        ValueError: the global scale is not one float32, or K is odd.
    """
    one = nvfp4_global_scale(x) if global_scale is None else global_scale
    codes, scale = _ops.nvfp4_quant.default(x, one)
    return codes, scale, one


def mx_dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """q · scale, rounded once to dtype, of E4M3 codes [..., K] or packed E2M1 codes [..., K / 2].

    Args:
        scale: [..., ceil(K / 32)] float8_e8m0fnu, or its bytes in uint8.

    Raises:
        ValueError: codes and scales do not belong together.
    """
    result: torch.Tensor = _ops.mx_dequantize.default(q, scale, dtype)
    return result


def nvfp4_dequantize(
    q: torch.Tensor, scale: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """q · (scale · global_scale), both products in float32, rounded once to dtype, of packed E2M1 codes [..., K / 2].

    Raises:
        ValueError: codes and scales do not belong together, or the global scale is not one float32.
    """
    result: torch.Tensor = _ops.nvfp4_dequantize.default(q, scale, global_scale, dtype)
    return result
