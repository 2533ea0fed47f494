"""What each operator of `ops` computes, written to be read: the truth that every kernel is held against.

A function has the name of its operator, and its arguments less the dtype of a floating-point result.

- Operators that encode: codes and scales are the operator's own, to the bit. Two roundings to float32 belong to the
  definition: that of the scale, and that of the quotient x / scale, which is then rounded to the nearest code.
- Operators that return floating point: the exact value, in float64. An operator sums in float32 and rounds; each
  function says what it rounds on the way.

An operator that fuses several (an activation or a norm that emits codes, a write to the KV cache) is their composition,
with the rounding to the input's dtype between them.

8-bit floats are encoded and decoded here by their definition (OCP 8-bit Floating Point Specification 1.0, 2023;
Micikevicius et al. 2022, arXiv:2209.05433), not by torch's casts.
"""

from __future__ import annotations

from policyquant.kernels.reference.activation import (
    gated_activation_group_fp8_quant,
    gated_activation_per_token_fp8_quant,
    gated_activation_static_fp8_quant,
    gelu_and_mul,
    gelu_and_mul_quant,
    silu_and_mul,
    silu_and_mul_quant,
)
from policyquant.kernels.reference.formats import (
    FP8_FORMATS,
    SMALLEST_SCALE,
    Fp8Format,
    decode,
    encode_fp8,
    quotient,
    scales,
)
from policyquant.kernels.reference.fused_moe import fused_moe
from policyquant.kernels.reference.group_quantize import block_fp8_quant, dequantize_blocks, group_fp8_quant
from policyquant.kernels.reference.grouped_mm import grouped_scaled_mm
from policyquant.kernels.reference.int4_quantize import asymmetric_int4_group_quant, int4_group_quant
from policyquant.kernels.reference.int4_weight_only_mm import int4_weight_only_mm
from policyquant.kernels.reference.int8_mm import scaled_int8_mm
from policyquant.kernels.reference.int8_quantize import (
    asymmetric_per_token_int8_quant,
    per_token_int8_quant,
    static_scaled_int8_quant,
)
from policyquant.kernels.reference.kv_cache import gather_cache_fp8, reshape_and_cache_fp8
from policyquant.kernels.reference.microscaling import (
    FP4_VALUES,
    decode_elements,
    mx_dequantize,
    mxfp4_quant,
    mxfp8_quant,
    nvfp4_dequantize,
    nvfp4_global_scale,
    nvfp4_quant,
    pack_fp4,
)
from policyquant.kernels.reference.microscaling_mm import mx_scaled_mm, mx_weight_only_mm, nvfp4_weight_only_mm
from policyquant.kernels.reference.norm import fused_add_rms_norm, fused_add_rms_norm_quant, rms_norm, rms_norm_quant
from policyquant.kernels.reference.quantize import (
    dequantize,
    dynamic_scaled_fp8_quant,
    per_channel_int8_quant,
    per_token_scaled_fp8_quant,
    scaled_fp8_quant,
    static_scaled_fp8_quant,
)
from policyquant.kernels.reference.routing import moe_align, topk_sigmoid, topk_softmax
from policyquant.kernels.reference.scaled_mm import block_scaled_mm, scaled_mm
from policyquant.kernels.reference.weight_only_mm import fp8_weight_only_mm, int8_weight_only_mm, weight_only_mm

__all__ = [
    "FP4_VALUES",
    "FP8_FORMATS",
    "SMALLEST_SCALE",
    "Fp8Format",
    "asymmetric_int4_group_quant",
    "asymmetric_per_token_int8_quant",
    "block_fp8_quant",
    "block_scaled_mm",
    "decode",
    "decode_elements",
    "dequantize",
    "dequantize_blocks",
    "dynamic_scaled_fp8_quant",
    "encode_fp8",
    "fp8_weight_only_mm",
    "fused_add_rms_norm",
    "fused_add_rms_norm_quant",
    "fused_moe",
    "gated_activation_group_fp8_quant",
    "gated_activation_per_token_fp8_quant",
    "gated_activation_static_fp8_quant",
    "gather_cache_fp8",
    "gelu_and_mul",
    "gelu_and_mul_quant",
    "group_fp8_quant",
    "grouped_scaled_mm",
    "int4_group_quant",
    "int4_weight_only_mm",
    "int8_weight_only_mm",
    "moe_align",
    "mx_dequantize",
    "mx_scaled_mm",
    "mx_weight_only_mm",
    "mxfp4_quant",
    "mxfp8_quant",
    "nvfp4_dequantize",
    "nvfp4_global_scale",
    "nvfp4_quant",
    "nvfp4_weight_only_mm",
    "pack_fp4",
    "per_channel_int8_quant",
    "per_token_int8_quant",
    "per_token_scaled_fp8_quant",
    "quotient",
    "reshape_and_cache_fp8",
    "rms_norm",
    "rms_norm_quant",
    "scaled_fp8_quant",
    "scaled_int8_mm",
    "scaled_mm",
    "scales",
    "silu_and_mul",
    "silu_and_mul_quant",
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
    "topk_sigmoid",
    "topk_softmax",
    "weight_only_mm",
]
