"""Tensors that break careless arithmetic: every special value, values at and between codes, every size and layout."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

_INFINITY = float("inf")
_SPECIAL = (
    *(0.0, -0.0, float("nan"), _INFINITY, -_INFINITY),
    # The smallest subnormal float32, others, the smallest normal one, one below bfloat16's normal values.
    *(1.4e-45, -1e-40, 1.1754944e-38, 1e-38, -1e-38),
    # The smallest FP8 values, and ties between them and zero.
    *(2.0**-6, 2.0**-9, 2.0**-10, -(2.0**-10), 1.5 * 2.0**-9, 2.0**-14, 2.0**-16, 2.0**-17, 1.5 * 2.0**-16),
    # The largest FP8 values, what rounds to them, ties with what would come next, and beyond.
    *(448.0, -448.0, 449.0, 463.0, 464.0, -464.0, 480.0, 57344.0, -57344.0, 61439.0, 61440.0, 65504.0, 65536.0, -1e6),
    # The largest float32, bfloat16, and what overflows when it is divided by a scale below 1.
    *(3.4028234e38, -3.4028234e38, 3.3895314e38, 1e38, -3e37),
    # Halves and neighbours of integers.
    *(0.5, -0.5, 1.5, 2.5, 126.5, 127.0, 127.5, -127.5, 128.0, -128.5, 1.0000001, 0.99999994),
)

values = st.one_of(
    st.sampled_from(_SPECIAL),
    st.floats(width=32),
    st.builds(lambda significand, exponent: significand * 2.0**exponent, st.floats(-2, 2), st.integers(-60, 60)),
)
"""Floats of every kind, float32 at the widest."""


@st.composite
def tensors(draw: Any, at_least: int = 0) -> torch.Tensor:
    """[rows, columns] in one of `FLOATS`, with rows of zeros among the others, in any layout."""
    shape = draw(st.integers(at_least, 4)), draw(st.integers(at_least, 9))
    x = torch.tensor(draw(st.lists(values, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))).reshape(shape)
    zero = torch.tensor([draw(st.integers(0, 5)) == 0 for _ in range(shape[0])], dtype=torch.bool)
    x[zero] = 0.0
    return laid_out(x.to(draw(st.sampled_from(FLOATS))), draw(st.sampled_from(LAYOUTS)))


LAYOUTS = ("contiguous", "transposed", "every other column", "a column further")


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values with other strides, or another alignment."""
    if layout == "transposed":
        return x.T.contiguous().T
    if layout == "contiguous" or x.ndim < 2:
        return x
    step = 2 if layout == "every other column" else 1
    wide = torch.empty((*x.shape[:-1], x.shape[-1] * step + 1), dtype=x.dtype)
    wide.view(torch.uint8).fill_(0xFF)  # NaN, in every format that has it
    wide[..., 1::step] = x
    return wide[..., 1::step]


scale_values = st.one_of(
    st.sampled_from([1.0, 2.0**-126, 1e-10, 0.007, 1e10, 3e35, 2.0**127]),
    st.floats(2.0**-126, 2.0**127, width=32),
)
"""Static scales and upper bounds: positive, finite, normal."""
