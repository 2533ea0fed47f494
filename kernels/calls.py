"""Calls of operators described in words, as `scaled_mm m=1 n=4096 k=4096 block`: tensors of the shapes, without data.

What a word changes is listed in `SIZES` and `WORDS`; what is not said is as in `Described`. An argument of an operator
is made by its name, or by the operator's name and its own where that means something else there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch

from policyquant.kernels import ops as _registered  # noqa: F401 (importing it defines the operators)
from policyquant.kernels.dispatch import Implementation, Machine, choose, operators, unknown, verdicts

_BLOCK: Final = 128
_PAGE: Final = 16
_MX_BLOCK: Final = 32
_NVFP4_BLOCK: Final = 16
_GATED: Final = ("silu_and_mul", "gelu_and_mul", "gated_activation")


class UnknownWordError(ValueError):
    """A description names an operator, a size or a property that does not exist."""


@dataclass(frozen=True, slots=True)
class Described:
    """Sizes and properties of a call."""

    m: int = 16
    """Rows of activations: tokens."""
    n: int = 4096
    """Rows of a weight: channels. Columns of the result of a gated activation."""
    k: int = 4096
    """Columns of activations and weights."""
    experts: int = 8
    top_k: int = 2
    heads: int = 8
    head_dim: int = 128
    group: int = 128
    """Elements that a scale of a group belongs to."""
    scales: str = "channel"
    """ "tensor"; "channel": with it one for each token; "block": of 128 × 128, with it one for a group of 128."""
    dtype: torch.dtype = torch.bfloat16
    codes: torch.dtype = torch.float8_e4m3fn
    result: torch.dtype | None = None
    """None: that of activations."""
    bias: bool = False
    aligned: bool = True
    """False: tensors begin one element further, and their rows are one element longer."""
    column_major: bool = False
    power_of_two: bool = False
    asymmetric: bool = False
    """Integers have a zero point."""
    device: str = "meta"

    def numbers(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Activations, or of another dtype."""
        dtype = self.dtype if dtype is None else dtype
        if self.aligned:
            return self._drawn(shape, dtype)
        return self._drawn((*shape[:-1], shape[-1] + 1), dtype).narrow(-1, 1, shape[-1])

    def _drawn(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(shape, device=self.device).to(dtype)

    def scale(self, *shape: int) -> torch.Tensor:
        """Scales of this shape, from 0.25 to 0.75."""
        return 0.25 + 0.5 * torch.rand(shape, device=self.device)

    def integers(self, *shape: int, below: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        """0, 1, … below, again and again."""
        count = 1
        for size in shape:
            count *= size
        return (torch.arange(count, device=self.device) % below).to(dtype).reshape(shape)

    def scales_of_rows(self, rows: int) -> torch.Tensor:
        """Of activations [rows, k]."""
        if self.scales == "block":
            return self.scale(rows, -(-self.k // _BLOCK))
        return self.scale(1) if self.scales == "tensor" else self.scale(rows, 1)

    def scales_of_weight(self, n: int, k: int, *experts: int) -> torch.Tensor:
        """Of a weight [experts…, n, k]."""
        if self.scales == "block":
            return self.scale(*experts, -(-n // _BLOCK), -(-k // _BLOCK))
        if self.scales == "tensor":
            return self.scale(*(experts or (1,)))
        return self.scale(*experts, n, 1)

    def blocks(self, rows: int, codes: torch.dtype) -> torch.Tensor:
        """Codes [rows, k] of MX or NVFP4: E4M3, or E2M1 two a byte."""
        return self.numbers(rows, self.k if codes == torch.float8_e4m3fn else -(-self.k // 2), dtype=codes)

    def scales_of_blocks(self, rows: int, size: int) -> torch.Tensor:
        """Of blocks of 32, powers of two; of 16, E4M3."""
        scale = self.scale(rows, -(-self.k // size))
        return scale.to(torch.float8_e8m0fnu if size == _MX_BLOCK else torch.float8_e4m3fn)


SIZES: Final = ("m", "n", "k", "experts", "top_k", "heads", "head_dim", "group")
"""Words with a number: `m=1`."""

_FLOATS: Final = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_CODES: Final = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "e2m1": torch.uint8}

WORDS: Final[Mapping[str, Mapping[str, Any]]] = {
    **{word: {"scales": word} for word in ("tensor", "channel", "block")},
    "token": {"scales": "channel"},
    **{word: {"dtype": dtype} for word, dtype in _FLOATS.items()},
    **{word: {"codes": dtype} for word, dtype in _CODES.items()},
    **{f"out={word}": {"result": dtype} for word, dtype in (_FLOATS | {"fp8": torch.float8_e4m3fn}).items()},
    "bias": {"bias": True},
    "aligned": {"aligned": True},
    "unaligned": {"aligned": False},
    "column_major": {"column_major": True},
    "power_of_two": {"power_of_two": True},
    "asymmetric": {"asymmetric": True},
}
"""Words alone, and what they change."""

_ARGUMENTS: Final[Mapping[str, Callable[[Described], Any]]] = {
    "x": lambda d: d.numbers(d.m, d.k),
    "w": lambda d: d.numbers(d.n, d.k),
    "residual": lambda d: d.numbers(d.m, d.k),
    "weight": lambda d: d.numbers(d.k),
    "eps": lambda d: 1e-6,
    "activation": lambda d: "silu",
    "approximate": lambda d: "none",
    "scale": lambda d: d.scale(1),
    "scale_ub": lambda d: None,
    "dtype": lambda d: d.codes,
    "out_dtype": lambda d: d.result or d.dtype,
    "group_size": lambda d: d.group,
    "column_major": lambda d: d.column_major,
    "power_of_two": lambda d: d.power_of_two,
    "dequantize.q": lambda d: d.numbers(d.m, d.k, dtype=d.codes),
    "dequantize.scale": lambda d: d.scale(1) if d.scales == "tensor" else d.scale(d.m, 1),
    "dequantize.dtype": lambda d: d.dtype,
    "dequantize_blocks.q": lambda d: d.numbers(d.n, d.k, dtype=d.codes),
    "dequantize_blocks.scale": lambda d: d.scale(-(-d.n // _BLOCK), -(-d.k // _BLOCK)),
    "dequantize_blocks.dtype": lambda d: d.dtype,
    "block": lambda d: [_BLOCK, _BLOCK],
    # Blocks that share a scale of 8 bits
    "scaling_mode": lambda d: "floor",
    "global_scale": lambda d: d.scale(1),
    "mx_dequantize.q": lambda d: d.blocks(d.m, d.codes),
    "mx_dequantize.scale": lambda d: d.scales_of_blocks(d.m, _MX_BLOCK),
    "mx_dequantize.dtype": lambda d: d.dtype,
    "nvfp4_dequantize.q": lambda d: d.blocks(d.m, torch.uint8),
    "nvfp4_dequantize.scale": lambda d: d.scales_of_blocks(d.m, _NVFP4_BLOCK),
    "nvfp4_dequantize.dtype": lambda d: d.dtype,
    "mx_weight_only_mm.q": lambda d: d.blocks(d.n, d.codes),
    "mx_weight_only_mm.scale": lambda d: d.scales_of_blocks(d.n, _MX_BLOCK),
    "nvfp4_weight_only_mm.q": lambda d: d.blocks(d.n, torch.uint8),
    "nvfp4_weight_only_mm.scale": lambda d: d.scales_of_blocks(d.n, _NVFP4_BLOCK),
    "mx_scaled_mm.a": lambda d: d.blocks(d.m, torch.float8_e4m3fn),
    "mx_scaled_mm.b": lambda d: d.blocks(d.n, d.codes),
    "mx_scaled_mm.scale_a": lambda d: d.scales_of_blocks(d.m, _MX_BLOCK),
    "mx_scaled_mm.scale_b": lambda d: d.scales_of_blocks(d.n, _MX_BLOCK),
    # Products
    "a": lambda d: d.numbers(d.m, d.k, dtype=d.codes),
    "b": lambda d: d.numbers(d.n, d.k, dtype=d.codes),
    "scale_a": lambda d: d.scales_of_rows(d.m),
    "scale_b": lambda d: d.scales_of_weight(d.n, d.k),
    "scale_result": lambda d: d.scale(1) if d.result in _CODES.values() else None,
    "bias": lambda d: d.numbers(d.n) if d.bias else None,
    "fp8_weight_only_mm.q": lambda d: d.numbers(d.n, d.k, dtype=d.codes),
    "fp8_weight_only_mm.scale": lambda d: d.scales_of_weight(d.n, d.k),
    "int8_weight_only_mm.q": lambda d: d.numbers(d.n, d.k, dtype=torch.int8),
    "int8_weight_only_mm.scale": lambda d: d.scale(1) if d.scales == "tensor" else d.scale(d.n, 1),
    # Integers
    "scaled_int8_mm.a": lambda d: d.numbers(d.m, d.k, dtype=torch.int8),
    "scaled_int8_mm.b": lambda d: d.numbers(d.n, d.k, dtype=torch.int8),
    "scaled_int8_mm.zero_point": lambda d: d.integers(d.m, 1, below=9) if d.asymmetric else None,
    "weight_sums": lambda d: d.integers(d.n, below=99) if d.asymmetric else None,
    "static_scaled_int8_quant.zero_point": lambda d: d.integers(1, below=9) if d.asymmetric else None,
    "scale_dtype": lambda d: torch.float32,
    "packed": lambda d: d.numbers(d.n, -(-d.k // 2), dtype=torch.uint8),
    "int4_weight_only_mm.scale": lambda d: d.scale(d.n, -(-d.k // d.group)),
    "int4_weight_only_mm.zero_point": lambda d: (
        d.integers(d.n, -(-d.k // d.group), below=16, dtype=torch.uint8) if d.asymmetric else None
    ),
    # Mixtures
    "grouped_scaled_mm.b": lambda d: d.numbers(d.experts, d.n, d.k, dtype=d.codes),
    "grouped_scaled_mm.scale_b": lambda d: d.scales_of_weight(d.n, d.k, d.experts),
    "grouped_scaled_mm.bias": lambda d: d.numbers(d.experts, d.n) if d.bias else None,
    "offsets": lambda d: ((torch.arange(d.experts, device=d.device) + 1) * d.m // d.experts).int(),
    "logits": lambda d: d.numbers(d.m, d.experts),
    "topk_softmax.k": lambda d: d.top_k,
    "topk_sigmoid.k": lambda d: d.top_k,
    "topk_sigmoid.bias": lambda d: d.numbers(d.experts, dtype=torch.float32) if d.bias else None,
    "renormalize": lambda d: True,
    "ids": lambda d: d.integers(d.m, d.top_k, below=d.experts),
    "block_size": lambda d: 64,
    "num_experts": lambda d: d.experts,
    "expert_map": lambda d: None,
    "w13": lambda d: d.numbers(d.experts, 2 * d.n, d.k, dtype=d.codes),
    "w2": lambda d: d.numbers(d.experts, d.k, d.n, dtype=d.codes),
    "w13_scale": lambda d: d.scales_of_weight(2 * d.n, d.k, d.experts),
    "w2_scale": lambda d: d.scales_of_weight(d.k, d.n, d.experts),
    "topk_weights": lambda d: d.scale(d.m, d.top_k),
    "topk_ids": lambda d: d.integers(d.m, d.top_k, below=d.experts),
    "quantization": lambda d: {"tensor": "tensor", "channel": "token", "block": "group"}[d.scales],
    "x_scale": lambda d: d.scale(1) if d.scales == "tensor" else None,
    "intermediate_scale": lambda d: d.scale(1) if d.scales == "tensor" else None,
    # Caches of keys and values
    "key": lambda d: d.numbers(d.m, d.heads, d.head_dim),
    "value": lambda d: d.numbers(d.m, d.heads, d.head_dim),
    **{
        name: lambda d: d.numbers(-(-d.m // _PAGE) + 1, _PAGE, d.heads, d.head_dim, dtype=d.codes)
        for name in ("key_cache", "value_cache", "cache")
    },
    "slot_mapping": lambda d: d.integers(d.m, below=d.m or 1, dtype=torch.int64),
    "slots": lambda d: d.integers(d.m, below=d.m or 1, dtype=torch.int64),
    "k_scale": lambda d: d.scale(1),
    "v_scale": lambda d: d.scale(1),
    "gather_cache_fp8.dtype": lambda d: d.dtype,
    **{f"{name}.x": lambda d: d.numbers(d.m, 2 * d.n) for name in _GATED},
}
"""Argument, or operator and argument → its value."""


class Call(NamedTuple):
    """A call of an operator."""

    operator: str
    inputs: tuple[Any, ...]
    """All arguments of the operator."""

    def verdicts(self, on: Machine) -> list[tuple[Implementation, str | None]]:
        """The implementations in order, each with the reason why it does not run this call there; None: it can."""
        return list(verdicts(self.operator, on, *self.placed()))

    def chosen(self, on: Machine) -> Implementation:
        """The implementation that runs it there, with all that is forced.

        Raises:
            KernelUnavailableError: one is forced for this operator by its name and cannot run.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return choose(self.operator, on, *self.placed())

    def placed(self) -> tuple[tuple[Any, ...], dict[str, torch.Tensor]]:
        """What implementations are given: the arguments of the `.out` overload."""
        packet = getattr(torch.ops.policyquant, self.operator)
        made = packet.default(*self.inputs)
        if made is None:
            return self.inputs, {}
        arguments = packet.out._schema.arguments
        names = [each.name for each in arguments if each.is_out]
        outs = dict(zip(names, made if isinstance(made, tuple) else (made,), strict=True))
        return self.inputs[: len(arguments) - len(names)], outs


def described(text: str, device: str = "meta") -> Call:
    """The call that words describe: an operator, sizes and properties, in any order after it.

    Raises:
        UnknownWordError: a word says nothing, with the nearest that does.
    """
    operator, *words = text.split() or [""]
    if operator not in operators():
        raise UnknownWordError(unknown("there is no operator", operator, operators()))
    if operator == "scaled_mm" and "block" in words:
        operator = "block_scaled_mm"
    told = Described(device=device, scales="block" if operator == "block_scaled_mm" else "channel")
    for word in words:
        told = replace(told, **_meaning(word))
    return call(operator, told)


def call(operator: str, told: Described) -> Call:
    """The call of an operator with these sizes and properties."""
    arguments = getattr(torch.ops.policyquant, operator).default._schema.arguments
    family = next((prefix for prefix in _GATED if operator.startswith(prefix)), operator)

    def make(name: str) -> Any:
        value = _ARGUMENTS.get(f"{family}.{name}") or _ARGUMENTS.get(name)
        if value is None:
            raise UnknownWordError(f"{operator} cannot be described: nothing says what its argument {name!r} is")
        return value(told)

    return Call(operator, tuple(make(each.name) for each in arguments))


def _meaning(word: str) -> Mapping[str, Any]:
    if word in WORDS:
        return WORDS[word]
    name, equals, number = word.partition("=")
    if equals and name in SIZES:
        least = 0 if name == "m" else 1
        if not number.isdecimal() or not least <= int(number) < 2**31:
            raise UnknownWordError(f"{name} is a whole number from {least} to 2**31 - 1, found {number!r}")
        return {name: int(number)}
    raise UnknownWordError(unknown("there is no word", word, [*(f"{size}=" for size in SIZES), *WORDS]))
