"""Method `fp8`: weights and activations in 8-bit floating point, multiplied as they are.

What it does
------------
Weights are stored as FP8 codes with one float32 scale for each output channel, or one for each part of the layer.
Each input is quantized to FP8 as it comes, with one scale for each token or one for all of it; or with a scale that
was fixed beforehand (static), from the checkpoint's `input_scale` or from the policy.

When to use it
--------------
The usual W8A8 on GPUs with FP8 tensor cores (compute capability 8.9 and up): half the memory of BF16, and close to
its quality. A static input scale saves a pass over the input and needs calibration; per token needs none.

Numerics
--------
x ≈ q · s, with F the largest finite value of the format: 448 for float8_e4m3fn, 57344 for float8_e5m2
(Micikevicius et al. 2022, arXiv:2209.05433).

    weight    s[n] = max_k |w[n, k]| / F              q = fp8(clamp(w / s, -F, F)), to nearest, ties to even
    dynamic   s[m] = min(max_k |x[m, k]| / F, scale_ub)
    result    y[m, n] = (Σ_k qx[m, k] · qw[n, k]) · sx[m] · sw[n] + bias[n], in float32, rounded once

A per-tensor scale takes its maximum over the whole part (weight) or input. Static scales of a layer's parts become
their maximum, since the parts read one input. An element errs by at most 2^-4 of itself (e4m3; 2^-3 for e5m2), or by
half a subnormal step, s · 2^-10 (e5m2: s · 2^-17), whichever is more. NaN or infinity in a weight is an error at load.

Codes and scales of a weight in float32 are those of compressed-tensors, with two exceptions. Scales are at least
2^-126: a row of zeros has that scale (there 2^-23), and so has one whose own would be smaller. And -0 keeps its sign,
which a zero point of 0, as llm-compressor adds it, takes away. Of a weight in bfloat16 or float16, compressed-tensors
rounds scales and quotients to that dtype; here both are float32.

Shapes and alignment
--------------------
Any. Codes `weight` [N, K] ([experts, N, K]); `weight_scale` float32 [N, 1] ([experts, N, 1]) per channel, [parts]
([experts, parts]) per tensor; `input_scale` float32 [parts] ([experts, parts]) if static.

What runs it
------------
The operators `per_token_scaled_fp8_quant`, `dynamic_scaled_fp8_quant`, `static_scaled_fp8_quant` and `scaled_mm`. On a
GPU `fused_moe` computes a whole mixture of experts whose inputs have scales per token or static ones.

Example
-------
    version: 1
    default: none
    layers:
      "decoder.*.mlp": fp8
      "decoder.*.attention.o_proj": {method: fp8, weight: {granularity: tensor}}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import torch

from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.errors import PolicyQuantError
from policyquant.kernels import dispatch, ops, reference
from policyquant.kernels.cpu.quantize import fp8_scale
from policyquant.methods.base import (
    PLAIN_DTYPES,
    WeightLayer,
    input_rows,
    reference_values,
    values_are_known,
)
from policyquant.methods.dtypes import FP8
from policyquant.methods.pieces import (
    buffer,
    check_bias,
    check_places,
    entry,
    load_bias,
    misshapen,
    not_plain,
    pieces,
    place_of,
    refuse_nonfinite,
    runs,
)
from policyquant.methods.registry import register
from policyquant.methods.scaled_codes import ScaledCodes
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Quantization
from policyquant.quantized_tensor import QuantizedTensor

_SUFFIXES: Final = frozenset({"weight", "weight_scale", "input_scale", "bias"})


@register
class Fp8(ScaledCodes):
    """FP8 weights and activations; see the module's docstring."""

    spec = METHODS["fp8"]

    @property
    def code_dtype(self) -> torch.dtype:
        """That of the weight's codes."""
        return FP8[self.weight_quantization.dtype]

    @property
    def _input(self) -> Quantization:
        assert self.scheme.input is not None
        return self.scheme.input

    def create_weights(self, layer: WeightLayer, device: torch.device) -> None:
        """Codes, scales, static scales of the input, and the bias unless the layer has one on this device."""
        super().create_weights(layer, device)
        layer._buffers.pop("input_scale", None)
        if self._input.scheme == "static":
            parts = (len(layer.parts),) if layer.num_experts is None else (layer.num_experts, len(layer.parts))
            layer._buffers["input_scale"] = torch.empty(parts, dtype=torch.float32, device=device)

    def check(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> Iterator[str]:
        """What is missing, surplus, or of a shape or dtype that cannot be loaded."""
        yield from check_places(layer, tensors, _SUFFIXES)
        for expert, part, rows in pieces(layer):
            yield from self._check_weight(layer, tensors, part, expert, rows.stop - rows.start)
            yield from check_bias(layer, tensors, part, expert, rows.stop - rows.start)
            yield from self._check_input(layer, tensors, part, expert)

    def _check_weight(
        self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor], part: str, expert: int | None, rows: int
    ) -> Iterator[str]:
        where = place_of(layer, part, expert)
        weight = tensors.get(Slot("weight", part, expert))
        if weight is None:
            yield f"{where}: no weight is stored"
        else:
            yield from misshapen(where, weight, [(rows, layer.in_features)])
            if weight.dtype in FP8.values():
                scale = tensors.get(Slot("weight_scale", part, expert))
                if scale is None:
                    yield f"{where}: {weight.place} is stored as {weight.dtype}, but no weight_scale is stored with it"
                else:
                    yield from misshapen(where, scale, [(), (1,), (1, 1), (rows,), (rows, 1)])
                    yield from not_plain(where, scale)
            elif weight.dtype not in PLAIN_DTYPES:
                yield f"{where}: {weight.place} is stored as {weight.dtype}; expected float32, float16, bfloat16 or FP8"

    def _check_input(
        self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor], part: str, expert: int | None
    ) -> Iterator[str]:
        if self._input.scheme != "static" or self._input.scale is not None:
            return
        where = place_of(layer, part, expert)
        stored = tensors.get(Slot("input_scale", part, expert))
        if stored is None:
            yield (
                f"{where}: its input is quantized with a static scale, but no input_scale is stored and the policy"
                " gives none; write input: {scheme: static, scale: ...} or input: {scheme: dynamic}"
            )
        else:
            yield from misshapen(where, stored, [(), (1,), (1, 1)])
            yield from not_plain(where, stored)

    def load(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> None:
        """Fill codes, scales and bias; convert a few MiB at a time.

        Raises:
            PolicyQuantError: a weight holds NaN or infinity, or a stored scale is not finite and positive.
        """
        with torch.no_grad():
            for index, (expert, part, rows) in enumerate(pieces(layer)):
                self._load_weight(layer, tensors, expert, part, rows, index % len(layer.parts))
            load_bias(layer, tensors)
            if self._input.scheme == "static":
                self._load_input_scale(layer, tensors)

    def _load_weight(
        self,
        layer: WeightLayer,
        tensors: Mapping[Slot, LazyTensor],
        expert: int | None,
        part: str,
        rows: slice,
        index: int,
    ) -> None:
        source = tensors[Slot("weight", part, expert)]
        stored = tensors.get(Slot("weight_scale", part, expert)) if source.dtype in FP8.values() else None
        scale = None if stored is None else _scale(stored)
        codes, scales = entry(buffer(layer, "weight"), expert)[rows], entry(buffer(layer, "weight_scale"), expert)
        if scale is not None and source.dtype == codes.dtype and (self.per_channel or scale.numel() == 1):
            for start, stop in runs(source.shape):
                chunk = source.rows(start, stop).read()
                refuse_nonfinite(source, chunk, start)
                codes[start:stop].copy_(chunk)
            if self.per_channel:
                scales[rows].copy_(scale)
            else:
                scales[index : index + 1].copy_(scale.reshape(1))
        elif self.per_channel:
            for start, stop in runs(source.shape):
                values = _values(source, scale, start, stop)
                own = fp8_scale(refuse_nonfinite(source, values, start), None, codes.dtype)
                _encode(values, own, codes[start:stop])
                scales[rows][start:stop].copy_(own)
        else:
            largest = torch.zeros((1, 1))
            for start, stop in runs(source.shape):
                magnitudes = refuse_nonfinite(source, _values(source, scale, start, stop), start)
                largest = torch.maximum(largest, magnitudes.amax(dim=0, keepdim=True).cpu())
            one = fp8_scale(largest, None, codes.dtype).reshape(1)
            for start, stop in runs(source.shape):
                _encode(_values(source, scale, start, stop), one, codes[start:stop])
            scales[index : index + 1].copy_(one)

    def _load_input_scale(self, layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> None:
        target = buffer(layer, "input_scale")
        if self._input.scale is not None:
            target.fill_(self._input.scale)
            return
        for expert in (None,) if layer.num_experts is None else range(layer.num_experts):
            stored = [_scale(tensors[Slot("input_scale", part, expert)]) for part in layer.parts]
            entry(target, expert).fill_(max(float(scale.max()) for scale in stored))

    def apply(self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        """x [..., K] → [..., N]. Codes that a `QuantizedTensor` brings in the plan's format are read as they are."""
        out_dtype, rows, flat = self.out_dtype(layer), layer.out_features, input_rows(layer, x)
        if 0 in x.shape:
            return torch.empty((*x.shape[:-1], rows), dtype=out_dtype, device=x.device)
        scale = layer._buffers.get("input_scale")
        read = self._quantize(flat, None if scale is None else scale[:1])
        weight_scale = self.product_scale(layer, buffer(layer, "weight_scale"))
        bias = layer._parameters.get("bias")
        y = ops.scaled_mm(read.data, buffer(layer, "weight"), read.scale, weight_scale, bias, out_dtype)
        return y.reshape(*x.shape[:-1], rows)

    def apply_experts(self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int]) -> torch.Tensor:
        """x [T, K] sorted by expert → [T, N]; dynamic scales are those of the whole input, static ones the expert's."""
        out = torch.empty((x.shape[0], layer.out_features), dtype=self.out_dtype(layer), device=x.device)
        if 0 in x.shape:
            return out
        x = input_rows(layer, x)
        static, bias = layer._buffers.get("input_scale"), layer._parameters.get("bias")
        if static is None:
            x = self._quantize(x, None)
        weight, scales, start = buffer(layer, "weight"), buffer(layer, "weight_scale"), 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            chosen = slice(start, start + count)
            rows = self._quantize(x[chosen], None if static is None else static[expert, :1])
            weight_scale = self.product_scale(layer, scales[expert])
            own_bias = None if bias is None else bias[expert]
            out[chosen] = ops.scaled_mm(rows.data, weight[expert], rows.scale, weight_scale, own_bias, out.dtype)
            start += count
        return out

    def apply_moe(
        self,
        gate_up: WeightLayer,
        down: WeightLayer,
        x: torch.Tensor | QuantizedTensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor | None:
        """By `fused_moe`, if both layers have this method in one format, one kind of input and no bias.

        None too on a GPU for which `fused_moe` has no kernel: there plain torch is faster expert by expert.
        """
        other, how, out_dtype = getattr(down, "quant_method", None), self._fused_quantization, self.out_dtype(gate_up)
        if not isinstance(other, Fp8) or (other.code_dtype, other._fused_quantization) != (self.code_dtype, how):
            return None
        if how is None or gate_up.has_bias or down.has_bias or out_dtype != other.out_dtype(down):
            return None
        if other._input.scale_ub != self._input.scale_ub:
            return None
        if ids.is_cuda and values_are_known(ids) and not _has_kernel(dispatch.machine("cuda", ids.get_device())):
            return None
        # The parts of a layer hold the same scale; each expert has its own.
        static = [layer._buffers.get("input_scale") for layer in (gate_up, down)]
        x_scale, intermediate_scale = (None if each is None else each.select(1, 0) for each in static)
        if not isinstance(x, QuantizedTensor):
            values = x
        elif x.data.dtype == self.code_dtype:
            values, x_scale = x.data, x.scale
        else:
            values = x.dequantize()
        return ops.fused_moe(
            input_rows(gate_up, values), buffer(gate_up, "weight"), buffer(down, "weight"),
            self.product_scale(gate_up, buffer(gate_up, "weight_scale")),
            other.product_scale(down, buffer(down, "weight_scale")),
            weights, ids, quantization=how, x_scale=x_scale, intermediate_scale=intermediate_scale,
            scale_ub=self._input.scale_ub, out_dtype=out_dtype,
        )  # fmt: skip

    @property
    def _fused_quantization(self) -> Literal["token", "tensor"] | None:
        """What `fused_moe` calls the way in which inputs are quantized; None: it has none like it."""
        if FP8[self._input.dtype] != self.code_dtype:
            return None
        if self._input.scheme == "static":
            return "tensor"
        return "token" if self._input.granularity == "token" else None

    def reference_input(
        self, layer: WeightLayer, x: torch.Tensor | QuantizedTensor, counts: list[int] | None = None
    ) -> torch.Tensor:
        """Codes times scales, of the codes that arrive in the plan's format or else of those made here."""
        dtype, static = FP8[self._input.dtype], layer._buffers.get("input_scale")
        if isinstance(x, QuantizedTensor) and x.data.dtype == dtype:
            return reference.dequantize(x.data, x.scale)
        values = reference_values(x)
        if static is not None:
            # The parts of a layer hold the same scale; each expert has its own.
            scale = static[:1]
            if counts is not None:
                rows = torch.tensor(counts, device=static.device)
                scale = static[:, :1].repeat_interleave(rows, dim=0)
            codes = reference.static_scaled_fp8_quant(values, scale, dtype)
        elif self._input.granularity == "token":
            codes, scale = reference.per_token_scaled_fp8_quant(values, self._input.scale_ub, dtype)
        else:
            codes, scale = reference.dynamic_scaled_fp8_quant(values, self._input.scale_ub, dtype)
        return reference.dequantize(codes, scale)

    def _quantize(self, x: torch.Tensor | QuantizedTensor, static: torch.Tensor | None) -> QuantizedTensor:
        """x as codes; `static` [1] is the scale to use, if it is fixed."""
        dtype = FP8[self._input.dtype]
        if isinstance(x, QuantizedTensor):
            if x.data.dtype == dtype:
                return x
            x = x.dequantize()
        if static is not None:
            return QuantizedTensor(ops.static_scaled_fp8_quant(x, static, dtype), static, "tensor", x.dtype)
        if self._input.granularity == "token":
            data, scale = ops.per_token_scaled_fp8_quant(x, self._input.scale_ub, dtype)
            return QuantizedTensor(data, scale, "token", x.dtype)
        data, scale = ops.dynamic_scaled_fp8_quant(x, self._input.scale_ub, dtype)
        return QuantizedTensor(data, scale, "tensor", x.dtype)


def _has_kernel(on: dispatch.Machine) -> bool:
    """Whether anything but plain torch runs `fused_moe` there."""
    found = dispatch.available("fused_moe", on)
    return any(reason is None and each.name != dispatch.PLAIN for each, reason in found)


def _values(source: LazyTensor, scale: torch.Tensor | None, start: int, stop: int) -> torch.Tensor:
    """Rows of a stored weight, as stored or, if that is codes, in float32."""
    chunk = source.rows(start, stop).read()
    if scale is None:
        return chunk
    return chunk.to(torch.float32) * (scale if scale.numel() == 1 else scale[start:stop])


def _encode(values: torch.Tensor, scale: torch.Tensor, codes: torch.Tensor) -> None:
    """Write the codes of values / scale where they belong, which may be another device."""
    device = codes.device
    torch.ops.policyquant.static_scaled_fp8_quant.out(values.to(device), scale.to(device), out=codes)


def _scale(stored: LazyTensor) -> torch.Tensor:
    """A stored scale in float32: [1, 1] for one, [N, 1] for one a row."""
    scale = stored.read().to(torch.float32).reshape(-1, 1)
    wrong = ~(scale.isfinite() & (scale > 0))
    if bool(wrong.any()):
        index = int(wrong.nonzero()[0, 0])
        raise PolicyQuantError(
            f"{stored.place} holds {float(scale[index, 0])} at [{index}]; a scale must be finite and positive"
        )
    return scale
