"""How a layer's weight is stored: its logical shape and its scheme, told from its tensors.

The tensors decide: their suffixes, dtypes and shapes. What `config.json` declares is asked only where they leave a
choice (bits of packed integers, the size of a block whose last one is ragged) or where the source tells no shapes.

| format | weight | beside it |
|---|---|---|
| FP8, INT8 | `weight` [out, in] | `weight_scale`, `weight_scale_inv` or `scale`: (), [out, 1], [out/128, in/128] |
| compressed-tensors, packed integers | `weight_packed` I32 [out, in·bits/32] | `weight_scale`, `weight_zero_point`, \
`weight_shape`, `weight_g_idx` |
| compressed-tensors, FP4 | `weight_packed` U8 [out, in/2] | `weight_scale`; NVFP4: `weight_global_scale` |
| ModelOpt NVFP4 | `weight` U8 [out, in/2] | `weight_scale` F8_E4M3 [out, in/16], `weight_scale_2` |
| MLX | `weight` U32 [out, in·bits/32] | `scales` and, if affine, `biases` [out, in/group] |
| gpt-oss MXFP4 | `*_blocks` U8 [experts, out, in/32, 16] | `*_scales` U8 [experts, out, in/32] |
| GPTQ | `qweight` I32 [in·bits/32, out] | `qzeros`, `scales` [in/group, out], `g_idx` |
| AWQ | `qweight` I32 [in, out·bits/32] | `qzeros`, `scales` [in/group, out] |
| bitsandbytes | `weight` U8 [out·in/2, 1], or I8 | `weight.absmax`, `weight.quant_map`, …; 8 bit: `SCB` |

What these formats store in place of a weight is counted as its weight; activation scales (`input_scale`, `k_scale`) are
neither weights nor parameters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod
from typing import Final, NamedTuple

from policyquant.inventory.config_file import declared_quantization
from policyquant.inventory.dtypes import FP8_DTYPES, stored_bytes
from policyquant.inventory.layers import StoredScheme, StoredSet, StoredTensor
from policyquant.inventory.packed_formats import bitsandbytes_4bit, compressed_tensors_packed, gptq_or_awq, mlx
from policyquant.inventory.scale_layout import scaled_weight

EXPERT_PARAMETERS: Final = frozenset(
    {"gate_up_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "v1", "w13_weight", "w2_weight"}
)
"""Parameters that are weights although they are not called `weight`: 3-D experts hold one for each projection."""

_SCALES: Final = (
    "_scale",
    "_scale_inv",
    "_scale_2",
    "_global_scale",
    "_zero_point",
    "_shape",
    "_g_idx",
    "_scales",
    "_weight_scale",
    "_weight_scale_2",
    "_weight_scale_inv",
)
"""What may follow a weight's name in the names of the tensors that complete it."""

_BESIDE_WEIGHT: Final = (
    "scale",
    "scales",
    "biases",
    "SCB",
    "weight_format",
    "qzeros",
    "g_idx",
    "pre_quant_scale",
)
"""Names that complete the tensor called `weight` or `qweight`, and no other, if that holds codes."""

_BITSANDBYTES: Final = ("weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map")
_QUANT_STATE: Final = "weight.quant_state."
_FLOATS: Final = frozenset({"F64", "F32", "F16", "BF16"})

_ACTIVATION_SCALES: Final = frozenset(
    {
        "input_scale",
        "input_global_scale",
        "input_zero_point",
        "output_scale",
        "activation_scale",
        "q_scale",
        "k_scale",
        "v_scale",
        "q_zero_point",
        "k_zero_point",
        "v_zero_point",
        "prob_scale",
    }
)
_ACTIVATION_ENDINGS: Final = ("_input_scale", "_input_global_scale")

_NEEDS_SCALE: Final = FP8_DTYPES | {"I8", "U8", "I32", "U32", "F4"}


class StoredWeight(NamedTuple):
    """One weight that a layer stores, in whatever form."""

    parameter: str
    """What its module calls it: `weight`, or `gate_up_proj` of 3-D experts."""
    tensor: StoredTensor
    """The tensor that holds its values."""
    scales: tuple[StoredTensor, ...]
    """What completes it: scales, zero points, group indices."""
    shape: tuple[int, ...] | None
    """Logical shape, unpacked; None if unknown."""
    elements: int | None
    """Logical elements; None if unknown. Known without the shape for bitsandbytes."""
    bytes: int | None
    """Stored bytes of the tensor and of what completes it; None if unknown."""
    scheme: StoredScheme | None
    """None if it is not stored quantized."""


class Recognised(NamedTuple):
    """A layer's tensors, sorted out."""

    weights: tuple[StoredWeight, ...]
    activation_scales: tuple[StoredTensor, ...]
    """Scales of inputs, outputs and KV caches."""
    rest: tuple[StoredTensor, ...]
    """Everything else: biases, other parameters, buffers."""


