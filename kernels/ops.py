"""The operators, `torch.ops.policyquant.*`, and a Python function for each.

Every operator has an `.out` overload that writes its result into `out` (and `out_scale`, `out_residual`) and returns
nothing. Scales are float32; x ≈ q · scale; weights are [N, K] as stored. Inputs may have any strides and alignment;
results are contiguous. A NaN activation encodes as NaN and ±inf saturates; scales come from the finite elements and are
at least 2**-126. In integers, which have no NaN, it has the code of zero; a scale per token of int8 is NaN beside it.
`reference` has a definition of each operator under the same name.
Weights must hold no NaN: their codes are decoded without looking for it. `reshape_and_cache_fp8` writes into its
arguments and has no `.out`.

| operator | scales |
|---|---|
| static_scaled_int8_quant | [1] |
| static_scaled_fp8_quant | [1], or anything that broadcasts against x |
| dynamic_scaled_fp8_quant | result [1] |
| per_token_scaled_fp8_quant, per_channel_int8_quant, per_token_int8_quant | result [..., 1], over the last dimension |
| asymmetric_per_token_int8_quant | result [..., 1], and zero points int32 of that shape |
| group_fp8_quant | result [..., ceil(K / group)]; column-major: strides (1, round_up(M, 4)) |
| block_fp8_quant, dequantize_blocks | [..., ceil(N / block[0]), ceil(K / block[1])] |
| dequantize | broadcast against q |
| mxfp8_quant, mxfp4_quant, mx_dequantize | [..., ceil(K / 32)] float8_e8m0fnu |
| mx_weight_only_mm, mx_scaled_mm | [N, ceil(K / 32)]; activations [M, ceil(K / 32)] |
| nvfp4_quant, nvfp4_dequantize, nvfp4_weight_only_mm | [..., ceil(K / 16)] float8_e4m3fn, and one [1] float32 for all |
| scaled_mm, scaled_int8_mm | scale_a [1] or [M, 1]; scale_b [1] or [N, 1] |
| block_scaled_mm | scale_a [M, ⌈K / 128⌉]; scale_b [⌈N / 128⌉, ⌈K / 128⌉] |
| fp8_weight_only_mm | [1], [N, 1], or one for each block of 128 × 128: [ceil(N / 128), ceil(K / 128)] |
| int8_weight_only_mm | [1] or [N, 1] |
| int4_group_quant | result [..., ceil(K / group)], float32 or bfloat16 |
| asymmetric_int4_group_quant | the same, and zero points uint8 of that shape |
| int4_weight_only_mm | [N, ceil(K / group)], zero points too |
| reshape_and_cache_fp8, gather_cache_fp8 | [1] or [heads] |
"""

from __future__ import annotations

from policyquant.kernels import dispatch
from policyquant.kernels.operators.activation import (
    gated_activation_group_fp8_quant,
    gated_activation_per_token_fp8_quant,
    gated_activation_static_fp8_quant,
    gelu_and_mul,
    gelu_and_mul_quant,
    silu_and_mul,
    silu_and_mul_quant,
)
from policyquant.kernels.operators.fused_moe import fused_moe
from policyquant.kernels.operators.group_quantize import block_fp8_quant, dequantize_blocks, group_fp8_quant
from policyquant.kernels.operators.grouped_mm import grouped_scaled_mm
from policyquant.kernels.operators.int4_quantize import asymmetric_int4_group_quant, int4_group_quant
from policyquant.kernels.operators.int4_weight_only_mm import int4_weight_only_mm
from policyquant.kernels.operators.int8_mm import scaled_int8_mm
from policyquant.kernels.operators.int8_quantize import (
    asymmetric_per_token_int8_quant,
    per_token_int8_quant,
    static_scaled_int8_quant,
)
from policyquant.kernels.operators.kv_cache import gather_cache_fp8, reshape_and_cache_fp8
from policyquant.kernels.operators.microscaling import (
    mx_dequantize,
    mxfp4_quant,
    mxfp8_quant,
    nvfp4_dequantize,
    nvfp4_global_scale,
    nvfp4_quant,
)
from policyquant.kernels.operators.microscaling_mm import mx_scaled_mm, mx_weight_only_mm, nvfp4_weight_only_mm
from policyquant.kernels.operators.norm import fused_add_rms_norm, fused_add_rms_norm_quant, rms_norm, rms_norm_quant
from policyquant.kernels.operators.quantize import (
    dequantize,
    dynamic_scaled_fp8_quant,
    per_channel_int8_quant,
    per_token_scaled_fp8_quant,
    scaled_fp8_quant,
    static_scaled_fp8_quant,
)
from policyquant.kernels.operators.routing import moe_align, topk_sigmoid, topk_softmax
from policyquant.kernels.operators.scaled_mm import block_scaled_mm, scaled_mm
from policyquant.kernels.operators.weight_only_mm import fp8_weight_only_mm, int8_weight_only_mm, weight_only_mm

__all__ = [
    "asymmetric_int4_group_quant",
    "asymmetric_per_token_int8_quant",
    "block_fp8_quant",
    "block_scaled_mm",
    "dequantize",
    "dequantize_blocks",
    "dynamic_scaled_fp8_quant",
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
    "per_channel_int8_quant",
    "per_token_int8_quant",
    "per_token_scaled_fp8_quant",
    "reshape_and_cache_fp8",
    "rms_norm",
    "rms_norm_quant",
    "scaled_fp8_quant",
    "scaled_int8_mm",
    "scaled_mm",
    "silu_and_mul",
    "silu_and_mul_quant",
    "static_scaled_fp8_quant",
    "static_scaled_int8_quant",
    "topk_sigmoid",
    "topk_softmax",
    "weight_only_mm",
]

dispatch.force_as_environment_says()
