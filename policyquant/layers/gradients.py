"""Products with a quantized weight, and the gradients that go through them.

Forward, a method computes with codes, of which there is no useful derivative. Backward, the layer is what it stands
for, x · weightᵀ + bias with the weight as it is stored: rounding counts as no change (the straight-through estimator,
Bengio et al. 2013, arXiv:1308.3432). Inputs and the bias get gradients, so that adapters around a quantized layer can
be trained; codes and scales get none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch.autograd import forward_ad

from policyquant.errors import PolicyQuantError
from policyquant.methods.base import WeightLayer
from policyquant.quantized_tensor import QuantizedTensor

_is_tracing: Any = torch.jit.is_tracing  # type: ignore[attr-defined]  # torch exports it without a type


def product(layer: Any, x: torch.Tensor | QuantizedTensor, counts: list[int] | None = None) -> torch.Tensor:
    """What the layer's method makes of x: its `apply`, or with `counts` its `apply_experts`."""
    if torch.is_grad_enabled() and layer._buffers.get("weight") is not None and not _is_tracing():
        bias = layer._parameters.get("bias")
        codes: tuple[Any, Any, Any] = None, None, None
        if isinstance(x, QuantizedTensor):
            through, codes = x.scale, (x.data, x.granularity, x.dtype)
        else:
            through = x
        if through.requires_grad or (bias is not None and bias.requires_grad):
            result: torch.Tensor = _StraightThrough.apply(layer, counts, through, bias, *codes)  # type: ignore[no-untyped-call]
            return result
    return _run(layer, x, counts)


def _run(layer: Any, x: torch.Tensor | QuantizedTensor, counts: list[int] | None) -> torch.Tensor:
    method = layer.quant_method
    result: torch.Tensor = method.apply(layer, x) if counts is None else method.apply_experts(layer, x, counts)
    return result


class _StraightThrough(torch.autograd.Function):
    """`through` is what a gradient may reach: the input, or the scale of one that arrives as codes.

    A `QuantizedTensor` is given as its pieces, since only tensors among the arguments themselves get gradients.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        layer: Any, counts: Any, through: torch.Tensor, bias: Any, data: Any, granularity: Any, dtype: Any
    ) -> torch.Tensor:
        x = through if data is None else QuantizedTensor(data, through, granularity, dtype)
        result = _run(layer, x, counts)
        # Not as a view of rows, into which an activation could not write in place.
        unviewed: torch.Tensor = torch.ops.aten._unsafe_view(result, result.shape)
        return unviewed

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.layer, ctx.counts, through, bias, data, *_ = inputs
        ctx.shape, ctx.dtype, ctx.codes = through.shape, through.dtype, data is not None
        ctx.bias_dtype = None if bias is None else bias.dtype

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        to_input = to_bias = None
        if ctx.needs_input_grad[2]:
            # Codes end a gradient's way; whoever made them says so when this arrives there.
            to_input = grad.new_zeros(ctx.shape, dtype=ctx.dtype) if ctx.codes else _to_input(ctx, grad).to(ctx.dtype)
        if ctx.needs_input_grad[3]:
            to_bias = _to_bias(ctx, grad).to(ctx.bias_dtype)
        return None, None, to_input, to_bias, None, None, None


def _to_input(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    layer: WeightLayer = ctx.layer
    weight: torch.Tensor = layer.quant_method.dequantize(layer)  # type: ignore[attr-defined]
    grad = grad.to(weight.dtype)
    if ctx.counts is None:
        return grad @ weight
    return torch.cat([rows @ weight[expert] for expert, rows in enumerate(torch.split(grad, ctx.counts))])


def _to_bias(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
    """Sums over rows, in float32."""
    rows = grad.reshape(-1, grad.shape[-1]).float()
    if ctx.counts is None:
        return rows.sum(0)
    return torch.stack([each.sum(0) for each in torch.split(rows, ctx.counts)])


def gradient_asked(*values: torch.Tensor | None) -> bool:
    """Whether a gradient is to go through what is computed from these, backward or (`torch.func.jvp`) forward."""
    if torch.is_grad_enabled():
        for each in values:
            if each is not None and each.requires_grad:
                return True
    return forward_ad._current_level >= 0


def without_gradient(x: torch.Tensor, codes: QuantizedTensor) -> QuantizedTensor:
    """Codes that were made of x, such that a gradient that arrives at them is an error."""
    if not (torch.is_grad_enabled() and x.requires_grad):
        return codes
    scale = _NoGradient.apply(x, codes.scale)  # type: ignore[no-untyped-call]
    return replace(codes, scale=scale)


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return scale.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> NoReturn:
        raise PolicyQuantError(
            "no gradient goes through activations that a layer hands on as codes (output: fp8); leave `output` out of"
            " the policy of a model that is trained"
        )