def recognise(
    stored: StoredSet, config: Mapping[str, object], weight_names: Collection[str] = EXPERT_PARAMETERS
) -> Recognised:
    """Sort out the tensors of a set of layers.

    Args:
        stored: The layers.
        config: Values of the model's `config.json`, or an empty mapping.
        weight_names: Parameters that are weights besides `weight`.
    """
    tensors = {tensor.suffix: tensor for tensor in stored.tensors}
    declared = declared_quantization(config)
    weights = []
    taken: set[str] = set()
    for parameter, suffix in _weights(tensors, weight_names):
        if suffix in taken:
            continue
        found: dict[str, StoredTensor] = {}
        for word, tensor in _completing(parameter, suffix, tensors):
            if tensor.suffix not in taken:
                # Two spellings of one word in one layer: the first is understood, the other still counted.
                found[tensor.suffix if word in found else word] = tensor
        taken.add(suffix)
        taken.update(tensor.suffix for tensor in found.values())
        weights.append(_weight(parameter, tensors[suffix], found, declared))
    others = [tensor for tensor in stored.tensors if tensor.suffix not in taken]
    activation_scales = tuple(tensor for tensor in others if is_activation_scale(tensor.suffix))
    rest = tuple(tensor for tensor in others if not is_activation_scale(tensor.suffix))
    return Recognised(tuple(weights), activation_scales, rest)


def lacks_scale(weight: StoredWeight) -> bool:
    """Whether a weight has a quantized dtype but nothing that says what its codes mean."""
    return weight.tensor.dtype in _NEEDS_SCALE and not any(
        "scale" in tensor.suffix or tensor.suffix in ("SCB", "weight.absmax") for tensor in weight.scales
    )


def is_activation_scale(suffix: str) -> bool:
    """Whether a tensor is the scale of an input, an output or a KV cache, by its suffix."""
    return suffix in _ACTIVATION_SCALES or suffix.endswith(_ACTIVATION_ENDINGS)


def _weights(tensors: Mapping[str, StoredTensor], weight_names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Parameter and suffix of each tensor that holds a weight."""
    for suffix in tensors:
        if suffix in ("weight", "qweight"):
            yield "weight", suffix
        elif suffix in weight_names:
            yield suffix, suffix
        elif suffix.endswith("_packed") or (suffix.endswith("_blocks") and f"{suffix[:-7]}_scales" in tensors):
            yield suffix.rpartition("_")[0], suffix
        elif f"{suffix}_scale" in tensors or f"{suffix}_scale_inv" in tensors:
            # `input_scale` beside a buffer called `input` would be one as well, but nothing stores that.
            yield suffix, suffix


def _completing(parameter: str, suffix: str, tensors: Mapping[str, StoredTensor]) -> Iterator[tuple[str, StoredTensor]]:
    """What completes a weight: by its name less that of the weight, or as it is."""
    for ending in _SCALES:
        tensor = tensors.get(parameter + ending)
        if tensor is not None:
            yield ending.removeprefix("_weight"), tensor
    if suffix not in ("weight", "qweight"):
        return
    dtype = tensors[suffix].dtype
    for name in _BESIDE_WEIGHT:
        # A plain layer may well have a parameter called `scale`.
        if name in tensors and dtype not in _FLOATS and not (name == "scale" and dtype is None):
            yield name, tensors[name]
    for name in _BITSANDBYTES:
        if name in tensors:
            yield name, tensors[name]
    for name, tensor in tensors.items():
        if name.startswith(_QUANT_STATE):
            yield "quant_state", tensor


def _weight(
    parameter: str, tensor: StoredTensor, found: Mapping[str, StoredTensor], declared: Mapping[str, object]
) -> StoredWeight:
    shape, scheme = _shape_and_scheme(tensor, found, declared)
    scales = tuple(found.values())
    sizes = [stored_bytes(each.dtype, each.shape) for each in (tensor, *scales)]
    elements = prod(shape) if shape is not None else None
    if shape is None and scheme is not None and scheme.method == "bitsandbytes" and sizes[0] is not None:
        elements = sizes[0] * 8 // scheme.bits
    total = None if None in sizes else sum(size for size in sizes if size is not None)
    return StoredWeight(parameter, tensor, scales, shape, elements, total, scheme)


def _shape_and_scheme(
    tensor: StoredTensor, found: Mapping[str, StoredTensor], declared: Mapping[str, object]
) -> tuple[tuple[int, ...] | None, StoredScheme | None]:
    if tensor.suffix == "qweight":
        return gptq_or_awq(tensor, found, declared)
    if tensor.suffix.endswith("_blocks"):
        shape = tensor.shape
        logical = (*shape[:-2], shape[-2] * 32) if shape is not None and len(shape) >= 3 else None
        return logical, StoredScheme("mxfp4", "MXFP4, group 32", 4)
    if tensor.suffix.endswith("_packed"):
        return compressed_tensors_packed(tensor, found, declared)
    if "weight.absmax" in found or "quant_state" in found:
        return bitsandbytes_4bit(found)
    if "SCB" in found:
        return tensor.shape, StoredScheme("bitsandbytes", "bitsandbytes INT8, per channel", 8)
    if "scales" in found and (tensor.dtype in ("U32", None)):
        return mlx(tensor, found, declared)
    scale = found.get("_scale_inv") or found.get("_scale") or found.get("scale")
    if scale is not None:
        return scaled_weight(tensor, scale, found, declared)
    if tensor.dtype in FP8_DTYPES:
        return tensor.shape, StoredScheme("fp8", f"{tensor.dtype}, no scale", 8)
    if tensor.dtype == "I8":
        return tensor.shape, StoredScheme("int8", "I8, no scale", 8)
    return tensor.shape, None
