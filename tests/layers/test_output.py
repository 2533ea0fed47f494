"""What a layer hands on: untouched, in a plain dtype, or as codes with their scales."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from policyquant.errors import PolicyQuantError  # noqa: E402
from policyquant.layers.activation import SiluAndMul  # noqa: E402
from policyquant.layers.output import quantize_output  # noqa: E402
from policyquant.policy.scheme import Quantization, Scheme  # noqa: E402
from policyquant.quantized_tensor import QuantizedTensor  # noqa: E402

FP8 = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


def emitted(x: torch.Tensor, output: Quantization) -> QuantizedTensor:
    result = quantize_output(x, output)
    assert isinstance(result, QuantizedTensor)
    return result


def test_without_an_output_the_tensor_itself_is_handed_on() -> None:
    x = torch.randn(2, 4)
    assert quantize_output(x, None) is x


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_a_plain_dtype_converts(name: str) -> None:
    x = torch.randn(2, 4)
    assert torch.equal(quantize_output(x, name), x.to(getattr(torch, name)))


@pytest.mark.parametrize("name", FP8)
def test_a_dynamic_scale_per_token_takes_each_row_to_the_end_of_the_range(name: str) -> None:
    x = torch.randn(2, 3, 16, dtype=torch.bfloat16)
    result = emitted(x, Quantization(name, "token", scheme="dynamic"))
    assert result.granularity == "token"
    assert result.dtype == torch.bfloat16
    assert result.data.dtype == getattr(torch, name)
    assert result.data.float().abs().amax(-1).eq(FP8[name]).all()
    torch.testing.assert_close(result.scale, x.float().abs().amax(-1, keepdim=True) / FP8[name])


@pytest.mark.parametrize("name", FP8)
def test_a_dynamic_scale_per_tensor_takes_the_largest_element_to_the_end_of_the_range(name: str) -> None:
    x = torch.randn(2, 3, 16)
    result = emitted(x, Quantization(name, "tensor", scheme="dynamic"))
    assert result.granularity == "tensor"
    assert result.scale.shape == (1,)
    torch.testing.assert_close(result.scale[0], x.abs().amax() / FP8[name])


@pytest.mark.parametrize("granularity", ["token", "tensor"])
def test_a_dynamic_scale_stays_under_its_bound(granularity: str) -> None:
    x = torch.full((2, 4), 448.0)
    result = emitted(x, Quantization("float8_e4m3fn", granularity, scheme="dynamic", scale_ub=0.5))
    assert result.scale.eq(0.5).all()


def test_a_static_scale_is_the_one_in_the_policy() -> None:
    x = torch.tensor([[0.0, 1.0, -2.0, 1000.0]])
    result = emitted(x, Quantization("float8_e4m3fn", "tensor", scheme="static", scale=0.25))
    assert result.scale.tolist() == [0.25]
    assert result.data.float().tolist() == [[0.0, 4.0, -8.0, 448.0]]


def test_a_static_scale_that_nothing_told_is_refused() -> None:
    with pytest.raises(PolicyQuantError, match="has no scale; build and load_weights take it from the input_scale"):
        emitted(torch.ones(1, 4), Quantization("float8_e4m3fn", "tensor", scheme="static"))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (Quantization("float8_e4m3fn", "group", group=128, scheme="dynamic"), "per group; expected .* token or tensor"),
        (Quantization("float8_e4m3fn", "token", scheme="static", scale=1.0), "takes granularity tensor, found token"),
        (Quantization("float8_e4m3", "token", scheme="dynamic"), "did you mean 'float8_e4m3fn'"),
        ("bfloat61", "did you mean 'bfloat16'"),
    ],
)
def test_an_output_that_cannot_be_is_refused_when_the_plan_gives_it_and_the_layer_is_named(
    output: str | Quantization, message: str
) -> None:
    class Config:
        def scheme_for(self, layer: torch.nn.Module, name: str) -> Scheme:
            return Scheme("none", output=output)

        def get_quant_method(self, layer: torch.nn.Module, name: str) -> None:
            return None

    with pytest.raises(PolicyQuantError, match=rf"^model\.act: .*{message}"):
        SiluAndMul(quant_config=Config(), prefix="model.act")
    with pytest.raises(PolicyQuantError, match=message):
        quantize_output(torch.randn(2, 4), output)
