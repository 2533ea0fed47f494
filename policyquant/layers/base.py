"""What every layer with a plan has in common: a name, the scheme that the plan gives it, and stored codes kept safe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import torch
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.built import refuse_if_made_in_forward
from policyquant.layers.logical_weight import check_assignment, logical_weight
from policyquant.layers.placeholders import makes_placeholders
from policyquant.layers.state import misfits
from policyquant.methods.base import QuantMethod
from policyquant.methods.registry import method_for
from policyquant.policy.scheme import NONE, Quantization, Scheme
from policyquant.quantized_tensor import QuantizedTensor

_NOTHING: Final = object()
"""In place of a weight that is taken away."""


class QuantConfig(Protocol):
    """What a layer asks for its method at construction; `policyquant.PlanConfig` is one that asks a plan."""

    def scheme_for(self, layer: nn.Module, name: str) -> Scheme:
        """The plan's scheme for the layer with this name."""

    def get_quant_method(self, layer: nn.Module, name: str) -> QuantMethod | None:
        """The method for the layer with this name; None for a layer that owns nothing to quantize."""


class PolicyLayer(nn.Module):
    """A layer that a plan decides about."""

    scheme: Scheme
    layer_name: str
    """Its fully qualified name: the `prefix` that was given, or what the tree calls it; "" until one is known."""

    def __init__(self, quant_config: QuantConfig | None = None, prefix: str = "") -> None:
        # Not super(): a layer that is also a torch layer (Linear, Embedding) makes its tensors by its method.
        nn.Module.__init__(self)
        self.layer_name = prefix
        self.scheme = NONE
        if quant_config is not None:
            _check_quant_config(quant_config, "scheme_for")
            self.take_scheme(quant_config.scheme_for(self, prefix))

    def take_scheme(self, scheme: Scheme) -> None:
        """Take what the plan decided. Layers that own weights take a method besides."""
        self.scheme = scheme

    def extra_repr(self) -> str:
        return "" if self.scheme == NONE else str(self.scheme)


