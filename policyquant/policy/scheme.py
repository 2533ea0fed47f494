"""Schemes: what one layer is stored and computed in, with nothing left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Granularity = Literal["tensor", "channel", "token", "group", "block", "head"]

WEIGHT_GRANULARITIES: Final = ("tensor", "channel", "group", "block")
INPUT_GRANULARITIES: Final = ("tensor", "token", "group")

FLOAT_DTYPES: Final[Mapping[str, str]] = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
}
"""Spellings of the dtypes that are not quantized → PyTorch's name."""

QUANTIZED_DTYPES: Final[Mapping[str, str]] = {
    "fp8": "float8_e4m3fn",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e5m2",
    "int8": "int8",
    "int4": "int4",
    "fp4": "float4_e2m1fn",
    "float4_e2m1fn": "float4_e2m1fn",
}
"""Spellings of the quantized dtypes → the name used in plans (PyTorch's where PyTorch has one element per name)."""

FP8_DTYPES: Final[Mapping[str, str]] = {
    spelling: dtype for spelling, dtype in QUANTIZED_DTYPES.items() if dtype.startswith("float8")
}
"""Spellings of the dtypes that an emitted activation or a KV cache can be quantized to."""

SCALE_DTYPES: Final[Mapping[str, str]] = {
    **FLOAT_DTYPES,
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e8m0fnu": "float8_e8m0fnu",
    "fp8_e4m3": "float8_e4m3fn",
    "fp8_e8m0": "float8_e8m0fnu",
}
"""Spellings of the dtypes that scales are stored in → PyTorch's name."""

SMALLEST_SCALE: Final = 2.0**-126
LARGEST_SCALE: Final = (2 - 2.0**-23) * 2.0**127
"""The range of scales that policies and plans may give: the normal values of float32, as which they are kept."""

BITS: Final[Mapping[str, int]] = {
    "float32": 32,
    "bfloat16": 16,
    "float16": 16,
    "float8_e4m3fn": 8,
    "float8_e5m2": 8,
    "float8_e8m0fnu": 8,
    "int8": 8,
    "int4": 4,
    "float4_e2m1fn": 4,
}
"""Bits of one element."""


def spelled(value: object) -> str:
    """The value of one field as a policy spells it: `128`, `true`, `[128, 128]`, `none`."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Quantization:
    """How one tensor (a weight, an input, an output, a KV cache) is quantized."""

    dtype: str
    granularity: Granularity
    """What one scale covers. `group`: `group` neighbours along the reduced dimension; `block`: [out, in] tiles."""
    group: int | None = None
    block: tuple[int, int] | None = None
    scheme: Literal["dynamic", "static"] | None = None
    """Whether scales are computed from each input or fixed beforehand; None for weights."""
    symmetric: bool = True
    scale_dtype: str = "float32"
    global_scale_dtype: str | None = None
    """A second scale for the whole tensor, on top of the groups' (NVFP4)."""
    scale: float | None = None
    """A static scale given by the policy itself."""
    scale_ub: float | None = None
    """Upper bound of a dynamic scale."""

    def as_json(self) -> dict[str, object]:
        """The fields that are set, as in a policy and in `plan.schema.json`."""
        result: dict[str, object] = {"dtype": self.dtype, "granularity": self.granularity}
        if self.group is not None:
            result["group"] = self.group
        if self.block is not None:
            result["block"] = list(self.block)
        if self.scheme is not None:
            result["scheme"] = self.scheme
        if not self.symmetric:
            result["symmetric"] = False
        if self.scale_dtype != "float32":
            result["scale_dtype"] = self.scale_dtype
        if self.global_scale_dtype is not None:
            result["global_scale_dtype"] = self.global_scale_dtype
        if self.scale is not None:
            result["scale"] = self.scale
        if self.scale_ub is not None:
            result["scale_ub"] = self.scale_ub
        return result

    def __str__(self) -> str:
        text = self.dtype
        if self.granularity == "group":
            text += f" group {self.group}"
        elif self.block is not None:
            text += f" block {self.block[0]}x{self.block[1]}"
        else:
            text += f" per {self.granularity}"
        if self.scheme == "static":
            text += " static"
        if not self.symmetric:
            text += " asymmetric"
        return text


@dataclass(frozen=True, slots=True)
class Scheme:
    """The outcome for one layer. `none` with everything else None is a layer left exactly as stored."""

    method: str
    weight: Quantization | None = None
    input: Quantization | None = None
    output: str | Quantization | None = None
    """A plain dtype's PyTorch name, or how the emitted activation is quantized; None: the model's dtype."""
    kv_cache: Quantization | None = None

    def __str__(self) -> str:
        text = self.method
        tensors = [
            f"{name} {each}" for name, each in (("weight", self.weight), ("input", self.input)) if each is not None
        ]
        if tensors:
            text += f" ({', '.join(tensors)})"
        if self.output is not None:
            text += f" with output {self.output}"
        if self.kv_cache is not None:
            text += f" with KV cache {self.kv_cache}"
        return text


NONE: Final = Scheme("none")
