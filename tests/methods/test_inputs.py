"""What a quantized layer takes as input: its number of features, in any number of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from policyquant.errors import PolicyQuantError
from policyquant.quantized_tensor import QuantizedTensor
from tests.methods.layers_under_test import QUANTIZED, K, apply, loaded


@pytest.mark.parametrize("kind", ["linear", "qkv", "experts"])
@pytest.mark.parametrize("form", QUANTIZED)
@pytest.mark.parametrize("shape", [(5, K + 1), (3, 2 * K), (K, 1)])
def test_an_input_of_another_width_is_refused_by_the_name_of_the_layer(
    form: str, kind: str, shape: tuple[int, ...]
) -> None:
    layer = loaded(kind, form)
    layer.layer_name = "decoder.0.proj"
    with pytest.raises(PolicyQuantError, match=rf"decoder.0.proj: takes inputs \[..., {K}\], found shape \[{shape[0]}"):
        apply(layer, torch.ones(shape))


@pytest.mark.parametrize("form", QUANTIZED)
def test_a_number_alone_is_no_input(form: str) -> None:
    with pytest.raises(PolicyQuantError, match=r"takes inputs \[..., 33\], found shape \[\]"):
        apply(loaded("linear", form), torch.tensor(1.0))


@pytest.mark.parametrize("form", QUANTIZED)
def test_codes_of_another_width_are_refused(form: str) -> None:
    codes = QuantizedTensor(torch.ones(2, 8).to(torch.float8_e4m3fn), torch.ones(2, 1), "token", torch.float32)
    given: Any = codes
    with pytest.raises(PolicyQuantError, match=r"takes inputs \[..., 33\], found shape \[2, 8\]"):
        apply(loaded("linear", form), given)


@pytest.mark.parametrize("form", QUANTIZED)
@pytest.mark.parametrize("leading", [(), (0,), (2, 0), (1,), (2, 3)])
def test_rows_may_be_any_number_in_any_shape(form: str, leading: tuple[int, ...]) -> None:
    y = apply(loaded("linear", form), torch.ones(*leading, K))
    assert y.shape == (*leading, 7)
