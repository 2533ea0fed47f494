"""What a layer hands on: its result as the plan's `output` says, in a plain dtype or already quantized.

A layer that emits FP8 returns a `QuantizedTensor`, which the next linear reads without quantizing again.
"""

from __future__ import annotations

import torch

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.kernels import ops
from policyquant.layers.base import PolicyLayer
from policyquant.layers.gradients import without_gradient
from policyquant.methods.dtypes import FP8, PLAIN
from policyquant.policy.scheme import Quantization, Scheme
from policyquant.quantized_tensor import QuantizedTensor


def check_output(output: str | Quantization | None, layer_name: str = "") -> None:
    """Refuse an output that no layer can produce; `layer_name` is named in the message.

    Raises:
        PolicyQuantError: the dtype is unknown, or the granularity is neither per token nor per tensor, or per token
            with a static scale.
    """
    where = f"{layer_name}: " if layer_name else ""
    if output is None:
        return
    if isinstance(output, str):
        if output not in PLAIN:
            raise PolicyQuantError(
                f"{where}output {output!r} is not a plain dtype; expected one of {', '.join(PLAIN)}"
                f"{did_you_mean(output, PLAIN)}"
            )
        return
    if output.dtype not in FP8:
        raise PolicyQuantError(
            f"{where}an output cannot be quantized to {output.dtype!r}; expected one of {', '.join(FP8)}"
            f"{did_you_mean(output.dtype, FP8)}"
        )
    if output.granularity not in ("tensor", "token"):
        raise PolicyQuantError(
            f"{where}an output cannot be quantized per {output.granularity}; expected granularity token or tensor"
        )
    if output.scheme == "static" and output.granularity == "token":
        raise PolicyQuantError(f"{where}a static output takes granularity tensor, found token")


def quantize_output(x: torch.Tensor, output: str | Quantization | None) -> torch.Tensor | QuantizedTensor:
    """`x` [..., N] as `output` says: untouched (None), in a plain dtype (its PyTorch name), or quantized.

    Dynamic scales are computed from `x`, one for each row of the last dimension (granularity token: [..., 1]) or one
    for all of it (tensor: [1]), and bounded by `scale_ub`; a static scale [1] is the one that the policy gives, or that
    was stored for the layers that read it.

    Raises:
        PolicyQuantError: no layer can produce the output (see `check_output`), or its scale is static and not known.
    """
    if output is None:
        return x
    check_output(output)
    if isinstance(output, str):
        return x.to(PLAIN[output])
    return without_gradient(x, _codes(x.detach(), output))


def _codes(x: torch.Tensor, output: Quantization) -> QuantizedTensor:
    dtype = FP8[output.dtype]
    if output.granularity == "token":
        data, scale = ops.per_token_scaled_fp8_quant(x, output.scale_ub, dtype)
        return QuantizedTensor(data, scale, "token", x.dtype)
    if output.scheme == "static":
        if output.scale is None:
            raise PolicyQuantError(
                f"the output {output} has no scale; build and load_weights take it from the input_scale of the layers"
                f" that read it, or write one into the policy (output: {{dtype: {output.dtype}, granularity: tensor,"
                " scheme: static, scale: ...}) or make it dynamic"
            )
        scale = torch.full((1,), output.scale, dtype=torch.float32, device=x.device)
        return QuantizedTensor(ops.static_scaled_fp8_quant(x, scale, dtype), scale, "tensor", x.dtype)
    data, scale = ops.dynamic_scaled_fp8_quant(x, output.scale_ub, dtype)
    return QuantizedTensor(data, scale, "tensor", x.dtype)


class EmittingLayer(PolicyLayer):
    """A layer without a method of its own whose result is handed on as the plan's `output` says."""

    def take_scheme(self, scheme: Scheme) -> None:
        """Take what the plan decided.

        Raises:
            PolicyQuantError: the layer cannot produce the scheme's output.
        """
        check_output(scheme.output, self.layer_name)
        super().take_scheme(scheme)

    def emit(self, x: torch.Tensor) -> torch.Tensor | QuantizedTensor:
        """The layer's result [..., N] as the plan's `output` says."""
        return x if self.scheme.output is None else quantize_output(x, self.scheme.output)
