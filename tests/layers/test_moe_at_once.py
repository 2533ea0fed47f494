"""A mixture of experts that is computed at once is the same as layer by layer, and needs no values to be compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from policyquant.kernels import dispatch, ops
from policyquant.kernels.machine import Machine
from policyquant.layers.activation import SiluAndMul
from policyquant.layers.moe import ExpertsLinear, FusedMoE
from policyquant.methods import fp8
from policyquant.methods.registry import method_for
from policyquant.policy.scheme import Quantization, Scheme
from policyquant.quantized_tensor import QuantizedTensor
from tests.methods.layers_under_test import FORMS, load, scheme_of, stored_tensors

EXPERTS, HIDDEN, INNER = 6, 40, 24
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
CODES = Quantization("float8_e4m3fn", "token", "dynamic")
AT_ONCE = ["fp8", "fp8 e5m2", "fp8 scale_ub", "fp8 static from the policy", "fp8 static from the checkpoint"]
LAYER_BY_LAYER = [form for form in FORMS if form not in AT_ONCE]


def load_experts(layer: Any, form: str) -> None:
    """Each expert's weights are a little larger than those of the one before."""
    stored = stored_tensors(layer, form)
    weights = [slot for slot in stored if slot.suffix == "weight"]
    generator = torch.Generator().manual_seed(0)
    for number, slot in enumerate(weights):
        values = torch.randn(stored[slot].shape, generator=generator) * 0.1 * 1.1**number
        stored[slot] = values.to(layer.params_dtype)
    load(layer, form, stored)


def _hand_on(layer: Any, output: Any) -> None:
    """Let the layer's results be as a plan's `output` says."""
    layer.note_method(type(layer.quant_method)(replace(layer.scheme, output=output)))


def mixture(form: str, dtype: torch.dtype = torch.bfloat16, top_k: int = 2, **arguments: Any) -> FusedMoE:
    moe = FusedMoE(EXPERTS, top_k, HIDDEN, INNER, dtype=dtype, **arguments)
    for layer in (moe.gate_up_proj, moe.down_proj):
        load_experts(layer, form)
    return moe


def inputs(*tokens: int, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*(tokens or (7,)), HIDDEN, generator=generator)
    return x.to(dtype), torch.randn(*x.shape[:-1], EXPERTS, generator=generator).to(dtype)


def runs() -> int:
    """How many mixtures were computed at once."""
    return sum(count for (operator, _), count in dispatch.launches.items() if operator == "fused_moe")


def assert_the_same_at_once(moe: FusedMoE, *given: Any) -> None:
    layer_by_layer, before = moe(*given), runs()
    with dispatch.force("torch"):
        at_once = moe(*given)
    assert runs() == before + 1
    assert at_once.dtype == layer_by_layer.dtype
    assert torch.equal(at_once, layer_by_layer)


def assert_layer_by_layer(moe: FusedMoE, *given: Any) -> None:
    before = runs()
    with dispatch.force("torch"):
        forced = moe(*given)
    assert runs() == before
    assert torch.equal(forced, moe(*given))


@pytest.mark.parametrize("form", AT_ONCE)
@pytest.mark.parametrize("tokens", [(7,), (2, 3), (1,), (0,)])
@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_at_once_is_bit_for_bit_layer_by_layer(form: str, tokens: tuple[int, ...], dtype: torch.dtype) -> None:
    assert_the_same_at_once(mixture(form, dtype), *inputs(*tokens, dtype=dtype))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("top_k", [1, EXPERTS])
@torch.no_grad()
def test_so_it_is_with_every_way_to_choose(scoring: str, top_k: int) -> None:
    assert_the_same_at_once(mixture("fp8", top_k=top_k, scoring=scoring, renormalize=False), *inputs())


@torch.no_grad()
def test_shared_experts_are_added_to_it() -> None:
    assert_the_same_at_once(mixture("fp8", shared_experts=nn.Linear(HIDDEN, HIDDEN, dtype=torch.bfloat16)), *inputs())


