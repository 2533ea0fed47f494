"""Root mean square normalization, with the residual addition that precedes it in a decoder layer."""

from __future__ import annotations

from typing import overload

import torch
from torch import nn

from policyquant.kernels import ops
from policyquant.layers.base import QuantConfig
from policyquant.layers.output import EmittingLayer
from policyquant.quantized_tensor import QuantizedTensor


class RMSNorm(EmittingLayer):
    """`x / sqrt(mean(x²) + eps) * weight` over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467).

    The arithmetic is that of transformers' `LlamaRMSNorm`: normalized in float32, rounded to `x.dtype`, then times
    the weight [size]. Given a residual as well, `x + residual` (in the dtype of both) is normalized, and returned
    beside the result as the next residual.
    """

    weight: nn.Parameter

    def __init__(
        self,
        size: int,
        eps: float = 1e-6,
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(quant_config, prefix)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size, device=device, dtype=dtype))

    @overload
    def forward(self, x: torch.Tensor, residual: None = None) -> torch.Tensor | QuantizedTensor: ...

    @overload
    def forward(
        self, x: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor | QuantizedTensor, torch.Tensor]: ...

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | QuantizedTensor | tuple[torch.Tensor | QuantizedTensor, torch.Tensor]:
        """x [..., size] → y [..., size]; with a residual [..., size] → (y, x + residual)."""
        weight = self.weight
        runs_as = self.runs_as(x, weight, residual)
        if runs_as == "torch":
            total = x if residual is None else x + residual
            y = self.emit(self._normalize(total))
            return y if residual is None else (y, total)
        if runs_as == "operator":
            if residual is None:
                return self.emit(ops.rms_norm(x, weight, self.eps))
            plain, total = ops.fused_add_rms_norm(x, residual, weight, self.eps)
            return self.emit(plain), total
        encoding, dtype = self.encoding(x), torch.promote_types(x.dtype, weight.dtype)
        if residual is None:
            return self.encoded(*ops.rms_norm_quant(x, weight, self.eps, **encoding), dtype)
        data, scale, total = ops.fused_add_rms_norm_quant(x, residual, weight, self.eps, **encoding)
        return self.encoded(data, scale, dtype), total

    def operator_takes(self, x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor | None) -> bool:
        """Where nothing is broadcast or promoted. A subclass may compute another norm."""
        return (
            weight.shape == x.shape[-1:]
            and (residual is None or (residual.shape == x.shape and residual.dtype == x.dtype))
            and getattr(self._normalize, "__func__", None) is RMSNorm._normalize
        )

    def _normalize(self, x: torch.Tensor) -> torch.Tensor:
        exact = x.float()
        variance = exact.square().mean(-1, keepdim=True)
        return self.weight * (exact * torch.rsqrt(variance + self.eps)).to(x.dtype)

    def extra_repr(self) -> str:
        size = f"{self.weight.shape[0]}, eps={self.eps}"
        return ", ".join(part for part in (size, super().extra_repr()) if part)
