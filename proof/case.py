"""A case: one call of an operator, the kernels that it launches, and what is expected of their machine code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Literal

import torch

from policyquant.kernels.triton.launch import Launch

BF16: Final = torch.bfloat16
FP16: Final = torch.float16
FP32: Final = torch.float32
FP8: Final = torch.float8_e4m3fn
INT32: Final = torch.int32

Matrix = Literal["fp8", "half", "int8"]
"""What the native matrix instruction multiplies; "half" is BF16 or FP16."""
Amount = float | Callable[[Launch], float]
"""A number, or a function of the launch where it depends on the configuration (`launch.arguments["BLOCK_K"]`)."""
Trips = Sequence[float] | Callable[[Launch], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What is expected of one kernel that a case launches.

    Args:
        bytes: that must go through DRAM, read and written, all programs together.
        flops: of matrix products, all programs together.
        loops: trip counts of the loops of the source on the path that is executed, in the order of their first lines:
            an outer loop stands before those inside it, whose counts are those of one pass. What the compiler unrolls
            is found out.
        matrix: the native matrix instruction that must do the products; None: there are none.
        promotion: partial sums must be added up outside the tensor cores; a function of the launch where the
            configuration asks for it.
        narrow_loads, narrow_stores: how many loads below 128 bits and stores below 64 bits an aligned kernel may have:
            scales, indices, biases.
        optional: whether it is launched on some architectures only.
        waivers: what is known to fail → why that is right: "spills", "loads", "stores", "matrix", "promotion", "loops",
            or a pipe that is busier than 70 % of the time in DRAM: "issue", "fp32", "alu", "xu", "lsu", "tensor". After
            "@" may stand the architecture that it is for: "alu@89".
    """

    bytes: Amount
    flops: Amount = 0
    loops: Trips = ()
    matrix: Matrix | None = None
    promotion: bool | Callable[[Launch], bool] = False
    narrow_loads: int = 0
    narrow_stores: int = 0
    optional: bool = False
    waivers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One call of an operator.

    Args:
        operator: its name; the Triton function of that name is called.
        name: what is special about the call, in a few words.
        inputs: makes the arguments of the operator, with tensors on the device "meta" (`meta` makes one).
        kernels: name of each kernel that is launched → what is expected of it.
        aligned: whether Triton is to specialize on divisibility by 16, and so loads and stores are to be wide.
        architectures: compiled for these compute capabilities.
        quick: whether it is one of those that every run of the tests compiles: one a kernel is enough.
    """

    operator: str
    name: str
    inputs: Callable[[], tuple[Any, ...]]
    kernels: Mapping[str, Kernel]
    aligned: bool = True
    architectures: tuple[int, ...] = (89, 90, 100)
    quick: bool = True


def meta(*shape: int, dtype: torch.dtype = BF16, pitch: int | None = None, offset: int = 0) -> torch.Tensor:
    """A tensor without data: rows `pitch` elements apart, the first element `offset` elements into its storage."""
    strides = torch.empty(shape, device="meta").stride()
    if pitch is not None:
        strides = (*(prod((*shape[i + 1 : -1], pitch)) for i in range(len(shape) - 1)), 1)
    size = offset + 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return torch.empty(size, dtype=dtype, device="meta").as_strided(shape, strides, offset)
