"""What goes on around a build, in other threads or in this one, changes nothing about it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import build
from policyquant.building.construct import construct
from policyquant.errors import BuildError
from tests.building.test_build import Tied

POLICY = {"layers": {"blocks.*": "fp8"}}


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return Tied().state_dict()


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: bytes(tensor.contiguous().view(torch.uint8).numpy()) for name, tensor in model.state_dict().items()}


def in_threads(*jobs: Callable[[], None]) -> None:
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_two_builds_at_once_give_what_each_gives_alone() -> None:
    barrier = threading.Barrier(2, timeout=20)
    built: dict[int, nn.Module] = {}

    def job(seed: int) -> Callable[[], None]:
        def factory() -> nn.Module:
            barrier.wait()
            model = Tied()
            barrier.wait()
            return model

        state = weights(seed)
        return lambda: built.update({seed: build(factory, policy=POLICY, source=state)})

    in_threads(job(1), job(2))
    for seed, model in built.items():
        assert bits(model) == bits(build(Tied, policy=POLICY, source=weights(seed)))
    assert len(built) == 2


def test_a_build_that_fails_in_the_middle_leaves_another_thread_and_its_own_alone() -> None:
    inside, failed = threading.Event(), threading.Event()
    outcomes: dict[str, Any] = {}
    state = weights()

    def failing() -> None:
        def factory() -> nn.Module:
            nn.Linear(2, 2)
            assert inside.wait(20)
            raise KeyError("middle")

        try:
            build(factory, policy=POLICY, source=state)
        except KeyError as error:
            outcomes["error"] = error
        outcomes["after"] = nn.Linear(2, 2).weight.is_meta
        failed.set()

    def working() -> None:
        def factory() -> nn.Module:
            inside.set()
            assert failed.wait(20)
            return Tied()

        outcomes["built"] = build(factory, policy=POLICY, source=state)

    in_threads(failing, working)
    assert outcomes["error"].args == ("middle",)
    assert outcomes["after"] is False
    assert bits(outcomes["built"]) == bits(build(Tied, policy=POLICY, source=state))


def test_a_model_built_inside_another_factory_has_its_own_values() -> None:
    inner = weights(1)
    teachers: list[nn.Module] = []

    def factory() -> nn.Module:
        teachers.append(build(Tied, policy=POLICY, source=inner))
        return Tied()

    student = build(factory, policy={"layers": {"blocks.0.*": "int8_weight_only"}}, source=weights(2))
    assert bits(teachers[0]) == bits(build(Tied, policy=POLICY, source=inner))
    assert student.state_dict()["blocks.0.0.weight"].dtype == torch.int8
    assert student.state_dict()["blocks.1.0.weight"].dtype == torch.float32


def test_a_model_without_a_source_built_inside_another_factory_keeps_its_values() -> None:
    teachers: list[nn.Module] = []

    def factory() -> nn.Module:
        teachers.append(build(lambda: nn.Sequential(nn.Linear(4, 4)), policy={"default": "fp8"}))
        return Tied()

    build(factory, policy=POLICY, source=weights())
    assert not any(tensor.is_meta for tensor in teachers[0].state_dict().values())


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "policy",
    [
        POLICY,
        {"layers": {"blocks.*": {"method": "fp8", "weight": {"granularity": "tensor"}}}},
        {"layers": {"blocks.*": "int8_weight_only"}},
        {"default": "none"},
    ],
)
@pytest.mark.parametrize(
    "around",
    [
        lambda: torch.device("meta"),
        lambda: default_dtype(torch.bfloat16),
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
    ids=["meta", "bfloat16", "no_grad", "inference_mode", "autocast"],
)
def test_a_build_inside_a_context_gives_what_it_gives_outside(
    around: Callable[[], AbstractContextManager[Any]], policy: Any
) -> None:
    state = weights()
    with around():
        model = build(Tied, policy=policy, source=state)
    expected = build(Tied, policy=policy, source=state)
    assert bits(model) == bits(expected)
    x, block = torch.randn(3, 8), "blocks.1"
    with torch.no_grad():
        assert torch.equal(model.get_submodule(block)(x), expected.get_submodule(block)(x))


def test_a_build_without_a_source_is_not_put_on_meta_either() -> None:
    with torch.device("meta"):
        model = build(Tied, policy=POLICY)
    assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


class Initialised(nn.Module):
    """Calls all that `torch.nn.init` offers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)
        self.layer = nn.utils.skip_init(nn.Linear, 8, 8)
        self.norm = nn.LayerNorm(8)
        init = nn.init
        weight = self.layer.weight
        for fill in (
            init.uniform_,
            init.normal_,
            init.trunc_normal_,
            init.ones_,
            init.zeros_,
            init.eye_,
            init.xavier_uniform_,
            init.xavier_normal_,
            init.kaiming_uniform_,
            init.kaiming_normal_,
            init.orthogonal_,
            lambda tensor: init.sparse_(tensor, sparsity=0.5),
            lambda tensor: init.constant_(tensor, 0.3),
        ):
            fill(weight)
        init.dirac_(self.conv.weight)
        with torch.no_grad():
            weight.mul_(0.5).clamp_(-1, 1)
            weight[0] = 0
            self.layer.bias.data.fill_(0.1)
        self.gain = init.calculate_gain("relu")


