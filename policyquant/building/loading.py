"""Weights into a bound tree, one layer at a time, each in its final form at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import nn

from policyquant.building.binding import Binding
from policyquant.building.copies import Copies
from policyquant.building.layer_bytes import check_bytes
from policyquant.building.output_scales import read_output_scale
from policyquant.building.parameter_like import parameter_like
from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.errors import PolicyQuantError
from policyquant.layers.adopt import adopt_head
from policyquant.layers.base import PolicyLayer, WeightLayer
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.layers.linear import Linear
from policyquant.methods.registry import method_for
from policyquant.methods.unquantized import Unquantized

_PLAIN = frozenset({torch.float32, torch.float16, torch.bfloat16, torch.float64})

Progress = Callable[[int, int, str], None]
"""Called with layers done, layers in all, and the name of the layer that comes next."""


def prepare(bindings: Sequence[Binding], dtype: torch.dtype | None, model_dtype: torch.dtype) -> Iterator[str]:
    """Settle each layer's logical dtype, and say what is wrong with what is to be loaded."""
    for binding in bindings:
        module = binding.module
        if binding.owns_weight:
            assert isinstance(module, WeightLayer)
            module.params_dtype = dtype or _stored_dtype(binding) or model_dtype
            if binding.parts is not None:
                module.parts = binding.parts
            if binding.complete:
                problems = _check(module, binding)
                if problems and binding.foreign:
                    method = binding.scheme.method
                    told = f"{binding.name!r} is stored as {binding.foreign}, which method {method!r} cannot load"
                    problems = [f"{told} ({problems[0]})"]
                yield from problems
        for key, tensor in binding.plain_tensors.items():
            stored = binding.slots.get(Slot(key))
            if stored is None:
                continue
            if stored.shape != tuple(tensor.shape):
                yield f"{stored.place} has shape {list(stored.shape)}; the model has {list(tensor.shape)}"
            if stored.dtype != tensor.dtype and _sort(stored.dtype) != _sort(tensor.dtype):
                yield f"{stored.place} is stored as {stored.dtype}; expected {_sort(tensor.dtype)}, as in the model"
        for slot, stored in () if binding.owns_weight else binding.slots.items():
            if slot.suffix not in binding.tensors:
                yield f"{stored.place} is in the source, but {binding.name!r} has no {slot.suffix!r}"


def _sort(dtype: torch.dtype) -> str:
    """Dtypes of one sort may be loaded into each other: codes of one byte are no numbers without their scale."""
    if dtype.is_complex:
        return "complex numbers"
    if dtype.is_floating_point and dtype.itemsize > 1:
        return "a floating-point dtype"
    return str(dtype) if dtype.is_floating_point else "integers"


def _check(module: WeightLayer, binding: Binding) -> list[str]:
    try:
        return list(method_for(binding.scheme).check(module, binding.method_slots))
    except PolicyQuantError as error:
        return [f"{binding.name}: {error}"]


def _stored_dtype(binding: Binding) -> torch.dtype | None:
    for slot, tensor in binding.slots.items():
        if slot.suffix == "weight" and tensor.dtype in _PLAIN:
            return tensor.dtype
    return None


def load(
    bindings: Sequence[Binding],
    device: torch.device | None,
    dtype: torch.dtype | None,
    release: Callable[[], None],
    progress: Progress | None = None,
) -> None:
    """Give each module its tensors, on `device` (None: where they are, but from meta to the CPU). Parameters own their
    memory."""
    with Copies() as copies:
        for number, binding in enumerate(bindings):
            if progress is not None:
                progress(number, len(bindings), binding.name)
            module = binding.module
            if binding.output_scales and (device is None or device.type != "meta"):
                binding.scheme = read_output_scale(binding.scheme, binding.output_scales)
            if isinstance(module, WeightLayer) and not binding.owns_weight and binding.scheme.weight is None:
                module.note_method(method_for(binding.scheme))  # Of a tied layer too, the output is its own.
            elif isinstance(module, PolicyLayer):
                module.take_scheme(binding.scheme)
            where, plain = device or _device_of(binding), binding.plain_tensors
            if binding.owns_weight:
                assert isinstance(module, WeightLayer)
                _load_weights(module, binding, where, dtype, copies)
            _load_plain(module, plain, binding.slots, where, dtype)
            release()
    if progress is not None:
        progress(len(bindings), len(bindings), "")


