"""Products with weights in MX or NVFP4, in plain torch: tiles of rows are decoded to float32, and sums are float32."""

from __future__ import annotations

import torch

from policyquant.kernels.cpu.microscaling import (
    E4M3,
    MX_BLOCK,
    NVFP4_BLOCK,
    check_global_scale,
    decode_elements,
    decode_mx,
    decoded_shape,
    times_blocks,
)
from policyquant.kernels.cpu.scaled_mm import TILE_ELEMENTS


def check(
    name: str, shape: tuple[int, ...], q: torch.Tensor, scale: torch.Tensor, block: int, bias: torch.Tensor | None
) -> None:
    """Refuse what does not belong together, on behalf of the operator `name`; `shape` is that of the activations.

    Raises:
        ValueError: a shape or a dtype is not as the operator says.
    """
    of_weight = decoded_shape(q, scale, block)
    if len(shape) != 2 or len(of_weight) != 2 or shape[1] != of_weight[1]:
        raise ValueError(f"{name}: a product of {list(shape)} with {list(of_weight)}, expected [M, K] and [N, K]")
    if bias is not None and tuple(bias.shape) != (q.shape[0],):
        raise ValueError(f"{name}: the bias is {list(bias.shape)}, expected [{q.shape[0]}]")


def check_scaled(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """The same for `mx_scaled_mm`."""
    if a.dtype != E4M3:
        raise ValueError(f"mx_scaled_mm: activations are {a.dtype}, expected {E4M3}")
    check("mx_scaled_mm", decoded_shape(a, scale_a, MX_BLOCK), b, scale_b, MX_BLOCK, bias)


def mx_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """x @ (q · scale).T + bias, rounded once to `out_dtype`."""
    check("mx_weight_only_mm", tuple(x.shape), q, scale, MX_BLOCK, bias)
    return _finished(_product(x.float(), q, scale), bias, out_dtype)


def nvfp4_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """(x @ (q · scale).T) · global_scale + bias, rounded once to `out_dtype`."""
    check("nvfp4_weight_only_mm", tuple(x.shape), q, scale, NVFP4_BLOCK, bias)
    check_global_scale(global_scale)
    return _finished(_product(x.float(), q, scale).mul_(global_scale.reshape(())), bias, out_dtype)


def mx_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """(a · scale_a) @ (b · scale_b).T + bias, rounded once to `out_dtype`."""
    check_scaled(a, b, scale_a, scale_b, bias)
    return _finished(_product(decode_mx(a, scale_a), b, scale_b), bias, out_dtype)


def _product(x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Of float32 x [M, K] with the decoded weight, [M, N]."""
    sums = torch.empty((x.shape[0], q.shape[0]), dtype=torch.float32, device=x.device)
    rows = max(1, TILE_ELEMENTS // max(1, x.shape[1]))
    for start in range(0, q.shape[0], rows):
        part = slice(start, start + rows)
        if scale.dtype == E4M3:
            values = times_blocks(decode_elements(q[part]), scale[part].float(), NVFP4_BLOCK)
        else:
            values = decode_mx(q[part], scale[part])
        sums[:, part] = x @ values.T
    return sums


def _finished(sums: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype) -> torch.Tensor:
    return (sums if bias is None else sums.add_(bias.float())).to(out_dtype)