def test_a_factory_full_of_initialisation_is_built() -> None:
    state = Initialised().state_dict()
    model = build(Initialised, policy={"layers": {"layer": "fp8"}}, source=state)
    assert model.state_dict()["layer.weight"].dtype == torch.float8_e4m3fn
    assert torch.equal(model.state_dict()["conv.weight"], state["conv.weight"])


def test_skip_init_costs_no_values() -> None:
    root = construct(lambda: nn.utils.skip_init(nn.Linear, 8, 8))
    assert list(root.state_dict()) == ["weight", "bias"]
    state = nn.Linear(8, 8).state_dict()
    model = build(lambda: nn.utils.skip_init(nn.Linear, 8, 8), policy=None, source=state)
    assert torch.equal(model.state_dict()["weight"], state["weight"])


def test_what_puts_parameters_on_meta_while_they_are_loaded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        original(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = nn.Parameter(parameter.detach().to("meta"))

    state = weights()
    monkeypatch.setattr(nn.Module, "register_parameter", on_meta)
    with pytest.raises(BuildError, match="init_empty_weights"):
        build(Tied, policy=POLICY, source=state)


@pytest.mark.slow
def test_accelerates_empty_weights_never_make_a_model_without_values() -> None:
    accelerate = pytest.importorskip("accelerate")
    state = weights()
    with accelerate.init_empty_weights(), pytest.raises(BuildError, match="init_empty_weights"):
        build(Tied, policy=POLICY, source=state)
    with accelerate.init_empty_weights(include_buffers=True):
        assert bits(build(Tied, policy=POLICY, source=state)) == bits(build(Tied, policy=POLICY, source=state))

    def factory() -> nn.Module:
        with accelerate.init_empty_weights():
            return Tied()

    assert bits(build(factory, policy=POLICY, source=state)) == bits(build(Tied, policy=POLICY, source=state))


def test_without_a_source_a_model_that_cannot_be_quantized_is_as_it_was() -> None:
    model = Tied()
    with torch.no_grad():
        model.get_parameter("blocks.1.2.weight")[0, 0] = float("inf")
    before = dict(model.named_parameters())
    with pytest.raises(Exception, match=r"'blocks\.1\.2\.weight' holds inf"):
        build(lambda: model, policy=POLICY)
    assert [type(module) for module in model.get_submodule("blocks.0")] == [nn.Linear, nn.GELU, nn.Linear]
    assert {name: id(each) for name, each in model.named_parameters()} == {n: id(p) for n, p in before.items()}


def test_nothing_stays_switched_on() -> None:
    build(Tied, policy=POLICY, source=weights())
    assert torch.get_default_device().type == "cpu"
    assert not nn.Linear(2, 2).weight.is_meta
