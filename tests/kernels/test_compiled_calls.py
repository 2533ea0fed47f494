"""Every operator inside torch.compile, and with values that nobody may ask for."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import pytest
import torch

from policyquant.kernels import cpu, dispatch
from policyquant.kernels.calls import Described, call

OPERATORS = sorted(dispatch.operators())
PLAIN = {
    name: function
    for module in pkgutil.iter_modules(cpu.__path__)
    for name, function in vars(import_module(f"policyquant.kernels.cpu.{module.name}")).items()
    if name in OPERATORS
}


def inputs(operator: str, m: int, device: str = "cpu") -> tuple[Any, ...]:
    scales = "block" if operator == "block_scaled_mm" else "channel"
    sizes = {"n": 64, "k": 96, "experts": 3, "heads": 2, "head_dim": 16, "group": 32}
    return call(operator, Described(m=m, device=device, scales=scales, **sizes)).inputs


def results(made: Any) -> tuple[torch.Tensor, ...]:
    return () if made is None else made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_is_compiled_without_a_break(operator: str) -> None:
    function = getattr(torch.ops.policyquant, operator).default
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for m in (3, 5):  # With the second number of rows the graph is made for any.
        given = inputs(operator, m)
        expected = results(function(*given))
        found = results(compiled(*given))
        assert len(found) == len(expected)
        for each, wanted in zip(found, expected, strict=True):
            assert each.stride() == wanted.stride()
            assert torch.equal(each.contiguous().view(torch.uint8), wanted.contiguous().view(torch.uint8))


@pytest.mark.parametrize("operator", OPERATORS)
def test_plain_torch_waits_for_no_value(operator: str) -> None:
    """On a GPU a value that Python asks for would be waited for, and could not be captured in a graph."""
    made = results(PLAIN[operator](*inputs(operator, 5, "meta")))
    assert all(each.is_meta for each in made)


def test_every_operator_has_its_plain_torch_under_its_name() -> None:
    assert sorted(PLAIN) == OPERATORS
