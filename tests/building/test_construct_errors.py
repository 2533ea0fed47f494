"""Constructions that cannot work name the line, the class or the attribute, and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn

from policyquant import build
from policyquant.building.construct import construct, make
from policyquant.errors import BuildError
from policyquant.layers.base import PolicyLayer


def line_of(function: Callable[..., object], text: str) -> str:
    """`file:line` of the line with this text in a function's source."""
    lines, first = inspect.getsourcelines(function)
    return f"{inspect.getsourcefile(function)}:{first + next(i for i, line in enumerate(lines) if text in line)}"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.inner = nn.Linear(2, 2)


def in_a_list() -> nn.Module:
    root = nn.Sequential(nn.Linear(2, 2))
    root.blocks = [Block() for _ in range(3)]  # type: ignore[assignment]
    return root


def in_a_closure() -> nn.Module:
    hidden = nn.Linear(2, 2)
    root = nn.Sequential(nn.Linear(2, 2))
    root.register_forward_hook(lambda module, args, output: hidden(output))
    return root


@pytest.mark.parametrize("run", [construct, make])
@pytest.mark.parametrize(
    ("factory", "text", "named"), [(in_a_list, "Block()", "Block (3 of"), (in_a_closure, "hidden =", "Linear made")]
)
def test_a_layer_outside_the_tree_is_named_with_the_line_that_made_it(
    run: Callable[[Callable[[], nn.Module]], nn.Module], factory: Callable[[], nn.Module], text: str, named: str
) -> None:
    with pytest.raises(BuildError, match=r"nn\.ModuleList") as caught:
        run(factory)
    message = str(caught.value)
    assert named in message
    assert line_of(factory, text) in message
    assert message.count("\n") == 0


def test_a_layer_in_a_list_is_an_error_without_a_source_too() -> None:
    with pytest.raises(BuildError, match=r"Block \(3 of them\) made at .* is not part of the model"):
        build(in_a_list, policy={"layers": {"*": "fp8"}})


def test_what_was_made_before_the_factory_ran_is_not_looked_for() -> None:
    """Only the tree of a model that was made in advance is known; what else it refers to may be meant so."""
    model = in_a_list()
    assert build(lambda: model, policy={"layers": {"0": "fp8"}}) is model
    assert next(model.blocks[0].parameters()).dtype == torch.float32  # type: ignore[index,union-attr]


@pytest.mark.parametrize("run", [construct, make])
def test_a_layer_that_only_a_cycle_keeps_is_no_problem(run: Callable[[Callable[[], nn.Module]], nn.Module]) -> None:
    def factory() -> nn.Module:
        dropped = nn.Linear(2, 2)
        dropped.itself = [dropped]  # type: ignore[assignment]
        return nn.Linear(2, 2)

    assert isinstance(run(factory), nn.Linear)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_a_lazy_layer_is_refused_by_name() -> None:
    with pytest.raises(BuildError, match=r"LazyLinear made at .*test_construct_errors\.py"):
        construct(lambda: nn.Sequential(nn.LazyLinear(4)))


@pytest.mark.parametrize(
    ("keep", "named"),
    [
        (lambda m: setattr(m, "scale", m.weight.detach().std()), "'scale'"),
        (lambda m: setattr(m, "scales", [m.weight.detach().std()]), "'scales[0]'"),
        (lambda m: setattr(m, "scales", {"a": m.weight.t()}), "\"scales['a']\""),
        (lambda m: m.register_buffer("norm", m.weight.detach().norm()), "buffer 'norm'"),
    ],
)
def test_a_tensor_computed_from_a_parameter_is_named(keep: Callable[[nn.Module], None], named: str) -> None:
    def factory() -> nn.Module:
        layer = nn.Linear(2, 2)
        keep(layer)
        return nn.Sequential(nn.ReLU(), layer)

    with pytest.raises(BuildError, match="Linear '1': ") as caught:
        construct(factory)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "need",
    [
        lambda weight: weight.sum().item(),
        lambda weight: 1 if weight.sum() > 0 else 2,
        lambda weight: weight.tolist(),
        lambda weight: weight.detach().numpy(),
        lambda weight: torch.ones(2, 2).copy_(weight.detach()),
        lambda weight: torch.ones(2, 2) + weight,
        lambda weight: torch.ones(2, 2) @ weight,
        lambda weight: weight.nonzero(),
        lambda weight: weight.cpu(),
        lambda weight: setattr(weight, "data", torch.ones(2, 2)),
    ],
)
def test_a_factory_that_needs_values_is_told_its_line(need: Callable[[torch.Tensor], object]) -> None:
    def factory() -> nn.Module:
        layer = nn.Linear(2, 2)
        need(layer.weight)
        return layer

    with pytest.raises(BuildError, match=r"test_construct_errors\.py:\d+: `.*needs the values") as caught:
        construct(factory)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("error", [ValueError("no"), RuntimeError("no such metadata"), KeyError("meta tensor")])
def test_other_exceptions_pass_unchanged(error: Exception) -> None:
    def factory() -> nn.Module:
        raise error

    with pytest.raises(type(error)) as caught:
        construct(factory)
    assert caught.value is error


def test_a_factory_that_makes_no_module_is_refused() -> None:
    with pytest.raises(BuildError, match=r"returned dict, expected an nn\.Module"):
        construct(dict)  # type: ignore[arg-type]


def test_layers_get_their_names_from_the_tree() -> None:
    root = construct(lambda: nn.ModuleDict({"a": PolicyLayer(), "b": nn.Sequential(PolicyLayer(prefix="b.0"))}))
    assert [layer.layer_name for layer in root.modules() if isinstance(layer, PolicyLayer)] == ["a", "b.0"]


def test_a_prefix_that_is_not_the_name_is_refused_with_both() -> None:
    with pytest.raises(BuildError, match=r"prefix='up_proj', but in the tree it is 'down_proj'"):
        construct(lambda: nn.ModuleDict({"down_proj": PolicyLayer(prefix="up_proj")}))


def test_all_problems_come_at_once() -> None:
    def factory() -> nn.Module:
        root = in_a_list()
        root.late = root[0].weight.t()  # type: ignore[index]
        root.wrong = PolicyLayer(prefix="other")
        return root

    with pytest.raises(BuildError) as caught:
        construct(factory)
    assert len(str(caught.value).splitlines()) == 3
