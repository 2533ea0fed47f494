"""One graph of torch.compile holds for any number of rows, for every operator by its Python function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from policyquant.kernels import ops
from tests.kernels.examples import FUNCTIONS, OPERATORS, bits, example, examples, results

CALLS = [(name, how) for name, calls in FUNCTIONS.items() for how in calls]


def assert_one_graph(run: Callable[..., Any], inputs: Callable[[int], tuple[Any, ...]]) -> None:
    """A graph for any number of rows, and results that are those of the function."""
    torch._dynamo.reset()
    graphs = 0

    def counting(module: Any, examples: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module

    compiled = torch.compile(run, fullgraph=True, dynamic=True, backend=counting)
    for m in (5, 13, 7):
        expected, found = results(run(*inputs(m))), results(compiled(*inputs(m)))
        for each, wanted in zip(found, expected, strict=True):
            assert (each.dtype, each.shape, each.stride()) == (wanted.dtype, wanted.shape, wanted.stride())
            assert torch.equal(bits(each), bits(wanted))
    assert graphs == 1


@pytest.mark.parametrize(("operator", "way"), examples("dtype", "aligned"))
def test_an_operator(operator: str, way: Any) -> None:
    packet = getattr(torch.ops.policyquant, operator)
    names = [each.name for each in packet.default._schema.arguments]
    public = getattr(ops, operator, None)

    def run(*given: Any) -> Any:
        if public is None:
            return packet.default(*given)
        return public(**dict(zip(names, given, strict=True)))

    # Small caches of keys and values have one page more than they need: of these all have two.
    assert_one_graph(run, lambda m: example(operator, way, m).inputs)


@pytest.mark.parametrize(("name", "how"), CALLS)
def test_a_function_that_chooses_among_operators(name: str, how: str) -> None:
    function, call = getattr(ops, name), FUNCTIONS[name][how]

    assert_one_graph(
        lambda x: call(function, x), lambda m: (torch.linspace(-3, 500, m * 40).reshape(m, 40).bfloat16(),)
    )


def test_every_public_function_is_an_operator_or_has_calls() -> None:
    assert set(ops.__all__) <= {*OPERATORS, *FUNCTIONS}
