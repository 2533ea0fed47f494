"""Gated activations: the gate and the values arrive side by side, as a merged gate and up projection leaves them."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)

from policyquant.errors import PolicyQuantError
from policyquant.kernels import ops
from policyquant.layers.base import QuantConfig
from policyquant.layers.output import EmittingLayer
from policyquant.quantized_tensor import QuantizedTensor


def _check_halves(x: torch.Tensor) -> None:
    if x.shape[-1] % 2:
        raise PolicyQuantError(
            f"a gated activation takes gate and values side by side, [..., 2N]; found shape {list(x.shape)}"
        )


class SiluAndMul(EmittingLayer):
    """`silu(gate) * up`, the activation of Llama's MLP (SwiGLU: Shazeer 2020, arXiv:2002.05202).

    [..., 2N] = [gate | up] → [..., N] in the input's dtype, or as the plan's `output` says. `device` and `dtype` are
    taken for uniformity; the layer owns no tensor.
    """

    def __init__(
        self,
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(quant_config, prefix)

    def forward(self, x: torch.Tensor) -> torch.Tensor | QuantizedTensor:
        _check_halves(x)
        runs_as = self.runs_as(x)
        if runs_as == "torch":
            gate, up = x.chunk(2, dim=-1)
            return self.emit(F.silu(gate) * up)
        if runs_as == "operator":
            return self.emit(ops.silu_and_mul(x))
        return self.encoded(*ops.silu_and_mul_quant(x, **self.encoding(x)), x.dtype)


class GeluAndMul(EmittingLayer):
    """`gelu(gate) * up` (GEGLU: Shazeer 2020, arXiv:2002.05202), with gelu exact ("none") or by "tanh".

    [..., 2N] = [gate | up] → [..., N] in the input's dtype, or as the plan's `output` says. `device` and `dtype` are
    taken for uniformity; the layer owns no tensor.

    Raises:
        PolicyQuantError: `approximate` is neither "none" nor "tanh".
    """

    def __init__(
        self,
        approximate: Literal["none", "tanh"] = "none",
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if approximate not in ("none", "tanh"):
            raise PolicyQuantError(f"GeluAndMul: approximate is 'none' or 'tanh', found {approximate!r}")
        super().__init__(quant_config, prefix)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor | QuantizedTensor:
        _check_halves(x)
        runs_as = self.runs_as(x)
        if runs_as == "torch":
            gate, up = x.chunk(2, dim=-1)
            return self.emit(F.gelu(gate, approximate=self.approximate) * up)
        if runs_as == "operator":
            return self.emit(ops.gelu_and_mul(x, self.approximate))
        codes = ops.gelu_and_mul_quant(x, approximate=self.approximate, **self.encoding(x))
        return self.encoded(*codes, x.dtype)

    def extra_repr(self) -> str:
        return ", ".join(part for part in (f"approximate={self.approximate!r}", super().extra_repr()) if part)