def _device_of(binding: Binding) -> torch.device:
    tensors = [tensor for tensor in binding.tensors.values() if not tensor.is_meta]
    return tensors[0].device if tensors else torch.device("cpu")


def _load_weights(
    module: WeightLayer, binding: Binding, device: torch.device, dtype: torch.dtype | None, copies: Copies
) -> None:
    method, slots = method_for(binding.scheme), binding.method_slots
    module.take_method(method, device)
    check_bytes(module)
    if dtype is None and "weight" in module._buffers:
        _keep_bias_dtype(module, binding)
    for key, before in binding.tensors.items():
        after = module._parameters.get(key)
        if key in module.method_tensors and after is not None and after is not before:
            module._parameters[key] = parameter_like(before, after.detach())
    if type(method) is Unquantized and device.type == "cpu" and _held_as_stored(module, slots):
        copies.submit(method.load, module, slots)
    elif device.type != "meta":
        method.load(module, slots)
        method.process_weights_after_loading(module)


def _keep_bias_dtype(module: WeightLayer, binding: Binding) -> None:
    """A bias is not quantized, so it is held as it is stored, whatever the weight's dtype."""
    bias = module._parameters.get("bias")
    stored = {tensor.dtype for slot, tensor in binding.slots.items() if slot.suffix == "bias"}
    if bias is not None and len(stored) == 1 and bias.dtype not in stored:
        module.bias = nn.Parameter(torch.empty_like(bias, dtype=stored.pop()))


def _held_as_stored(module: WeightLayer, slots: Mapping[Slot, LazyTensor]) -> bool:
    return all(each.copied_by_system and each.dtype == module.params_dtype for each in slots.values())


def _load_plain(
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    slots: Mapping[Slot, LazyTensor],
    device: torch.device,
    dtype: torch.dtype | None,
) -> None:
    for key, before in tensors.items():
        stored = slots[Slot(key)]
        values = (
            torch.empty(before.shape, dtype=stored.dtype, device=device) if device.type == "meta" else stored.read()
        )
        if key in module._parameters:
            wanted = dtype if dtype is not None and stored.dtype.is_floating_point else stored.dtype
            owned = _empty(before, wanted, device).copy_(values)
            # Through the module, since some keep lists of their parameters beside.
            setattr(module, key, parameter_like(before, owned))
        else:
            buffer = module._buffers[key]
            assert buffer is not None
            module._buffers[key] = _empty(buffer, buffer.dtype, device).copy_(values)


def _empty(like: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Without gaps; in the memory format that the factory chose (channels last), by which operators choose kernels."""
    if like.dim() in (4, 5):
        return torch.empty_like(like, dtype=dtype, device=device, requires_grad=False)
    return torch.empty(like.shape, dtype=dtype, device=device)


Ties = list[tuple[nn.Module, str, nn.Module, str]]
"""A module and its parameter's name, and the first module that has the same parameter, with its name there."""


def ties(root: nn.Module) -> Ties:
    """Parameters that are one object under several names."""
    first: dict[int, tuple[nn.Module, str]] = {}
    found: Ties = []
    for module in root.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                owner, name = first.setdefault(id(parameter), (module, key))
                if (owner, name) != (module, key):
                    found.append((module, key, owner, name))
    return found


def not_to_share(found: Ties, bindings: Iterable[Binding]) -> Iterator[str]:
    """Say which layers share a weight that is to be quantized, and cannot use it then."""
    quantized = {each.module: each for each in bindings if each.owns_weight and each.scheme.weight is not None}
    for module, _, owner, name in found:
        binding = quantized.get(owner) if name == "weight" else None
        if binding is not None and not (isinstance(owner, nn.Embedding) and _is_head(module)):
            yield (
                f"{binding.name!r} gets {binding.scheme}, but shares its weight with a {type(module).__name__}; of"
                " quantized weights only an embedding's can be shared, with a linear head: give it the method 'none'"
            )


def retie(found: Ties) -> None:
    """What was one parameter is one again, or one quantized weight (see `not_to_share`)."""
    for module, key, owner, name in found:
        after = owner._parameters.get(name)
        if after is not None:
            setattr(module, key, after)
        if isinstance(owner, VocabParallelEmbedding) and (after is None or isinstance(module, ParallelLMHead)):
            head = module if isinstance(module, ParallelLMHead) else adopt_head(module)
            head.tie_to(owner)


def _is_head(module: nn.Module) -> bool:
    return isinstance(module, ParallelLMHead) or type(module) in (nn.Linear, Linear)
