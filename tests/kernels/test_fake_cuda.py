"""Plain torch, which a GPU runs where there is no kernel, asks for no value: nothing waits, all can be captured.

It is run without values, on the device "meta": a torch without CUDA cannot index a fake tensor of a GPU. Another test
makes sure that no device but the CPU is treated on its own, so that what is run there is what a GPU runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, Final

import pytest
import torch

from policyquant.kernels import cpu
from tests.kernels.examples import EXAMPLES, NAMES, OPERATORS, example, results

PLAIN: Final[Mapping[str, Callable[..., Any]]] = {
    name: function
    for module in iter_modules(cpu.__path__)
    for name, function in vars(import_module(f"policyquant.kernels.cpu.{module.name}")).items()
    if name in OPERATORS
}
"""Operator → its plain torch, which has its name."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.amax().item(),
        lambda x: x.tolist(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.int().bincount(),
        lambda x: torch.equal(x, x + 1),
    ],
)
def test_a_value_that_is_asked_for_is_an_error_here(ask: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        ask(torch.ones(3, device="meta"))


@pytest.mark.parametrize(("operator", "way"), EXAMPLES, ids=NAMES)
def test_plain_torch_asks_for_no_value(operator: str, way: Mapping[str, Any]) -> None:
    for m in (0, 5):
        real = results(getattr(torch.ops.policyquant, operator).default(*example(operator, way, m).inputs))
        made = results(PLAIN[operator](*example(operator, way, m, "meta").inputs))
        assert [(each.shape, each.dtype, each.is_meta) for each in made] == [
            (each.shape, each.dtype, True) for each in real
        ]


def test_it_treats_no_device_but_the_cpu_on_its_own() -> None:
    for path in Path(*cpu.__path__).glob("*.py"):
        code = path.read_text(encoding="utf-8")
        assert not re.search(r"""is_cuda|is_meta|["']cuda|["']meta""", code), path
        assert set(re.findall(r"device\.type\s*(\S+ \"\w+\")", code)) <= {'== "cpu"', '!= "cpu"'}, path
