"""Every layer under every form of every method, loaded with weights that are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from policyquant.checkpoint.tensors import LazyTensor, MemoryTensor, Slot
from policyquant.layers.base import WeightLayer
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.layers.linear import Linear, MergedColumnParallelLinear, QKVParallelLinear
from policyquant.layers.moe import ExpertsLinear
from policyquant.methods.pieces import entry, pieces
from policyquant.methods.registry import method_for
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Scheme

K = 33
"""Input features: no multiple of anything."""

COUNTS = [2, 0, 3]
"""Rows of each of three experts."""

LAYERS: Mapping[str, Callable[[torch.dtype], WeightLayer]] = {
    "linear": lambda dtype: Linear(K, 7, dtype=dtype),
    "qkv": lambda dtype: QKVParallelLinear(K, 4, 3, 1, bias=True, dtype=dtype),
    "merged": lambda dtype: MergedColumnParallelLinear(K, {"gate_proj": 5, "up_proj": 5}, bias=False, dtype=dtype),
    "head": lambda dtype: ParallelLMHead(11, K, dtype=dtype),
    "experts": lambda dtype: ExpertsLinear(3, K, {"gate_proj": 5, "up_proj": 5}, dtype=dtype),
    "experts with bias": lambda dtype: ExpertsLinear(3, K, {"down_proj": 6}, bias=True, dtype=dtype),
    "embedding": lambda dtype: VocabParallelEmbedding(11, K, dtype=dtype),
}
PRODUCTS = [name for name in LAYERS if name != "embedding"]
MERGED = ["qkv", "merged", "experts"]

STATIC: Mapping[str, Any] = {"scheme": "static", "granularity": "tensor"}
E5M2: Mapping[str, Any] = {"dtype": "float8_e5m2"}
FORMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "none": ("none", {}),
    "int8_weight_only": ("int8_weight_only", {}),
    "int8_weight_only per tensor": ("int8_weight_only", {"weight": {"granularity": "tensor"}}),
    "fp8": ("fp8", {}),
    "fp8 per tensor": ("fp8", {"weight": {"granularity": "tensor"}, "input": {"granularity": "tensor"}}),
    "fp8 e5m2": ("fp8", {"weight": E5M2, "input": E5M2}),
    "fp8 scale_ub": ("fp8", {"input": {"scale_ub": 0.003}}),
    "fp8 per tensor scale_ub": ("fp8", {"input": {"granularity": "tensor", "scale_ub": 0.003}}),
    "fp8 static from the policy": ("fp8", {"input": {**STATIC, "scale": 0.01}}),
    "fp8 static from the checkpoint": ("fp8", {"input": STATIC}),
}
QUANTIZED = [form for form in FORMS if form != "none"]
W8A8 = [form for form in FORMS if form.startswith("fp8")]
TAKEN = [
    (form, kind)
    for form, (method, _) in FORMS.items()
    for kind in LAYERS
    if kind != "embedding" or "embedding" in METHODS[method].kinds
]
"""Forms with the layers that they take."""


def scheme_of(form: str) -> Scheme:
    name, fields = FORMS[form]
    spec = METHODS[name]
    return Scheme(name, *spec.refine(spec.weight, spec.input, fields.get("weight"), fields.get("input")))


def stored_tensors(layer: WeightLayer, form: str) -> dict[Slot, torch.Tensor]:
    """Weights of which each part, and each expert's, is larger than the one before; biases; static input scales."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for number, (expert, part, rows) in enumerate(pieces(layer)):
        shape = rows.stop - rows.start, layer.in_features
        values = torch.randn(shape, generator=generator) * 3.0**number
        found[Slot("weight", part, expert)] = values.to(layer.params_dtype)
        if layer.has_bias:
            found[Slot("bias", part, expert)] = torch.randn(shape[0], generator=generator).to(layer.params_dtype)
        if form == "fp8 static from the checkpoint":
            found[Slot("input_scale", part, expert)] = torch.tensor(0.004 * (number + 1))
    return found


def load(layer: WeightLayer, form: str, stored: Mapping[Slot, torch.Tensor]) -> WeightLayer:
    """`layer` under `form`, loaded."""
    method = method_for(scheme_of(form))
    slots: dict[Slot, LazyTensor] = {slot: MemoryTensor(str(slot), tensor) for slot, tensor in stored.items()}
    assert list(method.check(layer, slots)) == []
    layer.take_method(method, torch.device("cpu"))
    method.load(layer, slots)
    method.process_weights_after_loading(layer)
    return layer


def loaded(kind: str, form: str, dtype: torch.dtype = torch.float32) -> WeightLayer:
    """A layer of this kind under this form, with the weights of `stored_tensors`."""
    layer = LAYERS[kind](dtype)
    return load(layer, form, stored_tensors(layer, form))


def unquantized_weight(layer: WeightLayer, stored: Mapping[Slot, torch.Tensor]) -> torch.Tensor:
    """The weight as it was stored, of all parts and experts, in float64."""
    whole = torch.empty(layer.weight_shape, dtype=torch.float64)
    for expert, part, rows in pieces(layer):
        entry(whole, expert)[rows] = stored[Slot("weight", part, expert)].double()
    return whole


def some_input(layer: WeightLayer) -> torch.Tensor:
    """x [5, K]: rows of different size, one of them zeros, in the layer's dtype."""
    x = torch.randn(5, layer.in_features, generator=torch.Generator().manual_seed(1))
    return (x * torch.tensor([0.01, 1.0, 0.0, 30.0, 1.0])[:, None]).to(layer.params_dtype)


def apply(layer: WeightLayer, x: Any) -> torch.Tensor:
    """What the layer's method computes; experts have `COUNTS` rows each."""
    with torch.no_grad():
        if layer.num_experts is None:
            return layer.quant_method.apply(layer, x)
        return layer.quant_method.apply_experts(layer, x, COUNTS)


def counts_of(layer: WeightLayer) -> list[int] | None:
    return None if layer.num_experts is None else COUNTS


def by_expert(layer: WeightLayer, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x @ weight.T, with each expert's own weight."""
    if layer.num_experts is None:
        return x @ weight.T
    return torch.cat([rows @ weight[expert].T for expert, rows in enumerate(x.split(COUNTS))])


def bias_by_row(layer: WeightLayer) -> torch.Tensor:
    """The bias that each row of the result has, [N] or [T, N], float64."""
    bias = layer._parameters.get("bias")
    if bias is None:
        return torch.zeros(1, dtype=torch.float64)
    wide = bias.detach().double()
    return wide if layer.num_experts is None else wide.repeat_interleave(torch.tensor(COUNTS), dim=0)
