"""Layers that are stored quantized and that a plan leaves as they are: which of our methods runs them so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from policyquant.inventory.layers import LayerSet
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Quantization, Scheme

_CODES: Final = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""dtype of codes that method `fp8` reads, as safetensors spells it → as plans do."""


def runnable_as_stored(layers: Sequence[LayerSet], scheme: Scheme) -> Scheme | None:
    """The scheme under which layers that are stored quantized run with the codes and scales that they have.

    FP8 with one scale for each output channel or for the whole tensor is what method `fp8` stores. Inputs are quantized
    with the stored `input_scale`, or else for each token as they come.

    Args:
        layers: What one module holds (q, k and v), as stored.
        scheme: Of the plan, whose method is `none`.

    Returns:
        None if no method of ours reads what is stored, or if the layers are stored in different ways.
    """
    found = {_fp8(layer) for layer in layers}
    forms = [each for each in found if each is not None]
    if len(forms) < len(found) or len({(weight.dtype, input) for weight, input in forms}) != 1:
        return None
    # A scale for the whole tensor is a scale for each of its channels.
    weight, input = min(forms, key=lambda form: form[0].granularity)
    return replace(scheme, method="fp8", weight=weight, input=input)


def _fp8(layer: LayerSet) -> tuple[Quantization, Quantization] | None:
    """Weight and input of method `fp8`, if that is how the layer is stored."""
    spec = METHODS["fp8"]
    stored, dtype = layer.stored, _CODES.get(layer.dtype or "")
    if stored is None or stored.method != spec.name or dtype is None or layer.kind not in spec.kinds:
        return None
    assert spec.weight is not None
    assert spec.input is not None
    if stored.description.endswith("per channel"):
        weight = replace(spec.weight, dtype=dtype, granularity="channel")
    elif stored.description.endswith("per tensor"):
        weight = replace(spec.weight, dtype=dtype, granularity="tensor")
    else:
        return None
    if any(tensor.suffix.endswith("input_scale") for tensor in layer.tensors):
        return weight, replace(spec.input, dtype=dtype, granularity="tensor", scheme="static")
    return weight, replace(spec.input, dtype=dtype)
