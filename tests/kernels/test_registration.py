"""The operators as torch has them, and as Python functions."""

from __future__ import annotations

import pytest
import torch

from policyquant.kernels import ops
from tests.kernels.examples import OPERATORS, bits, example, results


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_a_python_function(name: str) -> None:
    operator = getattr(torch.ops.policyquant, name).default
    function = getattr(ops, name, None)
    if function is None:
        assert name.endswith("_quant"), "the function that quantizes what a norm computes chooses among its operators"
        return
    inputs = example(name, {}).inputs
    given = function(**{each.name: value for each, value in zip(operator._schema.arguments, inputs, strict=True)})
    # A function may hand back its global scale beside what the operator returns.
    for found, expected in zip(results(given), results(operator(*inputs)), strict=False):
        assert torch.equal(bits(found), bits(expected))


def test_out_of_another_shape_is_refused() -> None:
    x = torch.randn(4, 6)
    with pytest.raises(ValueError, match="expected \\[4, 3\\]"):
        torch.ops.policyquant.silu_and_mul.out(x, out=torch.empty(4, 6))
