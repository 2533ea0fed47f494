"""Rotary position embeddings (Su 2021, arXiv:2104.09864), with the frequency scalings of transformers.

Frequencies are always computed on the CPU in float32, so that they have the same bits wherever a model is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.models.config import DecoderConfig, number


class RotaryEmbedding(nn.Module):
    """Cosines and sines of positions, for heads of `config.head_dim` elements.

    `inv_freq` [head_dim / 2] float32 is a buffer, not saved; a model's conversion to another dtype passes it over.

    Raises:
        PolicyQuantError: the rope type is not implemented, or a parameter of it is missing or no positive number.
    """

    inv_freq: torch.Tensor

    def __init__(self, config: DecoderConfig, device: torch.device | str | None = None) -> None:
        super().__init__()
        kind = str(config.rope_parameters["rope_type"])
        frequencies = _FREQUENCIES.get(kind)
        if frequencies is None:
            raise PolicyQuantError(
                f"config.json: rope type {kind!r} is not implemented; expected one of {', '.join(_FREQUENCIES)}"
                f"{did_you_mean(kind, _FREQUENCIES)}"
            )
        inv_freq, self.attention_scaling = frequencies(config)
        if device is not None and torch.device(device).type != "meta":
            inv_freq = inv_freq.to(device)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [T] → cosines and sines [T, 1, head_dim] in `dtype`, to be used for all heads."""
        angles = positions[:, None].float() * self.inv_freq.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)[:, None]
        return (angles.cos() * self.attention_scaling).to(dtype), (angles.sin() * self.attention_scaling).to(dtype)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Move between devices, but stay float32: a rounded frequency is off by whole turns at late positions."""
        exact = self.inv_freq
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if self.inv_freq.dtype != exact.dtype:
            self.inv_freq = exact.to(self.inv_freq.device)
        return self


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [B, T, heads, head_dim], turned by the angles of cos and sin [T, 1, head_dim].

    The pairs that are turned are elements i and i + head_dim / 2.
    """
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return (x * cos) + (turned * sin)


def _powers(config: DecoderConfig) -> torch.Tensor:
    """theta^(2i / head_dim) for i in [0, head_dim / 2)."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device="cpu").to(torch.float32)
    powers: torch.Tensor = number(config.rope_parameters, "rope_theta") ** (steps / config.head_dim)
    return powers


def _parameter(config: DecoderConfig, name: str) -> float:
    """A parameter that the rope type needs.

    Raises:
        PolicyQuantError: it is missing, or no positive number.
    """
    if name not in config.rope_parameters:
        kind = config.rope_parameters["rope_type"]
        raise PolicyQuantError(f"config.json: rope type {kind!r} needs the parameter {name!r}")
    return number(config.rope_parameters, name)


def _optional(config: DecoderConfig, name: str) -> float | None:
    """A parameter that may be left out, null or 0."""
    return _parameter(config, name) if config.rope_parameters.get(name) else None


def _default(config: DecoderConfig) -> tuple[torch.Tensor, float]:
    return 1.0 / _powers(config), 1.0


def _linear(config: DecoderConfig) -> tuple[torch.Tensor, float]:
    """All positions closer together by `factor` (Chen 2023, arXiv:2306.15595)."""
    return 1.0 / _powers(config) / _parameter(config, "factor"), 1.0


def _llama3(config: DecoderConfig) -> tuple[torch.Tensor, float]:
    """Long wavelengths stretched by `factor`, short ones kept, those between interpolated (Llama 3.1)."""
    factor, trained = _parameter(config, "factor"), _parameter(config, "original_max_position_embeddings")
    low, high = _parameter(config, "low_freq_factor"), _parameter(config, "high_freq_factor")
    inv_freq = 1.0 / _powers(config)
    wavelength = 2 * math.pi / inv_freq
    is_long, is_short = wavelength > trained / low, wavelength < trained / high
    stretched = torch.where(is_long, inv_freq / factor, inv_freq)
    smooth = (trained / wavelength - low) / (high - low)
    between = (1 - smooth) * stretched / factor + smooth * stretched
    return torch.where(~is_short & ~is_long, between, stretched), 1.0


def _yarn(config: DecoderConfig) -> tuple[torch.Tensor, float]:
    """Interpolated or kept by the number of turns within the trained length (YaRN: Peng 2023, arXiv:2309.00071)."""
    parameters = config.rope_parameters
    trained, theta = _parameter(config, "original_max_position_embeddings"), _parameter(config, "rope_theta")
    if theta <= 1:
        raise PolicyQuantError(f"config.json: rope type 'yarn' needs a rope_theta above 1; found {theta}")
    if parameters.get("factor", 0) is None:  # Written as null.
        factor = config.max_position_embeddings / trained
    else:
        factor = _parameter(config, "factor")
    dim = config.head_dim

    def dimension(turns: float) -> float:
        return float(dim * math.log(trained / (turns * 2 * math.pi))) / (2 * math.log(theta))

    first, last = dimension(_optional(config, "beta_fast") or 32), dimension(_optional(config, "beta_slow") or 1)
    if parameters.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    width = 0.001 if first == last else last - first
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device="cpu") - first) / width).clamp(0, 1)
    powers = _powers(config)
    kept = 1 - ramp
    return 1.0 / (factor * powers) * (1 - kept) + 1.0 / powers * kept, _yarn_scaling(config, factor)


def _yarn_scaling(config: DecoderConfig, factor: float) -> float:
    """What cosines and sines are multiplied by, as the paper advises unless it is given."""
    given = _optional(config, "attention_factor")
    if given is not None:
        return float(given)

    def scaling(weight: float = 1.0) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    weight, weight_all = _optional(config, "mscale"), _optional(config, "mscale_all_dim")
    return scaling(weight) / scaling(weight_all) if weight and weight_all else scaling()


_FREQUENCIES: Final[Mapping[str, Callable[[DecoderConfig], tuple[torch.Tensor, float]]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
