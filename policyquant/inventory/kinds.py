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


def layers_of(kind: Kind) -> str:
    """How a sentence calls the layers of a kind; "other layers" would be all those that were not spoken of."""
    return "layers of kind 'other'" if kind == "other" else f"{kind} layers"
