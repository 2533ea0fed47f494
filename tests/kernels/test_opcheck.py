"""What torch can check of an operator by itself, of every operator and of its `.out` overload."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode, schema_check_mode

from policyquant.kernels import ops
from tests.kernels.examples import EXAMPLES, FUNCTIONS, NAMES, OPERATORS, bits, example, examples, results, steps

CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.fixture(autouse=True)
def _codes_are_compared_by_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The schema check looks by `torch.allclose` whether an input has changed, which torch lacks for 8-bit floats."""
    close = torch.allclose

    def same(a: torch.Tensor, b: torch.Tensor, **tolerances: Any) -> bool:
        if "float8" in str(a.dtype):
            return torch.equal(bits(a), bits(b))
        return close(a, b, **tolerances)

    monkeypatch.setattr(schema_check_mode.torch, "allclose", same)


def test_every_function_has_an_example() -> None:
    assert sorted(set(ops.__all__) - set(OPERATORS)) == sorted(FUNCTIONS)


def hidden_write(codes: torch.Tensor) -> None:
    codes.view(torch.uint8).fill_(1)


def test_a_schema_that_hides_a_write_into_codes_is_found() -> None:
    library = torch.library.Library("policyquant_of_a_test", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("writes(Tensor codes) -> ()")
    library.impl("writes", hidden_write, "CPU")
    with pytest.raises(Exception, match="not defined as mutable but was mutated"):
        torch.library.opcheck(
            torch.ops.policyquant_of_a_test.writes.default,
            (torch.ones(3).to(torch.float8_e4m3fn),),
            test_utils="test_schema",
        )
    library._destroy()


@pytest.mark.parametrize(("operator", "way"), examples("dtype"))
def test_an_operator_is_as_it_is_declared(operator: str, way: Mapping[str, Any]) -> None:
    wanted = example(operator, way)
    torch.library.opcheck(getattr(torch.ops.policyquant, operator).default, wanted.inputs, test_utils=CHECKS)


@pytest.mark.parametrize(("operator", "way"), examples("dtype", "aligned"))
def test_an_operator_that_writes_where_results_belong_is_as_it_is_declared(
    operator: str, way: Mapping[str, Any]
) -> None:
    packet = getattr(torch.ops.policyquant, operator)
    if "out" not in packet.overloads():
        assert packet.default._schema.is_mutable, "it writes into its arguments"
        return
    inputs, targets = example(operator, way).placed()
    torch.library.opcheck(packet.out, inputs, targets, test_utils=CHECKS)


@pytest.mark.parametrize(("operator", "way"), EXAMPLES, ids=NAMES)
def test_without_data_on_a_gpu_every_call_has_the_layouts_that_it_has_on_a_cpu(
    operator: str, way: Mapping[str, Any]
) -> None:
    function = getattr(torch.ops.policyquant, operator).default
    for m in (0, 1, 5):
        real = results(function(*example(operator, way, m).inputs))
        with FakeTensorMode():
            made = results(function(*example(operator, way, m, "cuda").inputs))
        assert {each.device.type for each in made} <= {"cuda"}
        for each, wanted in zip(made, real, strict=True):
            assert (each.shape, each.dtype) == (wanted.shape, wanted.dtype)
            assert steps(each) == steps(wanted)
