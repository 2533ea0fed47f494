"""What a layer calls, on a device that need not be here."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Called(TorchDispatchMode):
    """`names` of our operators as they are called, and of torch's that make a tensor of numbers, in `made`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.made: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        if func.namespace == "policyquant":
            self.names.append(name)
        elif name in ("arange", "full", "ones", "zeros", "scalar_tensor"):
            self.made.append(name)
        return func(*args, **(kwargs or {}))
