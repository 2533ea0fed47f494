"""Dtypes by the names that plans give them."""

from __future__ import annotations

from typing import Final

import torch

PLAIN: Final = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
"""In which a layer may be, hand on its result, and find its weight unless that is stored quantized."""

FP8: Final = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
"""In which codes may be: of weights, of activations, and of what a KV cache holds."""
