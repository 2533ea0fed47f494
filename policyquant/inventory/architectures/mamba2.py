"""Mamba-2: a state-space mixer in every block and no MLP."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, Tie, under

FAMILY = Family(
    name="mamba2",
    base="backbone",
    layers={
        "backbone.embeddings": "embedding",
        **under(
            "backbone.layers.#",
            "decoder.#",
            {
                "norm": "input_norm",
                # Owns A_log, D and dt_bias, all bare parameters.
                "mixer": "mixer",
                "mixer.in_proj": "mixer.in_proj",
                "mixer.conv1d": "mixer.conv1d",
                "mixer.act": "mixer.act",
                "mixer.norm": "mixer.norm",
                "mixer.out_proj": "mixer.out_proj",
            },
        ),
        "backbone.norm_f": "final_norm",
        "lm_head": "head",
    },
    ties=(Tie("lm_head", "backbone.embeddings"),),
)
