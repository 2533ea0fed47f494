"""gpt-oss: experts are two 3-D tensors of one module, gate and up interleaved row by row in the first.

Published checkpoints store them in MXFP4 as [experts, out, in/32, 16]; module trees and BF16 copies hold [experts, in,
out]. The activation is computed inside the experts' module: there is no layer for it.
"""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, under
from policyquant.inventory.architectures.llama import AROUND, ATTENTION, NORMS, TIES

FAMILY = Family(
    name="gpt_oss",
    base="model",
    layers={
        **AROUND,
        **under(
            "model.layers.#",
            "decoder.#",
            {
                **NORMS,
                **ATTENTION,
                "mlp.router": "moe.router",
                "mlp.experts": "moe.experts",
            },
        ),
    },
    transposed=frozenset({"model.layers.#.mlp.experts.gate_up_proj", "model.layers.#.mlp.experts.down_proj"}),
    ties=TIES,
)
