"""A module tree as a source: its names, the classes of its modules, and the tensors that its state dict would store.

Nothing here imports torch; a tree is known by its methods. Modules on the meta device will do, and cost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from policyquant.errors import SourceError
from policyquant.findings import Finding
from policyquant.inventory.collapse import Tensor
from policyquant.inventory.config_file import Config
from policyquant.inventory.dtypes import PACKED_FP4, safetensors_dtype
from policyquant.inventory.layers import StoredModel
from policyquant.inventory.stored_model import build_model
from policyquant.inventory.tensor_list import stored_form

_METHODS = ("named_modules", "named_parameters", "named_buffers", "state_dict")


def is_module(source: object) -> bool:
    """Whether something is a module tree."""
    return all(callable(getattr(source, method, None)) for method in _METHODS)


def from_module(module: Any) -> StoredModel:
    """The layers of an `nn.Module`, under its own names.

    Parameters and persistent buffers are stored, as in `state_dict()`; a parameter that several modules share is listed
    under each of its names, and `StoredModel.shared` tells the first. Values of `module.config.to_dict()` are the
    config, if there are any.

    Raises:
        SourceError: a parameter has no shape yet.
    """
    module = getattr(module, "_orig_mod", module)  # torch.compile wraps the tree and prefixes its names.
    class_name = type(module).__name__
    tensors: list[Tensor] = []
    unknown: list[str] = []
    for name, tensor in module.state_dict().items():
        if not hasattr(tensor, "dtype"):
            continue  # A module's `get_extra_state`, which may be anything.
        try:
            shape = tuple(tensor.shape)
        except RuntimeError:
            raise SourceError(f"{class_name}: {name!r} has no shape yet; run the module once, then list it") from None
        dtype = tensor.dtype
        if safetensors_dtype(dtype) is None and not str(dtype).endswith(PACKED_FP4):
            unknown.append(f"{name} ({dtype})")
            dtype = None
        tensors.append((name, *stored_form(shape, dtype, f"{class_name}: {name!r}")))
    findings = [
        Finding("PQ438", "note", f"{class_name}: safetensors has no dtype for {text}; its size is unknown")
        for text in unknown
    ]
    types = {name: type(each).__name__ for name, each in module.named_modules(remove_duplicate=False) if name}
    stored = {name for name, *_ in tensors}
    return build_model(
        class_name,
        f"a module ({class_name})",
        Config(_config(module), ()),
        tensors,
        findings,
        naming="module",
        module_types=types,
        shared=_shared(module, stored),
    )


def _shared(module: Any, stored: Iterable[str]) -> dict[str, str]:
    """Name of each tensor that is the same object as an earlier one → name of the first."""
    first: dict[int, str] = {}
    shared: dict[str, str] = {}
    wanted = set(stored)
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            earlier = first.setdefault(id(tensor), name)
            if earlier != name and name in wanted:
                shared[name] = earlier
    return shared


def _config(module: Any) -> Mapping[str, object]:
    config = getattr(module, "config", None)
    if isinstance(config, Mapping):
        values: object = dict(config)
    else:
        to_dict = getattr(config, "to_dict", None)
        if not callable(to_dict):
            return {}
        values = to_dict()
    # As `config.json` would have it: a dtype becomes its name, a tuple a list.
    plain = json.loads(json.dumps(values, default=str, skipkeys=True))
    return plain if isinstance(plain, dict) else {}
