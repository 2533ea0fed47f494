"""What others read as the `weight` of a quantized layer: its logical shape and dtype, with no values behind it.

`F.linear` and `F.embedding` on it go to the layer's method. Any other use computes the values anew each time; that is
counted, and warned of once for each layer name. Writing into it is an error, for what was written would be lost.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch.utils._pytree import tree_map_only

from policyquant.errors import PolicyQuantError
from policyquant.layers.gradients import product

if TYPE_CHECKING:
    from policyquant.layers.base import WeightLayer
    from policyquant.methods.base import QuantMethod

dequantizations: Final[Counter[str]] = Counter()
"""How often the logical weight of each layer was computed for somebody who read it, by layer name."""

_STAYS_LOGICAL: Final = frozenset({torch.ops.aten.detach.default, torch.ops.aten.alias.default})
"""Operators that look at no value and hand on the same weight."""

_OUT_OF_TORCH: Final = frozenset({torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.tolist})
"""What reads values without an operator."""

_SET_DATA: Final[Any] = torch.Tensor.data.__set__  # type: ignore[attr-defined]  # a descriptor, which torch does not tell
"""What `weight.data = ...` calls: no operator, and without a trace on a view."""


class LogicalWeightWarning(UserWarning):
    """A quantized layer's weight was computed because something other than its layer read it."""


class LogicalWeight(torch.Tensor):
    """The weight of a quantized layer: `layer.weight_shape`, `layer.params_dtype`, and the device of the codes."""

    layer: WeightLayer

    @staticmethod
    def __new__(cls, layer: WeightLayer) -> LogicalWeight:
        stored = layer._buffers["weight"]
        assert stored is not None
        made: LogicalWeight = torch.Tensor._make_wrapper_subclass(
            cls, layer.weight_shape, dtype=layer.params_dtype, device=stored.device, requires_grad=False
        )
        made.layer = layer
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func is F.linear:
            input, weight, bias = _linear_arguments(*args, **given)
            if isinstance(weight, LogicalWeight) and not isinstance(input, LogicalWeight):
                layer = with_bias(weight.layer, bias)
                return product(layer, input)
        elif func is F.embedding:
            ids, weight, max_norm = _embedding_arguments(*args, **given)
            if isinstance(weight, LogicalWeight) and max_norm is None:
                return weight.layer.quant_method.embed(weight.layer, ids)
        elif func in _OUT_OF_TORCH:
            return func(_values(args[0]), *args[1:], **given)
        elif func == _SET_DATA:
            raise PolicyQuantError(_not_writable(args[0].layer))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **given)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # the base class leaves its arguments open
        cls,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        if func in _STAYS_LOGICAL:
            return LogicalWeight(args[0].layer)
        for written in _written(func, args, given):
            raise PolicyQuantError(_not_writable(written.layer))
        return func(
            *tree_map_only(LogicalWeight, _values, args),
            **tree_map_only(LogicalWeight, _values, given),
        )

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]  # as above
        layer = self.layer
        return f"LogicalWeight({list(self.shape)}, {self.dtype}, of {layer.layer_name!r} stored as {layer.scheme})"

    def __deepcopy__(self, memo: dict[int, Any]) -> LogicalWeight:
        return LogicalWeight(copy.deepcopy(self.layer, memo))

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return LogicalWeight, (self.layer,)


def logical_weight(layer: WeightLayer) -> LogicalWeight:
    """The weight of a layer that stores codes, as others see it. Costs no memory, and computes nothing."""
    return LogicalWeight(layer)


def check_assignment(layer: WeightLayer, value: object) -> None:
    """Refuse to let another tensor take the place of a quantized layer's weight, or a view the place of a tensor.

    Raises:
        PolicyQuantError: `value` is neither None nor codes of the same shape and dtype as those stored.
    """
    stored = layer.__dict__.get("_buffers", {}).get("weight")
    if isinstance(value, LogicalWeight):
        raise PolicyQuantError(
            f"the weight of layer {value.layer.layer_name!r} is stored as {value.layer.scheme} and cannot be assigned"
            f" to layer {layer.layer_name!r}; a head is tied to a quantized embedding by head.tie_to(embedding)"
        )
    if stored is None or value is None:
        return
    same = isinstance(value, torch.Tensor) and value.dtype == stored.dtype and value.shape == stored.shape
    if not same or isinstance(value, torch.nn.Parameter):
        raise PolicyQuantError(_not_writable(layer))


def _not_writable(layer: WeightLayer) -> str:
    return (
        f"the weight of layer {layer.layer_name!r} is stored as {layer.scheme}: it cannot be written to or replaced;"
        " load the layer through its method, or give it the method 'none' first"
    )


def _values(weight: LogicalWeight) -> torch.Tensor:
    """The values of the whole weight, in its logical shape and dtype.

    Raises:
        PolicyQuantError: the codes are gone: a weight like this one was put in their place.
    """
    layer = weight.layer
    name = layer.layer_name or type(layer).__name__
    if isinstance(layer._buffers["weight"], LogicalWeight):
        raise PolicyQuantError(
            f"the codes of layer {name!r} ({layer.scheme}) are gone: something read its weight and put that into"
            " `_buffers`, as accelerate's offload does, which cannot move a quantized layer"
        )
    dequantizations[name] += 1
    if dequantizations[name] == 1:
        warnings.warn(
            f"the weight of layer {name!r} ({layer.scheme}) was dequantized because something other than F.linear and"
            " F.embedding read it; each such use computes all of it again",
            LogicalWeightWarning,
            stacklevel=4,
        )
    return layer.quant_method.dequantize(layer)


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[LogicalWeight]:
    """The logical weights among what `func` writes to."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, LogicalWeight):
                yield each


def _linear_arguments(input: Any, weight: Any, bias: Any = None) -> tuple[Any, Any, Any]:
    """What `F.linear` was called with, by place or by name."""
    return input, weight, bias


def _embedding_arguments(
    input: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, *others: Any, **named: Any
) -> tuple[Any, Any, Any]:
    """What `F.embedding` was called with, without what matters to gradients alone."""
    return input, weight, max_norm


def with_bias(layer: WeightLayer, bias: torch.Tensor | None, method: QuantMethod | None = None) -> WeightLayer:
    """The layer itself if its bias, and its method if one is given, are these; else one that shares all its other
    tensors."""
    method = layer.quant_method if method is None else method
    if bias is layer._parameters.get("bias") and method is layer.quant_method:
        return layer
    other: WeightLayer = layer.__class__.__new__(layer.__class__)
    other.__dict__.update(layer.__dict__)
    other.__dict__["_parameters"] = {**layer._parameters, "bias": bias}
    other.__dict__.update(has_bias=bias is not None, quant_method=method, scheme=method.scheme)
    return other
