"""Tensors made of several: what is asked of them is what it is of the tensors put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from policyquant.checkpoint.derived_tensor import StackedTensor
from policyquant.checkpoint.reader import open_tensors
from policyquant.checkpoint.tensors import LazyTensor

Opened = Callable[[Sequence[torch.Tensor]], list[LazyTensor]]


@pytest.fixture(params=["memory", "file"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens tensors, from memory or from a file."""

    def open_all(tensors: Sequence[torch.Tensor]) -> list[LazyTensor]:
        named = {f"t{number}": tensor for number, tensor in enumerate(tensors)}
        if request.param == "memory":
            found = open_tensors(named)
        else:
            save_file(named, tmp_path / "model.safetensors")
            found = open_tensors(tmp_path)
        return [found[name] for name in named]

    return open_all


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_rows_under_rows(opened: Opened, dtype: torch.dtype) -> None:
    parts = [torch.randn(rows, 4).to(dtype) for rows in (3, 1, 5)]
    stacked, truth = StackedTensor(opened(parts)), torch.cat(parts)
    assert (stacked.shape, stacked.dtype) == ((9, 4), dtype)
    assert torch.equal(stacked.read().float(), truth.float())
    for start in range(10):
        for stop in range(start, 10):
            rows = stacked.rows(start, stop)
            assert rows.shape == (stop - start, 4)
            assert torch.equal(rows.read().float(), truth[start:stop].float())
    assert torch.equal(stacked.expert(-2).read().float(), truth[-2].float())
    assert torch.equal(stacked.transposed().rows(1, 3).read().float(), truth.T[1:3].float())


def test_entry_after_entry(opened: Opened) -> None:
    parts = [torch.randn(3, 4) for _ in range(3)]
    stacked, truth = StackedTensor(opened(parts), entries=True), torch.stack(parts)
    assert stacked.shape == (3, 3, 4)
    assert torch.equal(stacked.read(), truth)
    assert torch.equal(stacked.rows(1, 3).read(), truth[1:3])
    assert stacked.rows(2, 2).shape == (0, 3, 4)
    assert torch.equal(stacked.expert(-1).rows(0, 2).read(), truth[2, :2])
    assert torch.equal(stacked.transposed().read(), truth.mT)
    assert torch.equal(stacked.transposed().expert(1).read(), truth[1].T)
    with pytest.raises(IndexError, match="has no entry 3"):
        stacked.expert(3)


def test_rows_of_one_part_are_that_part(opened: Opened) -> None:
    """So that nothing else is read."""
    parts = opened([torch.randn(3, 4), torch.randn(2, 4)])
    assert not isinstance(StackedTensor(parts).rows(3, 5), StackedTensor)
    assert "'t0 … t1'" in StackedTensor(parts).place
