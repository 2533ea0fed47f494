"""What every layer of a model is told besides its sizes: its plan, its name, and where and in what its tensors are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from policyquant.layers.base import QuantConfig


@dataclass(frozen=True, slots=True)
class LayerArguments:
    """The keyword arguments that all layers share, for the module that `prefix` names."""

    quant_config: QuantConfig | None = None
    prefix: str = ""
    device: torch.device | str | None = None
    dtype: torch.dtype | None = None

    def under(self, name: str) -> LayerArguments:
        """The arguments for the child `name`.

        Without a plan and a prefix children stay without a name as well: the model may become part of a larger one,
        and layers are named once the tree exists.
        """
        if self.quant_config is None and not self.prefix:
            return self
        return replace(self, prefix=f"{self.prefix}.{name}" if self.prefix else name)

    def of(self, name: str) -> dict[str, Any]:
        """The keyword arguments with which to construct the child `name`."""
        child = self.under(name)
        return {
            "quant_config": child.quant_config,
            "prefix": child.prefix,
            "device": child.device,
            "dtype": child.dtype,
        }
