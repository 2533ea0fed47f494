"""A quantized activation as a value: codes and scales stay in step, and what would part them is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any, Literal

import pytest
import torch
from torch.utils import _pytree

from policyquant.quantized_tensor import QuantizedTensor


def example(granularity: Literal["tensor", "token"] = "token") -> QuantizedTensor:
    """[2, 3, 4] with powers of two as scales, so that every value is exact."""
    data = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4).remainder(16).to(torch.float8_e4m3fn)
    scale = torch.tensor([0.5]) if granularity == "tensor" else torch.tensor([1, 2, 4, 8, 16, 32.0]).reshape(2, 3, 1)
    return QuantizedTensor(data, scale, granularity, torch.bfloat16)


both = pytest.mark.parametrize("granularity", ["tensor", "token"])


def test_it_tells_the_logical_shape_and_dtype() -> None:
    x = example()
    assert (x.shape, x.ndim, x.dtype, x.device.type, len(x)) == ((2, 3, 4), 3, torch.bfloat16, "cpu", 2)


@both
def test_dequantize_multiplies_codes_and_scales(granularity: Literal["tensor", "token"]) -> None:
    x = example(granularity)
    assert x.dequantize().dtype == torch.bfloat16
    assert torch.equal(x.dequantize(), (x.data.float() * x.scale).bfloat16())


@both
@pytest.mark.parametrize("shape", [(6, 4), (-1, 4), (3, 2, 4), (1, 2, -1, 4), (2, 3, -1)])
@pytest.mark.parametrize("name", ["reshape", "view"])
def test_leading_dimensions_change_shape_with_their_scales(
    granularity: Literal["tensor", "token"], shape: tuple[int, ...], name: str
) -> None:
    x = example(granularity)
    assert torch.equal(getattr(x, name)(*shape).dequantize(), x.dequantize().reshape(shape))
    assert torch.equal(getattr(x, name)(shape).dequantize(), x.dequantize().reshape(shape))


@both
@pytest.mark.parametrize("rows", [slice(1, 4), slice(0, 0), torch.tensor([5, 0, 0])])
def test_rows_are_taken_with_their_scales(granularity: Literal["tensor", "token"], rows: Any) -> None:
    x = example(granularity).reshape(6, 4)
    assert torch.equal(x[rows].dequantize(), x.dequantize()[rows])


@both
@pytest.mark.parametrize(
    "remake",
    [
        QuantizedTensor.detach,
        lambda x: x.to("cpu"),
        copy.deepcopy,
        lambda x: _pytree.tree_map(lambda tensor: tensor.clone(), x),
    ],
    ids=["detach", "to", "deepcopy", "pytree"],
)
def test_it_is_remade_whole(
    granularity: Literal["tensor", "token"], remake: Callable[[QuantizedTensor], QuantizedTensor]
) -> None:
    x = example(granularity)
    y = remake(x)
    assert isinstance(y, QuantizedTensor)
    assert (y.granularity, y.dtype) == (x.granularity, x.dtype)
    assert torch.equal(y.data.view(torch.uint8), x.data.view(torch.uint8))
    assert torch.equal(y.scale, x.scale)


def test_it_is_a_pytree_of_its_codes_and_scales() -> None:
    x = example()
    leaves, _ = _pytree.tree_flatten({"x": x})
    assert [id(leaf) for leaf in leaves] == [id(x.data), id(x.scale)]


def test_it_is_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        example().dtype = torch.float32  # type: ignore[misc]


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x + 1,
        lambda x: 2 * x,
        lambda x: x @ torch.ones(4, 4),
        lambda x: torch.ones(4) * x,
        lambda x: -x,
        torch.nn.functional.silu,
        lambda x: torch.cat([x, x]),
        lambda x: x.transpose(0, 1),
        lambda x: x.to(torch.float32),
        lambda x: x.reshape(2, 12),
        lambda x: x.reshape(5, 4),
        lambda x: x.view(torch.uint8),
        lambda x: x[0],
        lambda x: x[..., :2],
        lambda x: x[torch.tensor([True, False])],
        list,
        bool,
    ],
)
def test_anything_else_raises_and_says_what_is_offered(use: Callable[[QuantizedTensor], object]) -> None:
    with pytest.raises(TypeError, match=r"QuantizedTensor.*offers.*dequantize\(\)"):
        use(example())
