"""Weights whose integers are packed into larger ones: logical shapes and bits from the shapes of what lies beside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policyquant.inventory.declared import Declared
from policyquant.inventory.layers import StoredScheme, StoredTensor

Shape = tuple[int, ...]
Result = tuple[Shape | None, StoredScheme]

_MLX_BITS: Final = (2, 3, 4, 5, 6, 8)
_MLX_GROUPS: Final = (64, 32, 128)
"""Group sizes that MLX takes, its default first."""
_INTEGER_BITS: Final = range(2, 9)


def compressed_tensors_packed(
    tensor: StoredTensor, found: Mapping[str, StoredTensor], config: Mapping[str, object]
) -> Result:
    """`weight_packed`: FP4 two to a byte (U8), or integers in I32, the last of a row padded."""
    declared = Declared(config)
    scale = found.get("_scale")
    shape = tensor.shape
    if tensor.dtype == "U8" or (tensor.dtype is None and "_global_scale" in found):
        logical = (*shape[:-1], shape[-1] * 2) if shape else None
        if "_global_scale" in found or (scale is not None and scale.dtype == "F8_E4M3"):
            return logical, StoredScheme("nvfp4", "NVFP4, group 16", 4)
        return logical, StoredScheme("mxfp4", "MXFP4, group 32", 4)
    choices = [(bits, group) for bits, group in declared.bits_and_groups() if bits in _INTEGER_BITS]
    if shape and scale is not None and scale.shape is not None and len(shape) == len(scale.shape):
        fitting = [
            (bits, group, columns)
            for bits, group in choices
            if (columns := _columns(shape[-1], scale.shape[-1], bits, group)) is not None
        ]
        if fitting and len({columns for *_, columns in fitting}) == 1:
            bits, group, columns = fitting[0]
            return (*shape[:-1], columns), _integers(bits, group)
    bits = choices[0][0] if choices and len({bits for bits, _ in choices}) == 1 else 4
    return None, _integers(bits, None if not choices else choices[0][1])


def _columns(packed: int, scales: int, bits: int, group: int | None) -> int | None:
    """Logical columns of a row of `packed` I32 with `scales` scales, or None if they do not go together."""
    per_word = 32 // bits
    if group is None:
        return packed * per_word if scales == 1 else None
    columns = min(scales * group, packed * per_word)
    fits = (packed - 1) * per_word < columns and (scales - 1) * group < columns
    return columns if fits else None


def _integers(bits: int, group: int | None) -> StoredScheme:
    method = {4: "int4_weight_only", 8: "int8_weight_only"}.get(bits, f"int{bits}")
    return StoredScheme(method, f"INT{bits}, " + (f"group {group}" if group else "per channel"), bits)


def mlx(tensor: StoredTensor, found: Mapping[str, StoredTensor], config: Mapping[str, object]) -> Result:
    """MLX's `weight` U32 [..., out, in·bits/32] with `scales` [..., out, in/group].

    The shapes give the product of bits and group size; the config's default or one of its overrides tells them apart.
    """
    shape, scales = tensor.shape, found["scales"]
    affine = "biases" in found
    declared = Declared(config).bits_and_groups()
    if not shape or not scales.shape or len(scales.shape) != len(shape) or not shape[-1] or not scales.shape[-1]:
        bits, group = declared[0] if declared else (4, 64)
        return None, _mlx_scheme(affine, bits, group)
    product, left = divmod(32 * shape[-1], scales.shape[-1])
    if left:
        return None, _mlx_scheme(affine, 4, None)
    if not affine and scales.dtype == "U8":
        # Floating formats fix both: mxfp4 4 x 32, nvfp4 4 x 16, mxfp8 8 x 32.
        bits, method = {128: (4, "mxfp4"), 64: (4, "nvfp4"), 256: (8, "mxfp8")}.get(product, (0, ""))
        if method:
            return (*shape[:-1], 32 * shape[-1] // bits), StoredScheme(
                method, f"{method.upper()}, group {product // bits}", bits
            )
    for bits, group in _mlx_choices(declared):
        if group is not None and bits * group == product and bits in _MLX_BITS:
            return (*shape[:-1], 32 * shape[-1] // bits), _mlx_scheme(affine, bits, group)
    return None, _mlx_scheme(affine, 4, None)


def _mlx_choices(declared: list[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    """As declared; then other bits with a declared group size (an override that does not name its layer as the tensor
    is named); then whatever MLX takes."""
    groups = [group for _, group in declared]
    others = [(bits, group) for group in (*groups, *_MLX_GROUPS) for bits in _MLX_BITS]
    return [*declared, *others]


def _mlx_scheme(affine: bool, bits: int, group: int | None) -> StoredScheme:
    method = "mlx_affine" if affine else "mlx"
    size = f", group {group}" if group else ""
    return StoredScheme(method, f"MLX {'affine ' if affine else ''}{bits} bit{size}", bits)


def gptq_or_awq(tensor: StoredTensor, found: Mapping[str, StoredTensor], config: Mapping[str, object]) -> Result:
    """`qweight`: GPTQ packs along the input [in·bits/32, out], AWQ along the output [in, out·bits/32]."""
    declared = Declared(config)
    choices = declared.bits_and_groups()
    bits, group = choices[0] if choices else (4, 128)
    packed, scales = tensor.shape, found["scales"].shape if "scales" in found else None
    if not packed or not scales or len(packed) != 2 or len(scales) != 2 or 0 in (*packed, *scales):
        awq = declared.method == "awq" or (declared.method != "gptq" and "g_idx" not in found)
        method = "awq" if awq else "gptq"
        return None, StoredScheme(method, f"{method.upper()} {bits} bit", bits)
    outputs = scales[1]
    if packed[1] == outputs:
        method = "gptq"
        zeros = found["qzeros"].shape if "qzeros" in found else None
        if zeros and len(zeros) == 2 and 32 * zeros[1] % outputs == 0 and 32 * zeros[1] // outputs in _INTEGER_BITS:
            bits = 32 * zeros[1] // outputs
        inputs = packed[0] * 32 // bits
    else:
        method = "awq"
        if 32 * packed[1] % outputs or 32 * packed[1] // outputs not in _INTEGER_BITS:
            return None, StoredScheme("awq", f"AWQ {bits} bit", bits)
        bits = 32 * packed[1] // outputs
        inputs = packed[0]
    group = inputs // scales[0] if inputs % scales[0] == 0 else group
    return (outputs, inputs), StoredScheme(method, f"{method.upper()} {bits} bit, group {group}", bits)


def bitsandbytes_4bit(found: Mapping[str, StoredTensor]) -> Result:
    """bitsandbytes' 4-bit weights: a column of bytes; the logical shape is inside `quant_state`, which is data."""
    state = found.get("quant_state")
    word = state.suffix.rpartition("__")[2].upper() if state is not None and "__" in state.suffix else "4 bit"
    return None, StoredScheme("bitsandbytes", f"bitsandbytes {word}", 4)
