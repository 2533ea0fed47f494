"""Weights stored as codes beside one kind of scale: which elements share a scale, and which scheme that makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from policyquant.inventory.declared import Declared
from policyquant.inventory.dtypes import FP8_DTYPES
from policyquant.inventory.layers import StoredScheme, StoredTensor

_BLOCKS: Final = (128, 64, 256, 32, 16, 512)
"""Block sizes to try where nothing declares one, the usual ones first: of a ragged last block only the count shows."""

_DEEPSEEK_BLOCK: Final = (128, 128)

_POWER_OF_TWO: Final = ("F8_E8M0", "U8")
"""Dtypes in which a scale is an exponent."""

Shape = tuple[int, ...]


class ScaleLayout(NamedTuple):
    """What one scale covers. `size` is of a group (in, ) or of a block (out, in)."""

    granularity: Literal["tensor", "channel", "group", "block", "unknown"]
    size: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.granularity == "unknown":
            return "scale layout unknown"
        if self.size:
            return f"{self.granularity} {'x'.join(map(str, self.size))}"
        return f"per {self.granularity}"


def scale_layout(weight: Shape, scale: Shape, block: tuple[int, int] | None) -> ScaleLayout:
    """What one scale covers, from the shapes.

    Args:
        weight: [..., out, in], logical; leading dimensions (experts) have scales of their own.
        scale: Shape of the scales.
        block: The block size that the model's config declares.
    """
    if len(weight) < 2:
        return ScaleLayout("tensor" if all(size == 1 for size in scale) else "unknown")
    *leading, rows, columns = weight
    within = scale[len(leading) :] if list(scale[: len(leading)]) == leading else scale
    if len(within) == 2 and block is not None and _counts(rows, columns, block) == within:
        return ScaleLayout("block", block)
    if all(size == 1 for size in within):
        return ScaleLayout("tensor")
    if within in ((rows,), (rows, 1)):
        return ScaleLayout("channel")
    if len(within) != 2 or 0 in within:
        return ScaleLayout("unknown")
    if within[0] == rows and columns % within[1] == 0:
        return ScaleLayout("group", (columns // within[1],))
    for size in _BLOCKS:
        if _counts(rows, columns, (size, size)) == within:
            return ScaleLayout("block", (size, size))
    for height in _BLOCKS:
        for width in _BLOCKS:
            if _counts(rows, columns, (height, width)) == within:
                return ScaleLayout("block", (height, width))
    return ScaleLayout("unknown")


def _counts(rows: int, columns: int, block: tuple[int, int]) -> tuple[int, int]:
    return -(-rows // block[0]), -(-columns // block[1])


def scaled_weight(
    tensor: StoredTensor, scale: StoredTensor, found: Mapping[str, StoredTensor], config: Mapping[str, object]
) -> tuple[Shape | None, StoredScheme | None]:
    """Logical shape and scheme of a weight with a scale beside it.

    Args:
        tensor: The codes.
        scale: `weight_scale`, `weight_scale_inv` or `scale`.
        found: Everything that completes the weight, by name less the weight's.
        config: What the model's config declares about quantization.
    """
    declared = Declared(config)
    if tensor.dtype is None:
        return None, _by_name(scale, found, declared)
    shape, codes = _unpacked(tensor, scale)
    if codes is None:
        return shape, None
    if shape is None or scale.shape is None:
        layout = ScaleLayout("unknown")
    else:
        # What is called `_scale_inv` is DeepSeek's, whose blocks are of this size.
        usual = _DEEPSEEK_BLOCK if scale.suffix.endswith("_scale_inv") else None
        layout = scale_layout(shape, scale.shape, declared.block or usual)
    return shape, _scheme(codes, layout, scale.dtype, declared)


def _unpacked(tensor: StoredTensor, scale: StoredTensor) -> tuple[Shape | None, str | None]:
    """Logical shape, and what the codes are: a dtype, `fp4` or `int4`; None if they are no codes."""
    shape, dtype = tensor.shape, tensor.dtype
    if dtype in FP8_DTYPES:
        return shape, dtype
    if dtype == "F4":
        return shape, "fp4"
    if dtype == "I8" and scale.dtype != "F8_E8M0":
        return shape, "I8"
    if dtype in ("U8", "I8"):
        if not shape or len(shape) < 2:
            return None, "fp4"
        if scale.dtype in ("F8_E4M3", *_POWER_OF_TWO):
            return (*shape[:-1], shape[-1] * 2), "fp4"
        if scale.shape and len(scale.shape) >= 2 and scale.shape[-2] == 2 * shape[-2]:
            return (*shape[:-2], shape[-2] * 2, shape[-1]), "int4"  # ModelOpt packs along the output.
        return shape, "I8"
    return shape, None


def _scheme(codes: str, layout: ScaleLayout, scale_dtype: str | None, declared: Declared) -> StoredScheme:
    if codes == "fp4":
        if scale_dtype in _POWER_OF_TWO:
            return StoredScheme("mxfp4", f"MXFP4, {layout}", 4)
        return StoredScheme("nvfp4", f"NVFP4, {layout}", 4)
    if codes == "int4":
        return StoredScheme("int4_weight_only", f"INT4, {layout}", 4)
    if codes == "I8":
        return StoredScheme("int8_weight_only" if declared.weight_only else "int8", f"I8, {layout}", 8)
    if layout.granularity == "block":
        return StoredScheme("fp8_block", f"{codes}, {layout}", 8)
    if layout.granularity == "group":
        mx = layout.size == (32,) and scale_dtype in _POWER_OF_TWO
        return StoredScheme("mxfp8", "MXFP8, group 32", 8) if mx else StoredScheme("fp8_group", f"{codes}, {layout}", 8)
    return StoredScheme("fp8_weight_only" if declared.weight_only else "fp8", f"{codes}, {layout}", 8)


def _by_name(scale: StoredTensor, found: Mapping[str, StoredTensor], declared: Declared) -> StoredScheme:
    """The scheme where a source tells names only."""
    if "_scale_2" in found or "_global_scale" in found:
        return StoredScheme("nvfp4", "NVFP4, by its names", 4)
    if scale.suffix.endswith("_scale_inv"):
        return StoredScheme("fp8_block", "FP8, block, by its names", 8)
    return declared.scheme() or StoredScheme("unknown", "quantized, by its names", 0)
