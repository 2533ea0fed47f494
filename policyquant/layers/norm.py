"""Root mean square normalization, with the residual addition that precedes it in a decoder layer."""

from __future__ import annotations

from typing import overload

import torch
from torch import nn

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
        if residual is None:
            return self.emit(self._normalize(x))
        summed = x + residual
        return self.emit(self._normalize(summed)), summed

    def _normalize(self, x: torch.Tensor) -> torch.Tensor:
        exact = x.to(torch.float32)
        variance = exact.pow(2).mean(-1, keepdim=True)
        return self.weight * (exact * torch.rsqrt(variance + self.eps)).to(x.dtype)

    def extra_repr(self) -> str:
        size = f"{self.weight.shape[0]}, eps={self.eps}"
        return ", ".join(part for part in (size, super().extra_repr()) if part)
