"""What a layer hands on: its result as the plan's `output` says, in a plain dtype or already quantized.

A layer that emits FP8 returns a `QuantizedTensor`, which the next linear reads without quantizing again.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.kernels import dispatch, ops
from policyquant.layers.base import PolicyLayer
from policyquant.layers.gradients import gradient_asked, without_gradient
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
        scale = static_scale(output.scale, x)
        return QuantizedTensor(ops.static_scaled_fp8_quant(x, scale, dtype), scale, "tensor", x.dtype)
    data, scale = ops.dynamic_scaled_fp8_quant(x, output.scale_ub, dtype)
    return QuantizedTensor(data, scale, "tensor", x.dtype)


_static_scales: dict[tuple[float, torch.device], torch.Tensor] = {}


def static_scale(value: float, x: torch.Tensor) -> torch.Tensor:
    """A scale [1] on the device of x. It is kept, so that a GPU need not write it anew in each call."""
    if type(x) is not torch.Tensor or torch.compiler.is_compiling():
        return torch.full((1,), value, dtype=torch.float32, device=x.device)
    kept = _static_scales.get((value, x.device))
    return _new_static_scale(value, x.device) if kept is None else kept


def _new_static_scale(value: float, device: torch.device) -> torch.Tensor:
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        # What it holds is written when the graph is replayed, so it is the graph's alone.
        return torch.full((1,), value, dtype=torch.float32, device=device)
    with torch.inference_mode(False):
        # By a copy, for which the host waits: other streams read it too.
        scale = torch.tensor([value], dtype=torch.float32, device="cpu").to(device)
    if type(scale) is torch.Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(scale):
        _static_scales[value, device] = scale
    return scale


def operators_pay(x: torch.Tensor) -> bool:
    """Whether operators compute what torch's functions could as well: on a GPU, or where they are asked for by name."""
    return x.is_cuda or (not torch.compiler.is_compiling() and bool(dispatch.forced()))


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

    def runs_as(self, x: torch.Tensor, *others: torch.Tensor | None) -> Literal["torch", "operator", "fused operator"]:
        """What computes the layer from these: torch's own functions, its operator, or the one that encodes as well.

        The fused one makes codes with a scale for each token or with one that is known; one scale for a tensor is not
        known before all of it is computed. Operators have no gradient, so where one is asked for it is torch's
        functions. So it is on a CPU, where those are called sooner, unless an operator is fused or asked for by name.
        """
        fused = self._encoding_is_known() and getattr(self.emit, "__func__", None) is EmittingLayer.emit
        if not (fused or operators_pay(x)) or gradient_asked(x, *others) or not self.operator_takes(x, *others):
            return "torch"
        return "fused operator" if fused else "operator"

    def operator_takes(self, *inputs: Any) -> bool:
        """Whether the layer's operators compute with these what torch's functions would."""
        return True

    def encoding(self, x: torch.Tensor) -> dict[str, Any]:
        """What a fused operator is told of the codes that it makes of x."""
        output = self.scheme.output
        assert isinstance(output, Quantization)
        if output.scale is not None:
            return {"scale": static_scale(output.scale, x), "dtype": FP8[output.dtype]}
        return {"scale_ub": output.scale_ub, "dtype": FP8[output.dtype]}

    def encoded(self, data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> QuantizedTensor:
        """What a fused operator returned, as the layer hands it on; `dtype` is that of the result itself."""
        output = self.scheme.output
        assert isinstance(output, Quantization)
        return QuantizedTensor(data, scale, "token" if output.granularity == "token" else "tensor", dtype)

    def _encoding_is_known(self) -> bool:
        output = self.scheme.output
        if not isinstance(output, Quantization):
            return False
        if output.scheme == "static":
            return output.granularity == "tensor" and output.scale is not None
        return output.granularity == "token" and output.scale is None
