"""A layer that emits FP8 makes its codes in one operator, and they are those of its result encoded afterwards."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from policyquant import build
from policyquant.errors import PolicyQuantError
from policyquant.kernels import dispatch
from policyquant.layers.activation import GeluAndMul, SiluAndMul
from policyquant.layers.norm import RMSNorm
from policyquant.layers.output import EmittingLayer
from policyquant.models.families import model_factory
from policyquant.policy.scheme import Quantization, Scheme
from policyquant.quantized_tensor import QuantizedTensor
from tests.kernels.device import DEVICE
from tests.layers.calls import Called
from tests.models.tiny_models import CONFIGS, tiny_model

FUSED = {
    "per token": Quantization("float8_e4m3fn", "token", scheme="dynamic"),
    "per token, bounded": Quantization("float8_e4m3fn", "token", scheme="dynamic", scale_ub=0.003),
    "per token, e5m2": Quantization("float8_e5m2", "token", scheme="dynamic"),
    "static": Quantization("float8_e4m3fn", "tensor", scheme="static", scale=0.02),
    "static, e5m2": Quantization("float8_e5m2", "tensor", scheme="static", scale=0.02),
}
PER_TENSOR = Quantization("float8_e4m3fn", "tensor", scheme="dynamic")
N = 40
LAYERS: Mapping[str, tuple[Callable[[], Any], int]] = {
    "silu_and_mul": (SiluAndMul, 1),
    "gelu_and_mul": (GeluAndMul, 1),
    "gelu_and_mul by tanh": (lambda: GeluAndMul("tanh"), 1),
    "rms_norm": (lambda: norm_of(N), 1),
    "rms_norm after a residual": (lambda: norm_of(N), 2),
}
layers = pytest.mark.parametrize("name", LAYERS)
outputs = pytest.mark.parametrize("output", FUSED.values(), ids=list(FUSED))
implementations = pytest.mark.parametrize("implementation", ["torch", "triton"])


def norm_of(size: int, dtype: torch.dtype = torch.bfloat16) -> RMSNorm:
    norm = RMSNorm(size, dtype=dtype)
    with torch.no_grad():
        norm.weight.add_(torch.arange(size) % 7 / 8)
    return norm


def emitting(name: str, output: Any) -> tuple[Any, tuple[torch.Tensor, ...]]:
    make, count = LAYERS[name]
    layer = make()
    layer.take_scheme(Scheme("none", output=output))
    torch.manual_seed(1)
    drawn = torch.randn(2, 2, 3, N).bfloat16() * 3
    return layer, drawn.unbind()[:count]


def unfused(layer: Any) -> Any:
    """The same layer, with an `emit` of its own, so that the result itself is computed."""
    apart = copy.deepcopy(layer)
    apart.emit = lambda x: EmittingLayer.emit(apart, x)
    return apart


def plain(layer: Any) -> Any:
    """The same layer without an output of its own."""
    result = copy.deepcopy(layer)
    result.take_scheme(Scheme("none"))
    return result


def first_of(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


def same(found: Any, expected: Any) -> bool:
    """Bit for bit."""
    if isinstance(found, tuple):
        return all(same(*pair) for pair in zip(found, expected, strict=True))
    if not isinstance(found, QuantizedTensor):
        return torch.equal(found, expected)
    assert isinstance(expected, QuantizedTensor)
    assert (found.granularity, found.dtype) == (expected.granularity, expected.dtype)
    codes = torch.equal(found.data.view(torch.uint8), expected.data.view(torch.uint8))
    return codes and found.data.dtype == expected.data.dtype and torch.equal(found.scale, expected.scale)


def launched(run: Callable[[], Any]) -> tuple[Any, dict[tuple[str, str], int]]:
    dispatch.launches.clear()
    return run(), dict(dispatch.launches)


@layers
@outputs
@implementations
def test_the_layer_is_one_launch_and_hands_on_what_two_would(
    implementation: str, output: Quantization, name: str
) -> None:
    layer, inputs = emitting(name, output)
    with torch.no_grad(), dispatch.force(implementation):
        found, launches = launched(lambda: layer(*inputs))
        expected, two = launched(lambda: unfused(layer)(*inputs))
    assert list(launches.values()) == [1]
    assert next(iter(launches))[1] == implementation
    assert sum(two.values()) == 2
    assert same(found, expected)


@layers
@outputs
def test_on_a_cpu_it_is_the_codes_of_what_torch_computes(output: Quantization, name: str) -> None:
    layer, inputs = emitting(name, output)
    with torch.no_grad():
        found, launches = launched(lambda: layer(*inputs))
        expected, apart = launched(lambda: unfused(layer)(*inputs))
    assert sum(launches.values()) == sum(apart.values()) == 1
    assert launches != apart
    assert same(found, expected)


@layers
@implementations
def test_one_scale_for_all_is_known_when_all_is_computed_so_that_is_encoded_afterwards(
    implementation: str, name: str
) -> None:
    layer, inputs = emitting(name, PER_TENSOR)
    with torch.no_grad(), dispatch.force(implementation):
        _, launches = launched(lambda: layer(*inputs))
    assert ("dynamic_scaled_fp8_quant", implementation) in launches
    assert sum(launches.values()) == 2


@layers
@pytest.mark.parametrize("output", [None, "float32"])
@implementations
def test_a_plain_result_comes_from_an_operator_where_one_is_asked_for(
    implementation: str, output: str | None, name: str
) -> None:
    layer, inputs = emitting(name, output)
    with torch.no_grad():
        expected, none = launched(lambda: layer(*inputs))
        with dispatch.force(implementation):
            found, launches = launched(lambda: layer(*inputs))
    assert none == {}
    assert list(launches.values()) == [1]
    if implementation == "torch":
        assert same(found, expected)
    torch.testing.assert_close(found, expected)


ON_A_GPU = {
    "silu_and_mul": ("silu_and_mul", "gated_activation"),
    "gelu_and_mul": ("gelu_and_mul", "gated_activation"),
    "gelu_and_mul by tanh": ("gelu_and_mul", "gated_activation"),
    "rms_norm": ("rms_norm", "rms_norm"),
    "rms_norm after a residual": ("fused_add_rms_norm", "fused_add_rms_norm"),
}


@layers
@pytest.mark.parametrize(
    ("output", "of_two"),
    [
        (None, ("{plain}",)),
        ("float32", ("{plain}",)),
        (FUSED["per token"], ("{fused}_per_token_fp8_quant",)),
        (FUSED["static"], ("{fused}_static_fp8_quant",)),
        (PER_TENSOR, ("{plain}", "dynamic_scaled_fp8_quant")),
    ],
    ids=str,
)
def test_on_a_gpu_every_layer_is_an_operator(output: Any, of_two: tuple[str, ...], name: str) -> None:
    by, encoding = ON_A_GPU[name]
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        layer, inputs = emitting(name, output)
        with Called() as called:
            result = layer(*inputs)
    assert called.names == [each.format(plain=by, fused=encoding) for each in of_two]
    first = first_of(result)
    assert first.device.type == "cuda"
    assert isinstance(first, QuantizedTensor) == isinstance(output, Quantization)


@layers
@pytest.mark.parametrize("output", [None, FUSED["per token"], FUSED["static"]], ids=str)
def test_where_a_gradient_is_asked_for_torch_computes(output: Any, name: str) -> None:
    layer, inputs = emitting(name, output)
    inputs = tuple(x.float().requires_grad_() for x in inputs)
    with dispatch.force("torch"):
        result, launches = launched(lambda: layer(*inputs))
        assert not [operator for operator, _ in launches if "norm" in operator or "mul" in operator]
        first = first_of(result)
        if output is None:
            first.sum().backward()
            assert all(x.grad is not None and x.grad.abs().sum() > 0 for x in inputs)
            return
        assert same(first.detach(), first_of(unfused(layer)(*inputs)).detach())
        with pytest.raises(PolicyQuantError, match="no gradient goes through activations that"):
            first.scale.sum().backward()


@layers
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own, at first use
def test_a_gradient_forward_is_not_lost(name: str) -> None:
    layer, inputs = emitting(name, None)
    layer = layer.float()
    inputs = tuple(x.float() for x in inputs)
    ones = tuple(torch.ones_like(x) for x in inputs)
    with torch.no_grad(), dispatch.force("torch"):
        _, along = torch.func.jvp(lambda *x: first_of(layer(*x)), inputs, ones)
        step = 1e-2
        ahead, behind = (first_of(layer(*(x + sign * step for x in inputs))) for sign in (1, -1))
    torch.testing.assert_close(along, (ahead - behind) / (2 * step), atol=5e-3, rtol=5e-3)


def test_the_residual_of_a_norm_that_emits_codes_has_its_gradient() -> None:
    norm, (x, residual) = emitting("rms_norm after a residual", FUSED["per token"])
    residual = residual.requires_grad_()
    _, total = norm(x, residual)
    total.sum().backward()
    assert torch.equal(residual.grad, torch.ones_like(residual))


@layers
@pytest.mark.parametrize("output", [None, *FUSED.values(), PER_TENSOR], ids=str)
def test_it_is_one_graph_for_torch_compile(output: Any, name: str) -> None:
    layer, inputs = emitting(name, output)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        assert same(compiled(*inputs), layer(*inputs))


def test_an_emit_of_a_subclass_is_heeded() -> None:
    class Noting(SiluAndMul):
        seen: list[torch.Tensor]

        def emit(self, x: torch.Tensor) -> torch.Tensor | QuantizedTensor:
            self.seen.append(x)
            return super().emit(x)

    layer = Noting()
    layer.seen = []
    layer.take_scheme(Scheme("none", output=FUSED["per token"]))
    x = torch.randn(2, 8)
    emitted = layer(x)
    assert torch.equal(layer.seen[0], SiluAndMul()(x))
    assert isinstance(emitted, QuantizedTensor)


def test_a_norm_of_a_subclass_is_heeded() -> None:
    class Shifted(RMSNorm):
        def _normalize(self, x: torch.Tensor) -> torch.Tensor:
            return super()._normalize(x) + 1

    x, output = torch.randn(2, 8), FUSED["per token"]
    layer, plain = Shifted(8), RMSNorm(8)
    layer.take_scheme(Scheme("none", output=output))
    with torch.no_grad(), dispatch.force("torch"):
        assert same(layer(x), EmittingLayer.emit(layer, plain(x) + 1))


@pytest.mark.parametrize(
    ("x", "residual"),
    [
        (torch.randn(3, 8), torch.randn(1, 8)),
        (torch.randn(3, 8).bfloat16(), torch.randn(3, 8)),
        (torch.randn(3, 8), torch.randn(3, 8).bfloat16()),
    ],
    ids=["broadcast", "a wider residual", "a narrower residual"],
)
@pytest.mark.parametrize("output", [None, FUSED["per token"]], ids=str)
def test_a_residual_unlike_x_is_added_as_torch_adds(x: torch.Tensor, residual: torch.Tensor, output: Any) -> None:
    norm = norm_of(8, torch.float32)
    norm.take_scheme(Scheme("none", output=output))
    with torch.no_grad(), dispatch.force("torch"):
        y, total = norm(x, residual)
        expected = norm(x + residual)
    assert torch.equal(total, x + residual)
    assert same(y, expected)


def test_a_weight_wider_than_x_decides_the_dtype_as_before() -> None:
    norm = norm_of(8, torch.float32)
    norm.take_scheme(Scheme("none", output=FUSED["per token"]))
    x = torch.randn(3, 8).bfloat16()
    with torch.no_grad():
        found, expected = norm(x), unfused(norm)(x)
    assert found.dtype == torch.float32
    assert same(found, expected)


def test_hooks_see_the_codes_that_are_handed_on() -> None:
    layer, inputs = emitting("rms_norm", FUSED["per token"])
    seen: list[Any] = []
    layer.register_forward_hook(lambda module, args, result: seen.append(result))
    with torch.no_grad():
        assert layer(*inputs) is seen[0]


def test_a_static_scale_is_written_once_for_all_calls() -> None:
    layer, inputs = emitting("silu_and_mul", FUSED["static"])
    with torch.inference_mode():
        first, second = layer(*inputs), layer(*inputs)
    assert first.scale.data_ptr() == second.scale.data_ptr()
    assert not first.scale.is_inference()
    with FakeTensorMode() as mode:
        fake = layer(mode.from_tensor(inputs[0]))
    assert type(fake.scale) is not torch.Tensor
    assert type(layer(*inputs).scale) is torch.Tensor


def test_a_static_scale_of_a_transform_does_not_outlive_it() -> None:
    layer, _ = emitting("silu_and_mul", Quantization("float8_e4m3fn", "tensor", scheme="static", scale=0.375))
    x = torch.randn(2, 8)
    torch.func.grad(lambda x: (layer(x), x.sum())[1])(x)
    assert layer(x).scale.tolist() == [0.375]


HANDED_ON = {
    "layers": [
        {"match": "decoder.*", "kind": ["linear"], "method": "fp8"},
        {"match": ["decoder.*.mlp.act", "decoder.*.input_norm", "decoder.*.post_attention_norm"], "output": "fp8"},
    ]
}


@pytest.fixture(scope="module")
def model() -> nn.Module:
    config = {**CONFIGS["llama"], "dtype": "bfloat16"}
    weights = {name: each.bfloat16() for name, each in tiny_model("llama").state_dict().items()}
    return build(model_factory(config), policy=HANDED_ON, source=weights)


def test_a_model_with_fused_outputs_has_the_logits_of_the_one_without(model: nn.Module) -> None:
    apart = copy.deepcopy(model)
    for name, module in apart.named_modules():
        if isinstance(module, (RMSNorm, SiluAndMul)):
            apart.set_submodule(name, unfused(module))
    ids = torch.tensor([[5, 7, 11, 13]])
    with torch.no_grad():
        fused, launches = launched(lambda: model(ids))
        logits, two = launched(lambda: apart(ids))
    assert launches["rms_norm_per_token_fp8_quant", "torch"] == 3
    assert launches["fused_add_rms_norm_per_token_fp8_quant", "torch"] == 3
    assert launches["gated_activation_per_token_fp8_quant", "torch"] == 3
    assert "rms_norm_per_token_fp8_quant" not in {operator for operator, _ in two}
    assert torch.equal(fused, logits)


def test_kernels_in_triton_give_that_models_logits(model: nn.Module) -> None:
    ids = torch.tensor([[5, 7, 11, 13]])
    with torch.no_grad():
        expected = model(ids)
        with dispatch.force("triton"):
            found, launches = launched(lambda: model(ids))
    assert launches["rms_norm_per_token_fp8_quant", "triton"] == 3
    assert launches["fused_add_rms_norm_per_token_fp8_quant", "triton"] == 3
    assert launches["gated_activation_per_token_fp8_quant", "triton"] == 3
    error = (found - expected).float().norm() / expected.float().norm()
    assert error < 0.01


def test_without_a_scale_that_is_known_the_error_says_so() -> None:
    layer, inputs = emitting("rms_norm", Quantization("float8_e4m3fn", "tensor", scheme="static"))
    with torch.no_grad(), pytest.raises(PolicyQuantError, match="has no scale"):
        layer(*inputs)


@pytest.mark.gpu
@layers
@pytest.mark.parametrize("output", [None, "float32", *FUSED.values(), PER_TENSOR], ids=str)
def test_a_gpu_gives_what_its_operators_give_one_after_the_other(output: Any, name: str) -> None:
    layer, inputs = emitting(name, output)
    there, copies = copy.deepcopy(layer).to(DEVICE), tuple(x.to(DEVICE) for x in inputs)
    with torch.no_grad():
        found = there(*copies)
        assert same(found, unfused(there)(*copies))
        near, expected = first_of(plain(there)(*copies)), first_of(plain(layer)(*inputs))
    torch.testing.assert_close(near.cpu(), expected, rtol=2**-6, atol=2**-7)
