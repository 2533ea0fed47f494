"""Quantized activations as values: what a layer whose plan says `output: fp8` hands on.

Codes, scales and their layout travel together, so that the next linear layer reads them and does not quantize again.
Only what keeps codes and scales in step is offered; anything else raises and says so, because treating codes as
numbers would be silently wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NoReturn

import torch
from torch.utils import _pytree

from policyquant.kernels import ops

_OFFERED = "reshape or view of leading dimensions, row indexing, detach, to(device) and dequantize()"


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTensor:
    """x ≈ data · scale.

    Args:
        data: the codes, [..., K].
        scale: float32; [..., 1], one for each row, if `granularity` is "token"; [1] if it is "tensor".
        granularity: what one scale covers.
        dtype: the logical dtype, that of the tensor that was quantized.
    """

    data: torch.Tensor
    scale: torch.Tensor
    granularity: Literal["tensor", "token"]
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        """The shape of the codes, which is the logical one."""
        return self.data.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.data.ndim

    @property
    def device(self) -> torch.device:
        """Where codes and scales are."""
        return self.data.device

    def __len__(self) -> int:
        return len(self.data)

    def reshape(self, *shape: Any) -> QuantizedTensor:
        """The same rows under other leading dimensions; the last dimension stays.

        Raises:
            TypeError: the last dimension would change, and with it what a scale covers.
        """
        sizes = self._sizes(shape)
        return self._with(
            self.data.reshape(sizes), self.scale if self._is_scaled_as_one else self.scale.reshape(*sizes[:-1], 1)
        )

    def view(self, *shape: Any) -> QuantizedTensor:
        """As `reshape`, without a copy.

        Raises:
            TypeError: the last dimension would change, or another dtype is asked for.
        """
        sizes = self._sizes(shape)
        return self._with(
            self.data.view(sizes), self.scale if self._is_scaled_as_one else self.scale.view(*sizes[:-1], 1)
        )

    def __getitem__(self, rows: object) -> QuantizedTensor:
        """Entries of the first dimension, by a slice or a tensor of integers; at least two dimensions are needed.

        Raises:
            TypeError: another kind of index, or one that would cut the last dimension.
        """
        integers = isinstance(rows, torch.Tensor) and rows.dtype in (torch.int64, torch.int32) and rows.ndim == 1
        if not (isinstance(rows, slice) or integers) or self.ndim < 2:
            self._refuse(f"index {rows!r} of shape {list(self.shape)}")
        return self._with(
            self.data[rows],  # type: ignore[index]
            self.scale if self._is_scaled_as_one else self.scale[rows],  # type: ignore[index]
        )

    def detach(self) -> QuantizedTensor:
        """The same without a history for gradients."""
        return self._with(self.data.detach(), self.scale.detach())

    def to(self, device: object) -> QuantizedTensor:
        """The same on another device.

        Raises:
            TypeError: a dtype was given; `dequantize()` gives a plain tensor.
        """
        if not isinstance(device, (str, int, torch.device)):
            self._refuse(f"to({device!r})")
        return self._with(self.data.to(device), self.scale.to(device))

    def dequantize(self) -> torch.Tensor:
        """A plain tensor of the logical shape and dtype: data · scale in float32, rounded once."""
        return ops.dequantize(self.data, self.scale, self.dtype)

    def __getattr__(self, name: str) -> NoReturn:
        # Called for what is not found only. Protocols (copy, pickle) probe dunder names and expect this error.
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        name = getattr(func, "__name__", str(func))
        raise TypeError(f"{name} does not take a QuantizedTensor, which offers {_OFFERED}")

    def __iter__(self) -> NoReturn:
        self._refuse("iteration")

    def __bool__(self) -> NoReturn:  # noqa: PLE0304 (a truth would be an accident)
        self._refuse("truth")

    def __add__(self, other: object) -> NoReturn:
        self._refuse("arithmetic")

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __add__
    __neg__ = __abs__ = __iter__

    def _with(self, data: torch.Tensor, scale: torch.Tensor) -> QuantizedTensor:
        return QuantizedTensor(data, scale, self.granularity, self.dtype)

    @property
    def _is_scaled_as_one(self) -> bool:
        return self.granularity == "tensor"

    def _sizes(self, shape: tuple[Any, ...]) -> tuple[int, ...]:
        """The whole shape asked for, -1 resolved."""
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        if not given or not all(isinstance(size, int) for size in given):
            self._refuse(f"a reshape to {given!r}")
        sizes = [int(size) for size in given]
        if sizes.count(-1) == 1:
            rest = prod([size for size in sizes if size != -1])
            sizes[sizes.index(-1)] = self.data.numel() // rest if rest else 0
        if sizes[-1] != self.shape[-1] or prod(sizes) != self.data.numel():
            self._refuse(f"a reshape from {list(self.shape)} to {list(given)}")
        return tuple(sizes)

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(f"a QuantizedTensor does not take {what}; it offers {_OFFERED}")


def _flatten(value: QuantizedTensor) -> tuple[list[Any], Any]:
    return [value.data, value.scale], (value.granularity, value.dtype)


def _unflatten(tensors: Any, layout: Any) -> QuantizedTensor:
    data, scale = tensors
    granularity, dtype = layout
    return QuantizedTensor(data, scale, granularity, dtype)


_pytree.register_pytree_node(
    QuantizedTensor, _flatten, _unflatten, serialized_type_name="policyquant.quantized_tensor.QuantizedTensor"
)
