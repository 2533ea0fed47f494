"""What a layer is by its function. Closed: a policy's `kind:` takes these words and no others."""

from __future__ import annotations

from typing import Final, Literal

Kind = Literal["linear", "moe", "router", "norm", "activation", "attention", "embedding", "head", "conv", "other"]

KINDS: Final[tuple[Kind, ...]] = (
    "linear",
    "moe",
    "router",
    "norm",
    "activation",
    "attention",
    "embedding",
    "head",
    "conv",
    "other",
)
