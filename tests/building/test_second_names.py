"""A module that stands under two names in the tree: it is decided once, and loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from policyquant import build
from policyquant.errors import BuildError
from tests.building.stored_forms import State, save


class Shared(nn.Module):
    """One block that is run twice, as ALBERT does, each time under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16))
        self.second = self.first
        self.out = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.out(self.second(self.first(x)))
        return result


@pytest.fixture
def state() -> State:
    torch.manual_seed(0)
    return dict(Shared().state_dict())


def under(state: State, *names: str) -> State:
    return {name: tensor for name, tensor in state.items() if name.startswith(("out.", *names))}


@pytest.mark.parametrize("names", [("first.", "second."), ("first.",), ("second.",)])
def test_the_source_may_have_either_name_or_both(tmp_path: Path, state: State, names: tuple[str, ...]) -> None:
    model = build(Shared, policy=None, source=save(tmp_path, under(state, *names), None))
    assert model.get_submodule("first") is model.get_submodule("second")
    held = model.state_dict()
    assert held.keys() == state.keys()
    for name, tensor in held.items():
        assert torch.equal(tensor, state[name]), name


@pytest.mark.parametrize(
    ("names", "layers"),
    [
        (("first.", "second."), {"first.0": "fp8", "second.0": "fp8"}),
        (("first.", "second."), {"*.0": "fp8"}),
        (("first.",), {"first.0": "fp8"}),
        (("second.",), {"second.0": "fp8"}),
        # No rule decides about the second name.
        (("first.", "second."), {"first.0": "fp8"}),
    ],
)
def test_one_decision_holds_under_both_names(
    tmp_path: Path, state: State, names: tuple[str, ...], layers: dict[str, str]
) -> None:
    model = build(Shared, policy={"layers": layers}, source=save(tmp_path, under(state, *names), None))
    assert model.state_dict()["second.0.weight"].dtype == torch.float8_e4m3fn
    assert model.state_dict()["second.2.weight"].dtype == torch.float32
    assert model(torch.randn(3, 16)).shape == (3, 8)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            {"first.0": "fp8", "second.0": "int8_weight_only"},
            r"'first\.0' and 'second\.0' are one module under two names, .*: fp8 .*, but int8_weight_only",
        ),
        (
            {"*.2": "fp8", "second.2": "none"},
            r"'first\.2' and 'second\.2' are one module under two names, .* by '\*\.2' .*, but none by 'second\.2'",
        ),
        ({"second.0": "fp8"}, r"'first\.0' and 'second\.0' are one module under two names, .*: none, but fp8 .*"),
    ],
)
def test_two_decisions_are_an_error_that_names_both(
    tmp_path: Path, state: State, layers: dict[str, str], message: str
) -> None:
    with pytest.raises(BuildError, match=message):
        build(Shared, policy={"layers": layers}, source=save(tmp_path, state, None))


def test_without_a_source_the_first_name_is_the_layers() -> None:
    model = build(Shared, policy={"layers": {"first.0": "fp8"}})
    assert model.state_dict()["second.0.weight"].dtype == torch.float8_e4m3fn
    with pytest.raises(BuildError, match=r"PQ101: .*second\.0"):
        build(Shared, policy={"layers": {"second.0": "fp8"}})