@torch.no_grad()
def test_results_have_the_dtype_that_the_plan_says() -> None:
    moe = mixture("fp8")
    _hand_on(moe.gate_up_proj, "float32")
    _hand_on(moe.down_proj, "float32")
    assert_the_same_at_once(moe, *inputs())
    assert moe(*inputs()).dtype == torch.float32


@pytest.mark.parametrize("form", ["fp8", "fp8 static from the checkpoint", "fp8 e5m2"])
@pytest.mark.parametrize("granularity", ["token", "tensor"])
@torch.no_grad()
def test_codes_that_arrive_are_read_as_layers_read_them(form: str, granularity: Any) -> None:
    x, logits = inputs()
    encode = ops.per_token_scaled_fp8_quant if granularity == "token" else ops.dynamic_scaled_fp8_quant
    assert_the_same_at_once(mixture(form), QuantizedTensor(*encode(x), granularity, x.dtype), logits)


@pytest.mark.gpu
@pytest.mark.parametrize("form", AT_ONCE)
@torch.no_grad()
def test_triton_gives_what_plain_torch_gives(form: str) -> None:
    moe, given = mixture(form, torch.float32), inputs(dtype=torch.float32)
    before = dispatch.launches["fused_moe", "triton"]
    with dispatch.force("triton"):
        found = moe(*given)
    assert dispatch.launches["fused_moe", "triton"] == before + 1
    expected = moe(*given)
    # A sum that is rounded otherwise may fall on the other side of a code's edge.
    assert (found - expected).norm() <= 1e-3 * expected.norm()


@pytest.mark.parametrize("form", LAYER_BY_LAYER)
@torch.no_grad()
def test_what_cannot_be_computed_at_once_goes_layer_by_layer(form: str) -> None:
    assert_layer_by_layer(mixture(form), *inputs())


def _with_a_hook(moe: FusedMoE) -> None:
    moe.act.register_forward_hook(lambda *_: None)


def _with_a_hook_before(moe: FusedMoE) -> None:
    moe.down_proj.register_forward_pre_hook(lambda *_: None)


def _with_an_activation_of_its_own(moe: FusedMoE) -> None:
    class Own(SiluAndMul):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x)

    moe.act = Own()


def _with_a_forward_in_place_of_its_own(moe: FusedMoE) -> None:
    moe.gate_up_proj.forward = moe.gate_up_proj.forward  # type: ignore[method-assign]


def _with_codes_between(moe: FusedMoE) -> None:
    moe.act.take_scheme(Scheme("none", output=CODES))


def _with_another_dtype_between(moe: FusedMoE) -> None:
    moe.act.take_scheme(Scheme("none", output="float32"))


def _with_another_dtype_above(moe: FusedMoE) -> None:
    _hand_on(moe.gate_up_proj, "float32")


def _with_biases(moe: FusedMoE) -> None:
    moe.down_proj = ExpertsLinear(EXPERTS, INNER, {"down_proj": HIDDEN}, bias=True, dtype=torch.bfloat16)
    load_experts(moe.down_proj, "fp8")


def _with_another_method_below(moe: FusedMoE) -> None:
    load_experts(moe.down_proj, "int8_weight_only")


def _with_another_format_below(moe: FusedMoE) -> None:
    load_experts(moe.down_proj, "fp8 e5m2")


def _with_static_scales_below(moe: FusedMoE) -> None:
    load_experts(moe.down_proj, "fp8 static from the policy")


def _with_a_bound_below(moe: FusedMoE) -> None:
    load_experts(moe.down_proj, "fp8 scale_ub")


@pytest.mark.parametrize(
    "change",
    [
        _with_a_hook,
        _with_a_hook_before,
        _with_an_activation_of_its_own,
        _with_a_forward_in_place_of_its_own,
        _with_codes_between,
        _with_another_dtype_between,
        _with_another_dtype_above,
        _with_biases,
        _with_another_method_below,
        _with_another_format_below,
        _with_static_scales_below,
        _with_a_bound_below,
    ],
)
@torch.no_grad()
def test_layers_that_are_more_than_one_operator_are_called(change: Any) -> None:
    moe = mixture("fp8")
    change(moe)
    assert_layer_by_layer(moe, *inputs())


