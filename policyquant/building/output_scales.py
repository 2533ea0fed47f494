"""Static scales of emitted activations: what the layers that read one are stored with.

A policy may say `output: {dtype: fp8, scheme: static}` without a scale, where the readers take theirs from the
checkpoint. Whoever emits then takes the readers' `input_scale`, and where they differ the largest, which no reader's
values exceed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

import torch

from policyquant.building.binding import Binding
from policyquant.building.shares import shares
from policyquant.building.stored_names import StoredNames, StoredPart
from policyquant.building.targets import Target, part_names
from policyquant.checkpoint.tensors import LazyTensor
from policyquant.errors import PolicyQuantError
from policyquant.inventory.inventory import Inventory
from policyquant.plan.units import Unit, units_of
from policyquant.policy.scheme import Quantization, Scheme

_SCALE = "input_scale"


def lacks_scale(scheme: Scheme) -> bool:
    """Whether a scheme's output is to be quantized with a static scale that it does not tell."""
    output = scheme.output
    return isinstance(output, Quantization) and output.scheme == "static" and output.scale is None


def without_scale(scheme: Scheme) -> Scheme:
    """The scheme as a plan has it that leaves the scale of a static output to the checkpoint."""
    if not isinstance(scheme.output, Quantization):
        return scheme
    return replace(scheme, output=replace(scheme.output, scale=None))


class OutputScales:
    """Finds the scales of the outputs of one model."""

    def __init__(self, inventory: Inventory, names: StoredNames, tensors: Mapping[str, LazyTensor]) -> None:
        self._inventory = inventory
        self._names = names
        self._tensors = tensors

    def find(self, binding: Binding, problems: list[str]) -> list[LazyTensor]:
        """The scales, not read yet, of all that read a layer's output. What is missing is added to `problems`."""
        found = []
        for reader in dict.fromkeys(self._readers(binding)):
            scales = [self._tensors[full] for suffix, full in reader.tensor_names(self._tensors) if suffix == _SCALE]
            found += scales
            if not scales:
                problems.append(
                    f"{binding.name!r} emits {binding.scheme.output} without a scale, and {reader.name!r}, which reads"
                    f" it, is stored without {_SCALE}; write output: {{dtype: ..., scheme: static, scale: ...}}, or"
                    " scheme: dynamic"
                )
        return found

    def _readers(self, binding: Binding) -> Iterator[StoredPart]:
        target = Target(binding.module, binding.name, part_names(binding.module, binding.name), binding.tensors)
        for share in shares(self._names, target):
            layer, indices = share.stored.layer, share.stored.indices
            block = next(unit.block_of(indices) for unit in self._units if unit.layer is layer)
            for template in layer.feeds or ():
                for unit in self._by_canonical.get(template, ()):
                    for start, stop in unit.layer_ranges(unit.in_block(block)):
                        for position in range(start, stop):
                            at = unit.layer.indices[position]
                            yield StoredPart(unit.layer, at, None, unit.layer.name(at))

    @cached_property
    def _units(self) -> list[Unit]:
        return units_of(self._inventory.sets)

    @cached_property
    def _by_canonical(self) -> dict[str, list[Unit]]:
        result: dict[str, list[Unit]] = {}
        for unit in self._units:
            for form in unit.part.names.get("canonical", ()):
                result.setdefault(form.template, []).append(unit)
        return result


def read_output_scale(scheme: Scheme, scales: list[LazyTensor]) -> Scheme:
    """The scheme with the largest of the stored scales in its output.

    Raises:
        PolicyQuantError: one of them is not finite and positive.
    """
    largest = 0.0
    for stored in scales:
        values = stored.read().to(torch.float32).reshape(-1)
        wrong = values[~(values.isfinite() & (values > 0))]
        if wrong.numel():
            raise PolicyQuantError(f"{stored.place} holds {float(wrong[0])}; a scale must be finite and positive")
        largest = max(largest, float(values.max()))
    assert isinstance(scheme.output, Quantization)
    return replace(scheme, output=replace(scheme.output, scale=largest))
