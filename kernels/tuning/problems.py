"""What is measured for a class of shapes: calls in the words of `calls`, of layers as models have them.

Sizes are those of 7B models (hidden 4096, intermediate 14336, 8 key heads of 128), of Mixtral's experts (8, of which 2)
and, for scales of blocks, of DeepSeek-V3's experts as one of eight GPUs has them (32, of which 8). Tiny calls of the
same classes rehearse all of it in Triton's interpreter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

_ELEMENTS: Final = 2**25
"""Of a large call of a kernel that waits for memory: 64 MiB of BF16, more than the L2 cache holds."""

Calls = Callable[["re.Match[str]", bool], "list[str]"]
"""(the match of the class of shapes, tiny) → calls."""


def problems(family: str, shape_class: str, *, tiny: bool = False) -> list[str]:
    """The calls that stand for a class of shapes; none: the class is not measured."""
    for pattern, calls in _PROBLEMS.get(family, ()):
        found = re.fullmatch(pattern, shape_class)
        if found is not None:
            return calls(found, tiny)
    return []


def implementation(shape_class: str) -> str:
    """The name of the implementation that takes configurations of this class."""
    return "triton_fast_accum" if shape_class.endswith("fast accumulation") else "triton"


_PRODUCT_ROWS: Final[Mapping[str, Sequence[int]]] = {
    "16": (1, 16),
    "32": (32,),
    "64": (64,),
    "128": (128,),
    "many": (2048, 8192),
}
_LAYERS: Final = ((6144, 4096), (28672, 4096), (4096, 14336))
"""N and K of a 7B model: keys, values and queries; gate and up; down."""


def _products(operator: str) -> Calls:
    def calls(found: re.Match[str], tiny: bool) -> list[str]:
        rows = _PRODUCT_ROWS[found["rows"]]
        scales = " block" if found["kind"] == ", blocks" else ""
        if tiny:
            return [f"{operator} m={130 if found['rows'] == 'many' else rows[-1]} n=64 k=128{scales}"]
        return [f"{operator} m={m} n={n} k={k}{scales}" for m in rows for n, k in _LAYERS]

    return calls


def _sum_of_parts(operator: str) -> Calls:
    """K is split where N is small beside it."""
    large = [f"{operator} m={m} n={n} k=14336" for m in (1, 16) for n in (1024, 4096)]
    return _given(*large, tiny=f"{operator} m=2 n=64 k=1024")


def _experts(operator: str, swapped: bool) -> Calls:
    def calls(found: re.Match[str], tiny: bool) -> list[str]:
        blocks = found["kind"] == ", blocks"
        each = _PRODUCT_ROWS[found["rows"]][0] if found["rows"] != "many" else 512
        experts, top_k, n, k = (32, 8, 2048, 7168) if blocks else (8, 2, 14336, 4096)
        if tiny:
            experts, top_k, n, k, each = 2, 1, 64, 128, 130 if found["rows"] == "many" else each
        m = each * experts
        if operator == "fused_moe":
            m = max(1, m // top_k)
        scales = " block" if blocks else ""
        told = f"experts={experts} top_k={top_k}{scales}"
        made = [f"{operator} m={m} n={n} k={k} {told}"]
        if swapped and not tiny:
            made.append(f"{operator} m={m} n={k} k={n} {told}")
        return made

    return calls


def _unaligned_experts(operator: str) -> Calls:
    def calls(found: re.Match[str], tiny: bool) -> list[str]:
        size = "m=4 n=64 k=130 experts=2 top_k=1" if tiny else "m=512 n=4096 k=4096 experts=8 top_k=2"
        return [f"{operator} {size}{' block' if found[1] else ''} unaligned"]

    return calls


def _weight_only(operator: str) -> Calls:
    def calls(found: re.Match[str], tiny: bool) -> list[str]:
        rows = {"few": (1, 16), "some": (64,), "many": (256, 2048)}[found["rows"]]
        dtype = " fp32" if found["dtype"] else ""
        if tiny:
            return [f"{operator} m={65 if found['rows'] == 'many' else rows[-1]} n=64 k=128{dtype}"]
        return [f"{operator} m={m} n={n} k={k}{dtype}" for m in rows for n, k in _LAYERS]

    return calls


def _wide(*operators: str, size: str = "k", most: int = 14336) -> Calls:
    """Rows as wide as the class says, up to that of a 7B model, decoding and prefill."""

    def calls(found: re.Match[str], tiny: bool) -> list[str]:
        width = min(int(found["width"]), most)
        rows = (2,) if tiny else (16, max(1, _ELEMENTS // width))
        return [f"{operator} m={m} {size}={width}" for operator in operators for m in rows]

    return calls


def _given(*large: str, tiny: str) -> Calls:
    return lambda _, is_tiny: [tiny] if is_tiny else list(large)


def _groups_of_activations(found: re.Match[str], tiny: bool) -> list[str]:
    major = " column_major" if found["major"] == "column" else ""
    sizes = ["m=2 n=256"] if tiny else ["m=16 n=14336", "m=4096 n=14336"]
    return [f"gated_activation_group_fp8_quant {size} group={found['group']}{major}" for size in sizes]


_ROWS_AND_KIND: Final = "(?P<rows>16|32|64|128|many) rows(?P<kind>, blocks|, fast accumulation)?"
_WIDTH: Final = r"(?P<width>\d+)"
_FEW_TO_MANY: Final = "(?P<rows>few|some|many) rows(?P<dtype> float32)?"

_PROBLEMS: Final[Mapping[str, Sequence[tuple[str, Calls]]]] = {
    "scaled_mm": ((_ROWS_AND_KIND, _products("scaled_mm")), ("sum of parts", _sum_of_parts("scaled_mm"))),
    "grouped_mm": (
        (_ROWS_AND_KIND, _experts("grouped_scaled_mm", swapped=True)),
        ("unaligned(, blocks)?", _unaligned_experts("grouped_scaled_mm")),
    ),
    "fused_moe": (
        (_ROWS_AND_KIND, _experts("fused_moe", swapped=False)),
        ("unaligned(, blocks)?", _unaligned_experts("fused_moe")),
    ),
    "int8_mm": (
        (_ROWS_AND_KIND, _products("scaled_int8_mm")),
        ("sum of parts", _sum_of_parts("scaled_int8_mm")),
        (
            "unaligned",
            _given("scaled_int8_mm m=16 n=4096 k=4096 unaligned", tiny="scaled_int8_mm m=3 n=64 k=130 unaligned"),
        ),
    ),
    "weight_only_mm": ((_FEW_TO_MANY, _weight_only("fp8_weight_only_mm")),),
    "int4_weight_only_mm": ((_FEW_TO_MANY, _weight_only("int4_weight_only_mm")),),
    "int4_quantize": (
        (
            r"groups of (?P<group>\d+)",
            lambda found, tiny: [
                f"int4_group_quant {'n=3 k=256' if tiny else 'n=14336 k=4096'} group={found['group']}"
            ],
        ),
    ),
    "int8_quantize": ((f"row {_WIDTH}", _wide("per_token_int8_quant")),),
    "quantize": (
        (
            "wide tile",
            _given(
                "static_scaled_fp8_quant m=16 k=4096",
                "static_scaled_fp8_quant m=8192 k=4096",
                "dynamic_scaled_fp8_quant m=8192 k=4096",
                tiny="static_scaled_fp8_quant m=2 k=2048",
            ),
        ),
        ("tile", _given("dequantize m=32768 k=1024 channel", tiny="dequantize m=3 k=130 channel")),
        (f"row {_WIDTH}", _wide("per_token_scaled_fp8_quant")),
        (
            "in steps",
            _given(
                "per_token_scaled_fp8_quant m=16 k=28672",
                "per_token_scaled_fp8_quant m=1024 k=28672",
                tiny="per_token_scaled_fp8_quant m=1 k=16400",
            ),
        ),
    ),
    "group_quantize": (
        (
            "many rows",
            _given(
                "group_fp8_quant m=16 k=4096",
                "group_fp8_quant m=8192 k=4096",
                "group_fp8_quant m=8192 k=4096 column_major",
                tiny="group_fp8_quant m=5 k=256",
            ),
        ),
        (
            "few rows",
            _given("group_fp8_quant m=1 k=4096", "group_fp8_quant m=4 k=14336", tiny="group_fp8_quant m=1 k=256"),
        ),
        ("block", _given("block_fp8_quant n=14336 k=4096", tiny="block_fp8_quant n=128 k=130")),
    ),
    "activation": (
        (
            "tile 2048",
            _given(
                "gated_activation_static_fp8_quant m=16 n=14336",
                "gated_activation_static_fp8_quant m=4096 n=14336",
                "silu_and_mul m=4096 n=14336",
                tiny="gated_activation_static_fp8_quant m=2 n=1030",
            ),
        ),
        (f"tile {_WIDTH}", _wide("gated_activation_static_fp8_quant", size="n")),
        (f"per token {_WIDTH}", _wide("gated_activation_per_token_fp8_quant", size="n")),
        (
            "per token, in steps",
            _given(
                "gated_activation_per_token_fp8_quant m=16 n=28672",
                "gated_activation_per_token_fp8_quant m=1024 n=28672",
                tiny="gated_activation_per_token_fp8_quant m=1 n=16400",
            ),
        ),
        (r"group (?P<group>\d+) (?P<major>row|column) major", _groups_of_activations),
    ),
    "norm": (
        (f"row {_WIDTH}", _wide("rms_norm_per_token_fp8_quant", "fused_add_rms_norm_static_fp8_quant")),
        (
            "in steps",
            _given(
                "rms_norm_per_token_fp8_quant m=16 k=28672",
                "rms_norm_per_token_fp8_quant m=1024 k=28672",
                tiny="rms_norm_per_token_fp8_quant m=1 k=16400",
            ),
        ),
    ),
    "kv_cache": (
        (
            "few tokens",
            _given("reshape_and_cache_fp8 m=1", "reshape_and_cache_fp8 m=64", tiny="reshape_and_cache_fp8 m=3 heads=2"),
        ),
        (
            "many tokens",
            _given(
                "reshape_and_cache_fp8 m=8192",
                "reshape_and_cache_fp8 m=32768",
                tiny="reshape_and_cache_fp8 m=65 heads=1",
            ),
        ),
    ),
}
"""Family → patterns of its classes of shapes, and their calls; the first that matches counts."""