@torch.no_grad()
def test_a_hook_of_all_modules_sees_the_layers() -> None:
    moe, seen = mixture("fp8"), []
    hook = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        with dispatch.force("torch"):
            moe(*inputs())
    finally:
        hook.remove()
    assert seen == [moe.gate_up_proj, moe.act, moe.down_proj, moe]


def test_what_is_trained_goes_layer_by_layer() -> None:
    moe, (x, logits) = mixture("fp8", torch.float32), inputs(dtype=torch.float32)
    gradients = []
    for forced in (None, "torch"):
        given = x.clone().requires_grad_(), logits.clone().requires_grad_()
        before = runs()
        with dispatch.force(**({} if forced is None else {"name": forced})):
            moe(*given).sum().backward()
        assert runs() == before
        gradients.append([each.grad for each in given])
    assert all((each != 0).any() for each in gradients[0])
    torch.testing.assert_close(gradients[1], gradients[0])


@torch.no_grad()
def test_what_is_forced_of_other_operators_leaves_a_mixture_as_it_is() -> None:
    moe, given = mixture("fp8"), inputs()
    before = runs()
    with dispatch.force(scaled_mm="torch"):
        moe(*given)
    assert runs() == before


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_shapes_come_without_values(form: str) -> None:
    moe, (x, logits) = mixture(form), inputs(2, 3)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = moe(mode.from_tensor(x), mode.from_tensor(logits))
    assert (fake.shape, fake.dtype) == (x.shape, x.dtype)
    meta = moe.to("meta")(x.to("meta"), logits.to("meta"))
    assert (meta.shape, meta.dtype, meta.is_meta) == (x.shape, x.dtype, True)


@pytest.mark.parametrize("form", AT_ONCE)
@torch.no_grad()
def test_shapes_on_a_gpu_come_without_a_gpu(form: str) -> None:
    with FakeTensorMode():
        moe = FusedMoE(EXPERTS, 2, HIDDEN, INNER, dtype=torch.bfloat16, device="meta")
        for layer in (moe.gate_up_proj, moe.down_proj):
            layer.take_method(method_for(scheme_of(form)), torch.device("cuda"))
        x, logits = (torch.empty(5, size, dtype=torch.bfloat16, device="cuda") for size in (HIDDEN, EXPERTS))
        y = moe(x, logits)
    assert (y.shape, y.dtype, y.device.type) == (x.shape, x.dtype, "cuda")


@pytest.mark.parametrize("form", ["none", "fp8"])
@torch.no_grad()
def test_a_mixture_compiles_into_one_graph(form: str) -> None:
    torch._dynamo.reset()
    moe, given = mixture(form), inputs()
    compiled = torch.compile(moe, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*given), moe(*given))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's, of its own doing
@pytest.mark.parametrize("form", FORMS)
def test_its_gradients_are_compiled_with_it_for_any_number_of_tokens(form: str) -> None:
    torch._dynamo.reset()
    moe = mixture(form, torch.float32)
    compiled = torch.compile(moe, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for tokens in (7, 9, 1, 0):
            given = inputs(tokens, dtype=torch.float32)
            torch.testing.assert_close(compiled(*given), moe(*given))
    gradients = []
    for run in (moe, compiled):
        x, logits = (each.requires_grad_() for each in inputs(dtype=torch.float32))
        run(x, logits).sum().backward()
        gradients.append((x.grad, logits.grad))
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_an_exported_mixture_chooses_by_what_it_is_given(form: str) -> None:
    moe, (x, logits) = mixture(form, torch.float32), inputs(dtype=torch.float32)
    exported = torch.export.export(moe, (x, logits), strict=False).module()
    others = x.flip(0), logits.flip(1)
    torch.testing.assert_close(exported(*others), moe(*others))


@pytest.mark.parametrize(
    ("on", "found"),
    [
        (Machine("cuda", (9, 0), packages=frozenset({"triton"})), True),
        (Machine("cuda", (9, 0)), False),
        (Machine("cuda", (8, 0), packages=frozenset({"triton"})), False),
    ],
)
def test_a_gpu_without_a_kernel_for_it_goes_layer_by_layer(on: Machine, found: bool) -> None:
    assert fp8._has_kernel(on) == found