class WeightLayer(PolicyLayer):
    """A layer that owns weights, and the method that stores and applies them.

    Quantized tensors are buffers, so that nothing that goes through parameters (an optimizer, `requires_grad_`, a
    search for the model's dtype) meets codes. `weight` of a quantized layer is a view of the logical shape and dtype;
    see `policyquant.layers.logical_weight`.
    """

    in_features: int
    parts: Mapping[str, int]
    num_experts: int | None
    params_dtype: torch.dtype
    has_bias: bool
    quant_method: QuantMethod
    method_tensors: frozenset[str] = frozenset({"weight", "bias"})
    """Names of the parameters and buffers that are its method's; any others are a subclass's own, as in any module."""
    as_stored: bool
    """Whether the plan leaves the layer exactly as it is: its forward is then torch's own operator."""

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, int],
        *,
        has_bias: bool,
        num_experts: int | None = None,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Take the method that `quant_config` gives the layer named `prefix`; without a config, stay unquantized.

        An unquantized layer is initialised as torch does it; a quantized one holds nothing until it is loaded.

        Raises:
            PolicyQuantError: there is no feature, part or expert.
        """
        super().__init__(None, prefix)
        # Not one by one: nn.Module looks for a tensor, a module and a name clash in each, and models have many layers.
        self.__dict__.update(
            in_features=in_features,
            parts=dict(parts),
            num_experts=num_experts,
            params_dtype=dtype if dtype is not None else torch.get_default_dtype(),
            has_bias=has_bias,
        )
        _check_sizes(self)
        method = None
        if quant_config is not None:
            _check_quant_config(quant_config, "get_quant_method")
            method = quant_config.get_quant_method(self, prefix)
        if makes_placeholders():
            device = "meta"
        self.take_method(
            method if method is not None else method_for(NONE),
            torch.device(device) if device is not None else torch.get_default_device(),
        )
        if "weight" in self._parameters:
            self.reset_parameters()
        if quant_config is None:
            refuse_if_made_in_forward(self)

    @property
    def out_features(self) -> int:
        """Rows of all parts together."""
        return sum(self.parts.values())

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """The logical shape: [out, in], or [experts, out, in]."""
        matrix = (self.out_features, self.in_features)
        return matrix if self.num_experts is None else (self.num_experts, *matrix)

    def take_method(self, method: QuantMethod, device: torch.device) -> None:
        """Let `method` own the layer's tensors from now on; they are created, and hold nothing yet.

        A bias that is on `device` already is kept, values and all.

        Raises:
            PolicyQuantError: the method names one of its tensors as the layer names one of its own.
        """
        bias = self._parameters.get("bias")
        kept = bias if bias is not None and bias.device == device else None
        for name in self.method_tensors:
            self._parameters.pop(name, None)
            self._buffers.pop(name, None)
        own = {**self._parameters, **self._buffers}
        self.register_parameter("bias", kept)
        self.note_method(method)
        method.create_weights(self, device)
        tensors = {**self._parameters, **self._buffers}
        for name, tensor in own.items():
            if tensors.get(name) is not tensor:
                raise PolicyQuantError(
                    f"{self.layer_name}: {type(self).__name__} has a {name!r} of its own, and method"
                    f" {method.scheme.method!r} stores one; give the layer's another name"
                )
        self.__dict__["method_tensors"] = frozenset({"weight", "bias", *tensors}.difference(own))

    def note_method(self, method: QuantMethod) -> None:
        """Say that the tensors which the layer has are `method`'s."""
        self.__dict__.update(scheme=method.scheme, quant_method=method, as_stored=method.scheme == NONE)

    def reset_parameters(self) -> None:
        """Initialise an unquantized layer as `nn.Linear` does: each matrix, and its bias, in ±1 / sqrt(in_features)."""
        weight: torch.Tensor = self.weight
        if weight.is_meta:
            return
        for matrix in (weight,) if weight.dim() == 2 else weight.unbind():
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features)
            nn.init.uniform_(self.bias, -bound, bound)

    def _emit(self, y: torch.Tensor) -> torch.Tensor | QuantizedTensor:
        """The method's result, quantized if the plan says that the layer hands on codes."""
        if not isinstance(self.scheme.output, Quantization):
            return y
        from policyquant.layers.output import quantize_output

        return quantize_output(y, self.scheme.output)

    def __getattr__(self, name: str) -> Any:
        # Only names that are no attribute come here; the weight of a quantized layer is one, for it is a buffer.
        if name == "weight" and self.__dict__.get("_buffers", {}).get("weight") is not None:
            return logical_weight(self)
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight":
            check_assignment(self, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        # As a parametrization does, which puts what it computes in the weight's place.
        if name == "weight":
            check_assignment(self, _NOTHING)
        super().__delattr__(name)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Move codes and scales between devices, but never convert them: a new dtype is the logical one only."""
        stored = {name: self._buffers.pop(name) for name in list(self._buffers) if name in self.method_tensors}
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
            for name, tensor in stored.items():
                if tensor is not None:
                    # As bytes, for torch converts nothing but floating point.
                    moved = fn(tensor.reshape(-1).view(torch.uint8))
                    stored[name] = moved.view(tensor.dtype).reshape(tensor.shape)
        finally:
            self._buffers.update(stored)
        weight = self._parameters.get("weight")
        like = weight if weight is not None else fn(torch.empty(0, dtype=self.params_dtype))
        self.params_dtype = like.dtype
        return self

    def __getstate__(self) -> dict[str, Any]:
        # Codes travel as bytes: `pickle` alone cannot read float8 tensors back (`torch.save` can).
        buffers: dict[str, Any] = dict(self._buffers)
        for name, tensor in self._buffers.items():
            if tensor is not None and tensor.is_floating_point() and tensor.itemsize == 1:
                buffers[name] = (tensor.view(torch.uint8), tensor.dtype)
        return {**self.__dict__, "_buffers": buffers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        buffers = {
            name: each[0].view(each[1]) if isinstance(each, tuple) else each for name, each in state["_buffers"].items()
        }
        super().__setstate__({**state, "_buffers": buffers})  # type: ignore[no-untyped-call]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Take all tensors or none: codes are never converted, nor parted from their scales."""
        wrong = list(misfits(self, state_dict, prefix))
        if wrong:
            error_msgs.extend(wrong)
            return
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def _check_quant_config(config: object, asked: str) -> None:
    """Refuse what has no method of the name `asked`, as a plan or a policy in place of a config."""
    if not callable(getattr(config, asked, None)):
        raise PolicyQuantError(
            f"quant_config is PlanConfig(plan), or another object with {asked}; found {type(config).__name__}:"
            " wrap a plan in PlanConfig"
        )


def _check_sizes(layer: WeightLayer) -> None:
    """Refuse a layer without features, parts or experts."""
    where = f"{type(layer).__name__} {layer.layer_name!r}" if layer.layer_name else type(layer).__name__
    sizes = {"in_features": layer.in_features, **{f"rows of part {name!r}": n for name, n in layer.parts.items()}}
    if layer.num_experts is not None:
        sizes["num_experts"] = layer.num_experts
    for what, size in sizes.items():
        if size < 1:
            raise PolicyQuantError(f"{where}: {what} must be at least 1, found {size}")
    if not layer.parts:
        raise PolicyQuantError(f"{where}: needs at least one part, found none")
