"""Tensors → `StoredModel`: folding, and what can be said about stored tensors before any architecture is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from policyquant.errors import SourceError
from policyquant.findings import Finding
from policyquant.inventory.collapse import Tensor, collapse
from policyquant.inventory.config_file import Config, declared_quantization
from policyquant.inventory.declared import Declared
from policyquant.inventory.layers import INDEX, Indices, StoredModel, StoredSet, StoredTensor, own_name
from policyquant.inventory.spans import listed, spans
from policyquant.inventory.stored_formats import Recognised, lacks_scale, recognise


def build_model(
    name: str,
    source: str,
    config: Config,
    tensors: Iterable[Tensor],
    findings: Sequence[Finding] = (),
    *,
    naming: Literal["checkpoint", "module"] = "checkpoint",
    module_types: Mapping[str, str] | None = None,
    shared: Mapping[str, str] | None = None,
) -> StoredModel:
    """Fold tensors, whose names must differ, and add the findings about them.

    Raises:
        SourceError: a tensor's name cannot be folded; see `collapse`.
    """
    try:
        sets = join_parts_of_weights(collapse(tensors))
    except SourceError as error:
        raise SourceError(f"{source}: {error}") from None
    return StoredModel(
        name=name,
        source=source,
        config=config.values,
        sets=sets,
        naming=naming,
        module_types=module_types or {},
        findings=(*config.findings, *findings, *_findings(sets, config.values)),
        shared=shared or {},
    )


_PARTS_OF_WEIGHTS: Final = frozenset(
    {"absmax", "quant_map", "nested_absmax", "nested_quant_map", "_data", "_scale", "_shift"}
)
"""Last parts of names below a weight's own: `q_proj.weight.absmax` (bitsandbytes), `q_proj.weight._data` (quanto)."""


def join_parts_of_weights(sets: tuple[StoredSet, ...]) -> tuple[StoredSet, ...]:
    """Give tensors stored below a weight's name to the layer that owns the weight.

    Folding takes `q_proj.weight.absmax` for a tensor of a layer `q_proj.weight`; it is one of `q_proj`, and its suffix
    is `weight.absmax`.
    """
    if not any(_owner(stored) for stored in sets):
        return sets
    members: dict[tuple[str, Indices], list[StoredTensor]] = {}
    for stored in sets:
        owner = _owner(stored)
        template = owner or stored.template
        prefix = stored.template[len(owner) + 1 :] + "." if owner else ""
        tensors = [StoredTensor(prefix + suffix, dtype, shape) for suffix, dtype, shape in stored.tensors]
        for indices in stored.indices:
            members.setdefault((template, indices), []).extend(tensors)
    joined: dict[tuple[str, tuple[StoredTensor, ...]], list[Indices]] = {}
    for (template, indices), found in members.items():
        key = (template, tuple(sorted(found, key=lambda tensor: tensor.suffix)))
        joined.setdefault(key, []).append(indices)
    return tuple(StoredSet(template, tuple(sorted(which)), found) for (template, found), which in joined.items())


def _owner(stored: StoredSet) -> str | None:
    """Template of the layer whose weight these tensors are parts of."""
    template = stored.template
    if template.endswith(".weight.quant_state"):
        return template.removesuffix(".weight.quant_state")
    if template.endswith(".weight") and all(tensor.suffix in _PARTS_OF_WEIGHTS for tensor in stored.tensors):
        return template.removesuffix(".weight")
    return None


def _names(stored: StoredSet) -> tuple[str, ...]:
    """Names of all layers of a set, repeated ones written as index ranges."""
    return tuple(spans(own_name(stored.template), stored.indices))


def _findings(sets: Sequence[StoredSet], config: Mapping[str, object]) -> Iterable[Finding]:
    recognised = [recognise(stored, config) for stored in sets]
    quantized = False
    for stored, found in zip(sets, recognised, strict=True):
        for weight in found.weights:
            quantized |= weight.scheme is not None
            if lacks_scale(weight):
                what = "FP8" if (weight.tensor.dtype or "").startswith("F8") else weight.tensor.dtype
                names = _names(stored)
                tensors = [f"{name}.{weight.tensor.suffix}" for name in names]
                yield Finding("PQ407", "error", f"{what} tensor without scale: {listed(tensors)}", names)
    yield from _missing_input_scales(sets, recognised, config)
    declared = declared_quantization(config)
    ours = declared.get("quant_method") == "policyquant"  # A policy says what shall be, not what is.
    if declared and sets and not quantized and not ours and Declared(declared).says_quantized:
        yield Finding(
            "PQ436",
            "warning",
            "config.json declares a quantized model, but no tensor is stored in a quantized form that is known;"
            " sizes and schemes are those of the tensors as they are",
        )


def _missing_input_scales(
    sets: Sequence[StoredSet], recognised: Sequence[Recognised], config: Mapping[str, object]
) -> Iterable[Finding]:
    """Layers without an input scale whose likes have one: experts that calibration never reached."""
    with_scale: set[tuple[str, str | None]] = set()
    without: list[tuple[StoredSet, tuple[str, str | None]]] = []
    for stored, found in zip(sets, recognised, strict=True):
        weight = next((weight for weight in found.weights if weight.scheme is not None), None)
        if weight is None:
            continue
        key = (stored.template, weight.tensor.dtype)
        if any(tensor.suffix.endswith("input_scale") for tensor in found.activation_scales):
            with_scale.add(key)
        else:
            without.append((stored, key))
    level: Literal["error", "warning"] = "error" if Declared(declared_quantization(config)).static_inputs else "warning"
    for stored, key in without:
        if key in with_scale:
            names = _names(stored)
            others = stored.template.replace(INDEX, "*")
            yield Finding("PQ408", level, f"no input_scale: {listed(names)}; other {others} have one", names)
