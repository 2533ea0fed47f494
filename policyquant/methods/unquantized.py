"""Method `none`: weights in a plain floating-point dtype, multiplied as they are.

What it does
------------
Nothing. The layer holds what the source stores, or what its initialisation gives.

When to use it
--------------
For layers that must keep their precision: routers, heads, the first and last blocks.

Numerics
--------
y = x · Wᵀ + b, by `torch.nn.functional.linear`: bit for bit what `nn.Linear` computes. If the plan names an output
dtype, y is converted to it.

Shapes and alignment
--------------------
Any. `weight` [N, K] ([experts, N, K]) and `bias` [N] ([experts, N]) are parameters.

What runs it
------------
PyTorch's own operators.

Example
-------
    version: 1
    default: fp8
    layers:
      "decoder.*.attention": none
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
from torch.nn import functional

from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.methods.base import QuantMethod, WeightLayer, reference_values
from policyquant.methods.dtypes import PLAIN
from policyquant.methods.pieces import (
    check_bias,
    check_places,
    check_plain_weight,
    create_bias,
    entry,
    load_bias,
    pieces,
)
from policyquant.methods.registry import register
from policyquant.policy.methods import METHODS
from policyquant.quantized_tensor import QuantizedTensor

_SUFFIXES: Final = frozenset({"weight", "bias", "input_scale", "weight_scale"})


@register
class Unquantized(QuantMethod):
    """Plain weights; see the module's docstring."""

    spec = METHODS["none"]

    def create_weights(self, layer: WeightLayer, device: torch.device) -> None:
        """`weight` and `bias` as parameters in the layer's dtype."""
        leading = () if layer.num_experts is None else (layer.num_experts,)
        shape = (*leading, layer.out_features, layer.in_features)
        weight = torch.empty(shape, dtype=layer.params_dtype, device=device)
        layer.register_parameter("weight", torch.nn.Parameter(weight))
        create_bias(layer, device)

    def check(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> Iterator[str]:
        """What is missing, surplus, or of a shape or dtype that cannot be loaded."""
        yield from check_places(layer, tensors, _SUFFIXES)
        for expert, part, rows in pieces(layer):
            yield from check_plain_weight(layer, tensors, part, expert, rows.stop - rows.start)
            yield from check_bias(layer, tensors, part, expert, rows.stop - rows.start)

    def load(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> None:
        """Copy every piece into its rows."""
        weight = layer._parameters["weight"]
        assert weight is not None
        with torch.no_grad():
            for expert, part, rows in pieces(layer):
                tensors[Slot("weight", part, expert)].read_into(entry(weight, expert)[rows])
        load_bias(layer, tensors)

    def apply(self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        """x [..., K] → [..., N]."""
        if isinstance(x, QuantizedTensor):
            x = x.dequantize()
        weight = layer._parameters["weight"]
        assert weight is not None
        return self._emit(functional.linear(x, weight, layer._parameters.get("bias")))

    def apply_experts(self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int]) -> torch.Tensor:
        """x [T, K] sorted by expert → [T, N], expert by expert."""
        if isinstance(x, QuantizedTensor):
            x = x.dequantize()
        weight, bias = layer._parameters["weight"], layer._parameters.get("bias")
        assert weight is not None
        start, chunks = 0, []
        for expert, count in enumerate(counts):
            if count:
                own_bias = None if bias is None else bias[expert]
                chunks.append(functional.linear(x[start : start + count], weight[expert], own_bias))
                start += count
        return self._emit(torch.cat(chunks) if chunks else x.new_empty(0, layer.out_features))

    def embed(self, layer: WeightLayer, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight: ids [...] → [..., K]."""
        weight = layer._parameters["weight"]
        assert weight is not None
        return self._emit(functional.embedding(ids, weight))

    def dequantize(self, layer: WeightLayer) -> torch.Tensor:
        """The weight itself."""
        weight = layer._parameters["weight"]
        assert weight is not None
        return weight.detach()

    def reference_weight(self, layer: WeightLayer) -> torch.Tensor:
        """The weight itself."""
        return self.dequantize(layer).double()

    def reference_input(
        self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int] | None = None
    ) -> torch.Tensor:
        """x itself."""
        return reference_values(x)

    def _emit(self, y: torch.Tensor) -> torch.Tensor:
        output = self.scheme.output
        return y.to(PLAIN[output]) if isinstance(output, str) else y
