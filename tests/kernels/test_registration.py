"""What torch is told about the operators: schemas, and shapes without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from policyquant.kernels import ops

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
E4M3 = torch.float8_e4m3fn
CODES = X.to(E4M3)
ONE = torch.ones(1)
INPUTS: dict[str, tuple[Any, ...]] = {
    "static_scaled_fp8_quant": (X, ONE, E4M3),
    "dynamic_scaled_fp8_quant": (X, None, E4M3),
    "per_token_scaled_fp8_quant": (X, 2.0, E4M3),
    "per_channel_int8_quant": (X,),
    "group_fp8_quant": (X, 32, True, False, E4M3),
    "block_fp8_quant": (X, (4, 4), True, E4M3),
    "dequantize_blocks": (X.to(torch.int8), torch.ones(1, 2), (4, 4), torch.bfloat16),
    "dequantize": (X.to(torch.int8), ONE, torch.bfloat16),
    "scaled_mm": (CODES, CODES, ONE, ONE, None, None, torch.bfloat16),
    "block_scaled_mm": (CODES, CODES, torch.ones(4, 1), torch.ones(1, 1), None, None, torch.bfloat16),
    "int8_weight_only_mm": (X, X.to(torch.int8), ONE, None, torch.float32),
    "topk_softmax": (X, 2, True),
    "topk_sigmoid": (X, 2, True, torch.ones(6)),
    "moe_align": (torch.tensor([[0, 2], [1, 0]], dtype=torch.int32), 4, 3, None),
    "silu_and_mul": (X,),
    "gelu_and_mul": (X, "tanh"),
    "rms_norm": (X, torch.ones(6), 1e-6),
    "fused_add_rms_norm": (X, X, torch.ones(6), 1e-6),
}


@pytest.mark.parametrize("name", INPUTS)
def test_operator_keeps_its_schema_and_its_shapes(name: str) -> None:
    operator = getattr(torch.ops.policyquant, name).default
    # The schema check does arithmetic on its inputs, which torch has none of for 8-bit floats.
    checks = ("test_faketensor",) if name in ("scaled_mm", "block_scaled_mm") else ("test_schema", "test_faketensor")
    torch.library.opcheck(operator, INPUTS[name], test_utils=checks)


@pytest.mark.parametrize("name", INPUTS)
def test_every_operator_has_a_python_function(name: str) -> None:
    operator = getattr(torch.ops.policyquant, name).default
    named = {each.name: value for each, value in zip(operator._schema.arguments, INPUTS[name], strict=True)}
    given, direct = getattr(ops, name)(**named), operator(*INPUTS[name])
    first = (given[0], direct[0]) if isinstance(given, tuple) else (given, direct)
    assert torch.equal(first[0].float(), first[1].float())


@pytest.mark.parametrize("name", INPUTS)
def test_out_overload_writes_the_same_and_returns_nothing(name: str) -> None:
    packet, inputs = getattr(torch.ops.policyquant, name), INPUTS[name]
    direct = packet.default(*inputs)
    expected = direct if isinstance(direct, tuple) else (direct,)
    names = [each.name for each in packet.out._schema.arguments if each.is_out]
    targets = {target: torch.empty_like(value) for target, value in zip(names, expected, strict=True)}
    kept = inputs[:-1] if isinstance(inputs[-1], torch.dtype) else inputs
    assert packet.out(*kept, **targets) is None
    for target, value in zip(targets.values(), expected, strict=True):
        assert torch.equal(target.float(), value.float())


def test_out_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="expected \\[4, 3\\]"):
        torch.ops.policyquant.silu_and_mul.out(X, out=torch.empty(4, 6))
