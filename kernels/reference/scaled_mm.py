"""Products of FP8 codes with FP8 codes."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.formats import SMALLEST_SCALE, decode

_GROUP = 128


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
) -> torch.Tensor:
    """((a @ b.T) · scale_a · scale_b.T + bias) / scale_result, which a static scale, 2**-126 at least, divides.

    The operator rounds sums, products and the quotient to float32, the result once.
    """
    return _over(scale_result, of_rows(decode(a) @ decode(b).T * scale_a.double(), scale_b, bias))


def block_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None,
) -> torch.Tensor:
    """The same with scales that belong to 128 columns of a row of a, and to 128 × 128 blocks of b.

    Within 128 columns the product is scaled by scale_a · scale_b, of which the rounding to float32 is part of the
    definition. The operator rounds the sums to float32 too.
    """
    sums = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
    for group in range(scale_a.shape[1]):
        columns = slice(_GROUP * group, _GROUP * (group + 1))
        # The scale of channel n is that of its block, n // 128.
        by_channel = scale_b[torch.arange(b.shape[0]) // _GROUP, group]
        scale = (scale_a[:, group, None].double() * by_channel.double()).float().double()
        sums += decode(a[:, columns]) @ decode(b[:, columns]).T * scale
    return _over(scale_result, sums if bias is None else sums + bias.double())


def of_rows(product: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The scale, [1] or [N, 1], and the bias of a weight's rows, applied to a product [M, N]."""
    scaled = product * scale.double().reshape(-1)
    return scaled if bias is None else scaled + bias.double()


def _over(scale: torch.Tensor | None, y: torch.Tensor) -> torch.Tensor:
    return y if scale is None else y / scale.double().clamp(min=SMALLEST_SCALE)
