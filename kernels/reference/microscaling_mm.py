"""Products with weights in MX or NVFP4: of activations as they are, and of activations in MX."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.microscaling import mx_dequantize, nvfp4_dequantize


def mx_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ (q · scale).T + bias. The operator rounds sums and products to float32, the result once."""
    product = x.double() @ mx_dequantize(q, scale).T
    return product if bias is None else product + bias.double()


def nvfp4_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    global_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """(x @ (q · scale).T) · global_scale + bias."""
    product = x.double() @ nvfp4_dequantize(q, scale, torch.ones_like(global_scale)).T * global_scale.double()
    return product if bias is None else product + bias.double()


def mx_scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(a · scale_a) @ (b · scale_b).T + bias."""
    return mx_weight_only_mm(mx_dequantize(a, scale_a), b, scale_b, bias)
