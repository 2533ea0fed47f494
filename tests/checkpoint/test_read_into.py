"""Values straight into the tensor that is to hold them: from a file without a mapping, from others as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from policyquant.checkpoint.derived_tensor import StackedTensor
from policyquant.checkpoint.reader import open_tensors
from policyquant.errors import SourceError


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8, torch.bool])
def test_values_arrive_as_they_are_stored(tmp_path: Path, dtype: torch.dtype) -> None:
    stored = torch.randn(300, 70).to(dtype)
    save_file({"a": stored}, tmp_path / "model.safetensors")
    target = torch.zeros(300, 70, dtype=dtype)
    open_tensors(tmp_path)["a"].read_into(target)
    assert torch.equal(target.view(torch.uint8), stored.view(torch.uint8))


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(torch.zeros(6, 5, dtype=torch.float64), id="another dtype"),
        pytest.param(torch.zeros(5, 6, dtype=torch.float32).T, id="another layout"),
        pytest.param(torch.zeros(9, 5, dtype=torch.float32)[3:], id="rows of a larger tensor"),
    ],
)
def test_a_target_may_be_laid_out_otherwise(tmp_path: Path, target: torch.Tensor) -> None:
    stored = torch.randn(6, 5)
    save_file({"a": stored}, tmp_path / "model.safetensors")
    open_tensors(tmp_path)["a"].read_into(target)
    assert torch.equal(target.float(), stored)


def test_a_target_of_another_shape_is_not_filled(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3)}, tmp_path / "model.safetensors")
    target = torch.zeros(4, 3)
    with pytest.raises(RuntimeError, match="size"):
        open_tensors(tmp_path)["a"].rows(0, 2).read_into(target[:1, :2])
    assert not target.any()


def test_tensors_of_no_elements_and_of_no_dimensions_are_read(tmp_path: Path) -> None:
    save_file({"none": torch.empty(0, 4), "one": torch.tensor(2.5)}, tmp_path / "model.safetensors")
    tensors = open_tensors(tmp_path)
    tensors["none"].read_into(torch.empty(0, 4))
    target = torch.tensor(0.0)
    tensors["one"].read_into(target)
    assert target == 2.5


@pytest.mark.parametrize("entries", [False, True])
def test_several_tensors_fill_their_places_in_one(tmp_path: Path, entries: bool) -> None:
    values = {name: torch.randn(4, 3) for name in "abc"}
    save_file(values, tmp_path / "model.safetensors")
    tensors = open_tensors(tmp_path)
    stacked = StackedTensor([tensors[name] for name in "abc"], entries=entries)
    target = torch.zeros(stacked.shape)
    stacked.read_into(target)
    assert torch.equal(target, stacked.read())


def test_a_file_that_was_cut_meanwhile_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.ones(1000, 100)}, path)
    tensor = open_tensors(tmp_path)["a"]
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(SourceError, match="had 400,"):
        tensor.read_into(torch.zeros(1000, 100))
