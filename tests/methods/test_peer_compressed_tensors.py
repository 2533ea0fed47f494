"""Stored codes and scales are those that compressed-tensors makes of the same weight, or differ as the docs say."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from policyquant.checkpoint.tensors import Slot
from policyquant.layers.linear import Linear, QKVParallelLinear
from policyquant.methods.pieces import pieces
from tests.methods import layers_under_test as under_test

pytestmark = pytest.mark.slow

FORMS = {
    "int8_weight_only": ("int", "channel"),
    "int8_weight_only per tensor": ("int", "tensor"),
    "fp8": ("float", "channel"),
    "fp8 per tensor": ("float", "tensor"),
}
every_form = pytest.mark.parametrize("form", FORMS)


def theirs(weight: torch.Tensor, form: str, *, zero_point: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as compressed-tensors' compressor writes them, from the observed minima and maxima."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    kind, strategy = FORMS[form]
    args = QuantizationArgs(num_bits=8, type=kind, strategy=strategy, symmetric=True)
    lowest, highest = weight.aminmax() if strategy == "tensor" else weight.aminmax(dim=-1, keepdim=True)
    scale, zero = calculate_qparams(lowest, highest, args)
    state = {"weight": weight, "weight_scale": scale, **({"weight_zero_point": zero} if zero_point else {})}
    compressor = BaseCompressor.get_value_from_registry(f"{kind}-quantized")
    written = compressor.compress(state, QuantizationScheme(targets=["Linear"], weights=args))
    return written["weight"], written["weight_scale"]


def ours(weight: torch.Tensor, form: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as a linear of ours stores them."""
    layer = Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype)
    state = under_test.load(layer, form, {Slot("weight"): weight}).state_dict()
    return state["weight"], state["weight_scale"]


def same_bytes(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def with_outliers(rows: int, columns: int) -> torch.Tensor:
    """As trained weights are: most within ±0.3, a few channels and elements far larger."""
    weight = drawn(rows, columns) * 0.1
    weight[:, ::97] *= 8
    weight[:: max(1, rows // 7)] *= 3
    weight.view(-1)[::1009] *= 20
    return weight


def rows_of_every_size() -> torch.Tensor:
    """From 2**-110 to 2**118; extremes negative, positive, of one size with both signs; ties between codes."""
    weight = drawn(229, 40) * (2.0 ** torch.arange(-110, 119))[:, None]
    largest = weight.abs().amax(-1)
    weight[0::3, 0], weight[1::3, 0] = -2 * largest[0::3], 2 * largest[1::3]
    weight[2::3, 0], weight[2::3, 1] = 2 * largest[2::3], -2 * largest[2::3]
    weight[5] = torch.linspace(-127.5, 127.5, 40) * 0.5
    weight[6, :3] = torch.tensor([1e30, 1e-30, -1e-38])
    return weight


WEIGHTS: Mapping[str, Callable[[], torch.Tensor]] = {
    "random": lambda: drawn(64, 48),
    "one row": lambda: drawn(1, 33),
    "one column": lambda: drawn(33, 1),
    "rows of every size": rows_of_every_size,
    "SmolLM2's q_proj": lambda: with_outliers(576, 576),
    "SmolLM2's k_proj": lambda: with_outliers(192, 576),
    "SmolLM2's gate_proj": lambda: with_outliers(1536, 576),
    "SmolLM2's down_proj": lambda: with_outliers(576, 1536),
}


@every_form
@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("rounded", [torch.float32, torch.bfloat16, torch.float16])
def test_a_weight_in_float32_gives_the_same_bytes(form: str, name: str, rounded: torch.dtype) -> None:
    """Values that bfloat16 or float16 can hold are among those of float32."""
    weight = WEIGHTS[name]().to(rounded).float()
    if rounded == torch.float16:
        weight = weight[(weight.abs().amax(-1) > 0) & weight.isfinite().all(-1)]
    for found, expected in zip(ours(weight, form), theirs(weight, form), strict=True):
        assert same_bytes(found, expected)


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtype_that_a_weight_is_stored_in_makes_no_difference_here(form: str, dtype: torch.dtype) -> None:
    weight = with_outliers(192, 576).to(dtype)
    for found, expected in zip(ours(weight, form), theirs(weight.float(), form), strict=True):
        assert same_bytes(found, expected)


@every_form
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_there_scales_and_quotients_of_a_16_bit_weight_are_rounded_to_its_dtype(form: str, dtype: torch.dtype) -> None:
    """All of the difference: with these two roundings added, ours are theirs. Neither errs less on the whole."""
    weight = with_outliers(192, 576).to(dtype)
    (q, scale), (their_q, their_scale) = ours(weight, form), theirs(weight, form)
    assert same_bytes(scale.to(dtype), their_scale)
    quotient = (weight.float() / their_scale.float()).to(dtype).float()
    if q.dtype == torch.int8:
        again = quotient.round().clamp(-128, 127).to(torch.int8)
    else:
        again = quotient.clamp(-448, 448).to(q.dtype)
    assert same_bytes(again, their_q)


@pytest.mark.parametrize("form", ["int8_weight_only", "fp8"])
def test_a_row_of_zeros_and_one_below_the_smallest_scale_have_other_scales_there(form: str) -> None:
    weight = drawn(4, 8)
    weight[1], weight[2] = 0.0, drawn(8) * 1e-42
    (q, scale), (their_q, their_scale) = ours(weight, form), theirs(weight, form)
    assert (scale != their_scale).flatten().tolist() == [False, True, True, False]
    assert scale[1:3].flatten().tolist() == [2.0**-126] * 2
    assert float(their_scale[1]) == 2.0**-23
    assert float(their_scale[2]) < 2.0**-126
    assert same_bytes(q[[0, 1, 3]], their_q[[0, 1, 3]])


def test_a_zero_point_turns_negative_zero_into_zero_there() -> None:
    """llm-compressor adds one, of 0, to symmetric schemes too."""
    weight = drawn(4, 8)
    weight[:, 0] = -0.0
    (q, scale), (their_q, their_scale) = ours(weight, "fp8"), theirs(weight, "fp8", zero_point=True)
    assert torch.equal(scale, their_scale)
    assert q.view(torch.uint8)[:, 0].tolist() == [0x80] * 4
    assert their_q.view(torch.uint8)[:, 0].tolist() == [0x00] * 4
    assert same_bytes(q[:, 1:].contiguous(), their_q[:, 1:].contiguous())


@every_form
def test_the_parts_of_a_merged_layer_are_the_layers_that_they_are_there(form: str) -> None:
    layer = QKVParallelLinear(48, 8, 4, 2, bias=False)
    stored = {
        Slot("weight", part): drawn(rows, 48) * 10.0**number for number, (part, rows) in enumerate(layer.parts.items())
    }
    state = under_test.load(layer, form, stored).state_dict()
    expected = [theirs(stored[Slot("weight", part)], form) for _, part, _ in pieces(layer)]
    assert same_bytes(
        state["weight"], torch.cat([q.view(torch.uint8) for q, _ in expected]).view(state["weight"].dtype)
    )
    assert same_bytes(state["weight_scale"], torch.cat([scale for _, scale in expected]))
