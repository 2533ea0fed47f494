"""Method `int8_weight_only`: weights in 8-bit integers; activations stay as they are.

What it does
------------
Weights are stored as INT8 codes with one float32 scale for each output channel, or one for each part of the layer. They
are turned back into floating point as they are multiplied.

When to use it
--------------
Half the memory of BF16 on any hardware, with almost no loss. It takes embeddings and heads as well, tied ones too.

Numerics
--------
w ≈ q · s, symmetric.

    s[n] = max_k |w[n, k]| / 127.5          q = clamp(round(w / s), -128, 127), ties to even
    y[m, n] = (Σ_k x[m, k] · q[n, k]) · s[n] + bias[n], accumulated in float32, rounded once

An element errs by at most s / 2. Codes and scales are those of compressed-tensors' symmetric 8-bit integers for the
same weight in float32, except that scales are at least 2^-126: a row of zeros has that scale (there 2^-23), and so has
one whose own would be smaller. Of a weight in bfloat16 or float16, compressed-tensors rounds scales and quotients to
that dtype; here both are float32. NaN or infinity in a weight is an error at load.

Shapes and alignment
--------------------
Any. Codes `weight` [N, K] ([experts, N, K]); `weight_scale` float32 [N, 1] ([experts, N, 1]) per channel, [parts]
([experts, parts]) per tensor.

What runs it
------------
The operator `int8_weight_only_mm`.

Example
-------
    version: 1
    layers:
      "*": int8_weight_only
      "*.embed_tokens": int8_weight_only
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch

from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.kernels import ops
from policyquant.kernels.cpu.quantize import INT8_HALF_RANGE, SMALLEST_SCALE
from policyquant.methods.base import WeightLayer, input_rows, reference_values
from policyquant.methods.pieces import (
    buffer,
    check_bias,
    check_places,
    check_plain_weight,
    entry,
    load_bias,
    pieces,
    refuse_nonfinite,
    runs,
)
from policyquant.methods.registry import register
from policyquant.methods.scaled_codes import ScaledCodes
from policyquant.policy.methods import METHODS
from policyquant.quantized_tensor import QuantizedTensor

_SUFFIXES: Final = frozenset({"weight", "bias"})


@register
class Int8WeightOnly(ScaledCodes):
    """INT8 weights; see the module's docstring."""

    spec = METHODS["int8_weight_only"]

    @property
    def code_dtype(self) -> torch.dtype:
        """That of the weight's codes."""
        return torch.int8

    def check(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> Iterator[str]:
        """What is missing, surplus, or of a shape or dtype that cannot be loaded."""
        yield from check_places(layer, tensors, _SUFFIXES)
        for expert, part, rows in pieces(layer):
            yield from check_plain_weight(layer, tensors, part, expert, rows.stop - rows.start)
            yield from check_bias(layer, tensors, part, expert, rows.stop - rows.start)

    def load(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> None:
        """Quantize every piece, a few MiB at a time.

        Raises:
            PolicyQuantError: a weight holds NaN or infinity.
        """
        with torch.no_grad():
            for index, (expert, part, rows) in enumerate(pieces(layer)):
                codes = entry(buffer(layer, "weight"), expert)[rows]
                scales = entry(buffer(layer, "weight_scale"), expert)
                source = tensors[Slot("weight", part, expert)]
                if self.per_channel:
                    _quantize_rows(source, codes, scales[rows])
                else:
                    number = index % len(layer.parts)
                    _quantize_whole(source, codes, scales[number : number + 1])
        load_bias(layer, tensors)

    def apply(self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        """x [..., K] → [..., N]."""
        if isinstance(x, QuantizedTensor):
            x = x.dequantize()
        flat = input_rows(layer, x)
        scale, bias = self.product_scale(layer, buffer(layer, "weight_scale")), layer._parameters.get("bias")
        y = ops.int8_weight_only_mm(flat, buffer(layer, "weight"), scale, bias, self.out_dtype(layer))
        return y.reshape(*x.shape[:-1], layer.out_features)

    def apply_experts(self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int]) -> torch.Tensor:
        """x [T, K] sorted by expert → [T, N], expert by expert."""
        if isinstance(x, QuantizedTensor):
            x = x.dequantize()
        x = input_rows(layer, x)
        out = torch.empty((x.shape[0], layer.out_features), dtype=self.out_dtype(layer), device=x.device)
        weight, scales, bias = buffer(layer, "weight"), buffer(layer, "weight_scale"), layer._parameters.get("bias")
        start = 0
        for expert, count in enumerate(counts):
            if count:
                rows = slice(start, start + count)
                scale = self.product_scale(layer, scales[expert])
                own_bias = None if bias is None else bias[expert]
                out[rows] = ops.int8_weight_only_mm(x[rows], weight[expert], scale, own_bias, out.dtype)
                start += count
        return out

    def embed(self, layer: WeightLayer, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, turned back: ids [...] → [..., K]."""
        scale = self.product_scale(layer, buffer(layer, "weight_scale"))
        flat = ids.reshape(-1)
        # Unlike an index, this refuses what is no row: negative numbers, and masks.
        chosen = scale.index_select(0, flat) if scale.dim() == 2 else scale
        rows = ops.dequantize(buffer(layer, "weight").index_select(0, flat), chosen, self.out_dtype(layer))
        return rows.reshape(*ids.shape, layer.in_features)

    def reference_input(
        self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int] | None = None
    ) -> torch.Tensor:
        """x itself."""
        return reference_values(x)


def _quantize_rows(source: LazyTensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
    for start, stop in runs(source.shape):
        chunk = source.rows(start, stop).read()
        refuse_nonfinite(source, chunk, start)
        targets = {"out": codes[start:stop], "out_scale": scales[start:stop]}
        torch.ops.policyquant.per_channel_int8_quant.out(chunk.to(codes.device), **targets)


def _quantize_whole(source: LazyTensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    largest = 0.0
    for start, stop in runs(source.shape):
        chunk = source.rows(start, stop).read()
        largest = max(largest, float(refuse_nonfinite(source, chunk, start).amax()))
    one = torch.tensor([largest / INT8_HALF_RANGE], dtype=torch.float32).clamp_(min=SMALLEST_SCALE)
    for start, stop in runs(source.shape):
        values = source.rows(start, stop).read().to(torch.float32, copy=True)
        codes[start:stop].copy_(values.div_(one).round_().clamp_(-128, 127))
    scale.copy_(one)
