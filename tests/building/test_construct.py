"""Construction of models written by people who never heard of policies: parameters on meta, everything else real."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from policyquant.building.construct import construct
from policyquant.building.layer_names import all_names
from policyquant.layers.linear import Linear


class Attention(nn.Module):
    """Tables and constants in all the places where models keep them."""

    def __init__(self, width: int = 8, length: int = 6) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        inverse = 1.0 / (10000 ** (torch.arange(0, width, 2).float() / width))
        self.register_buffer("cos", torch.outer(torch.arange(length).float(), inverse).cos(), persistent=False)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)
        self.slopes = torch.pow(2.0, -torch.arange(1, 5).float())
        self.constant = np.linspace(0, 1, 5, dtype=np.float32)
        self.rates = [x.item() for x in torch.linspace(0, 0.1, 4)]
        self.norm = nn.BatchNorm1d(width)


class Decoder(nn.Module):
    """Ties its head, and initialises in `apply`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8, padding_idx=0)
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self.experts = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Sequential(nn.Linear(8, 4), nn.ReLU())})
        self.lstm = nn.LSTM(8, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.orthogonal_(module.weight)
            module.weight.data.normal_()
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)


def test_every_parameter_is_on_meta_with_the_shape_and_dtype_of_plain_construction() -> None:
    plain, root = Decoder(), construct(Decoder)
    assert all(parameter.is_meta for parameter in root.parameters())
    assert [(n, p.shape, p.dtype) for n, p in root.named_parameters()] == [
        (n, p.shape, p.dtype) for n, p in plain.named_parameters()
    ]


def test_buffers_and_attributes_have_the_bits_of_plain_construction() -> None:
    plain, root = Attention(), construct(Attention)
    assert isinstance(root, Attention)
    for name, buffer in plain.named_buffers():
        assert torch.equal(root.get_buffer(name), buffer), name
    assert torch.equal(root.slopes, plain.slopes)
    assert np.array_equal(root.constant, plain.constant)
    assert root.rates == plain.rates


def test_a_tied_head_is_one_object() -> None:
    root = construct(Decoder)
    assert isinstance(root, Decoder)
    assert root.head.weight is root.embed.weight


def test_a_parameter_registered_twice_from_a_variable_is_one_object() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = nn.Parameter(torch.ones(2))
            self.first, self.second = weight, weight

    root = construct(Twice)
    assert root.first is root.second


def test_class_attributes_and_requires_grad_of_a_parameter_are_kept() -> None:
    class Marked(nn.Parameter):
        loader: str

    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = Marked(torch.ones(2, 3), requires_grad=False)
            weight.loader = "rows"
            self.weight = weight
            self.rows = self.weight.shape[0]

    root = construct(Owner)
    assert type(root.weight) is Marked
    assert root.weight.loader == "rows"
    assert not root.weight.requires_grad
    assert root.rows == 2


def test_a_default_dtype_set_inside_holds_for_parameters_and_buffers() -> None:
    def factory() -> nn.Module:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            return nn.BatchNorm1d(4)
        finally:
            torch.set_default_dtype(before)

    root = construct(factory)
    assert root.weight.dtype == root.running_mean.dtype == torch.bfloat16


def test_a_layer_under_two_names_is_named_by_its_first() -> None:
    def factory() -> nn.Module:
        shared = Linear(2, 2)
        return nn.ModuleDict({"encoder": nn.Sequential(shared), "decoder": nn.Sequential(shared)})

    root = construct(factory)
    assert root.get_submodule("decoder.0").layer_name == "encoder.0"
    assert all_names(root)[root.get_submodule("decoder.0")] == ("encoder.0", "decoder.0")


def test_weight_norm_keeps_its_two_parameters_on_meta() -> None:
    root = construct(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))
    assert {name: parameter.is_meta for name, parameter in root.named_parameters()} == {
        "bias": True,
        "parametrizations.weight.original0": True,
        "parametrizations.weight.original1": True,
    }


def test_a_module_made_before_keeps_its_values() -> None:
    tower = nn.Linear(2, 2)
    root = construct(lambda: nn.Sequential(tower, nn.Linear(2, 2)))
    assert [parameter.is_meta for parameter in root.parameters()] == [False, False, True, True]


def test_plain_layers_are_real_afterwards_and_in_other_threads() -> None:
    inside, made = threading.Event(), threading.Event()

    def factory() -> nn.Module:
        inside.set()
        assert made.wait(10)
        return nn.Linear(2, 2)

    def plainly(results: list[nn.Module]) -> None:
        assert inside.wait(10)
        results.append(nn.Linear(2, 2))
        made.set()

    results: list[nn.Module] = []
    thread = threading.Thread(target=plainly, args=(results,))
    thread.start()
    root = construct(factory)
    thread.join()
    assert all(parameter.is_meta for parameter in root.parameters())
    assert not any(parameter.is_meta for parameter in (*results[0].parameters(), *nn.Linear(2, 2).parameters()))


def test_two_constructions_at_once_do_not_meet() -> None:
    barrier = threading.Barrier(2, timeout=10)
    roots: dict[int, nn.Module] = {}

    def building(width: int) -> Callable[[], None]:
        def factory() -> nn.Module:
            first = nn.Linear(width, width)
            barrier.wait()
            return nn.Sequential(first, nn.Linear(width, width))

        return lambda: roots.update({width: construct(factory)})

    threads = [threading.Thread(target=building(width)) for width in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {width: {p.is_meta for p in root.parameters()} for width, root in roots.items()} == {2: {True}, 3: {True}}


_TWO_GIB = """
import resource
from torch import nn
from policyquant.building.construct import construct
construct(lambda: nn.Linear(8, 8))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
root = construct(lambda: nn.Sequential(*(nn.Linear(8192, 8192, bias=False) for _ in range(8))))
assert sum(p.nbytes for p in root.parameters()) == 2 << 30
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_two_gib_of_parameters_take_no_memory() -> None:
    result = subprocess.run([sys.executable, "-c", _TWO_GIB], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 64 * 1024
