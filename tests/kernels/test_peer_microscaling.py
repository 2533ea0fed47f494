"""MX and NVFP4 are what compressed-tensors makes of the same weight, or differ as the docs say."""

from __future__ import annotations

import pytest
import torch

from policyquant.kernels import ops

pytestmark = pytest.mark.slow


def drawn() -> torch.Tensor:
    """Blocks of all sizes, without ties, and some whose largest magnitude is 1.75 times a power of two."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 256, generator=generator) * torch.logspace(-4, 4, 64)[:, None]
    x[::4, ::32] = 1.75 * 2.0 ** torch.arange(16)[:, None]
    return x


def their_exponents(x: torch.Tensor, bits: int) -> torch.Tensor:
    helpers = pytest.importorskip("compressed_tensors.quantization.utils.mxfp_utils")
    largest = x.unflatten(-1, (-1, 32)).abs().amax(-1)
    exponents: torch.Tensor = helpers.generate_mx_scales(largest, bits).to(torch.uint8)
    return exponents


def their_codes(x: torch.Tensor, scale: torch.Tensor, group: int, one: torch.Tensor | None = None) -> torch.Tensor:
    helpers = pytest.importorskip("compressed_tensors.compressors.nvfp4.helpers")
    packed: torch.Tensor = helpers.quantize_and_pack_fp4(x, scale, global_scale=one, group_size=group)
    return packed


def test_mxfp4_with_even_scales() -> None:
    x = drawn()
    codes, scale = ops.mxfp4_quant(x, "even")
    assert torch.equal(scale.view(torch.uint8), their_exponents(x, 4))
    assert same_but_for_zeros_sign(codes, their_codes(x, scale.float(), 32))


def test_mxfp8_has_half_their_scale_where_the_largest_magnitude_fits_just() -> None:
    x = drawn()
    _, scale = ops.mxfp8_quant(x, "rceil")
    largest = x.unflatten(-1, (-1, 32)).abs().amax(-1)
    just = torch.frexp(largest).mantissa == 1.75 / 2
    assert bool(just.any())
    assert torch.equal(scale.view(torch.uint8) + just.to(torch.uint8), their_exponents(x, 8))


def test_nvfp4_codes_with_the_inverse_of_the_global_scale() -> None:
    x = drawn()
    codes, scale, one = ops.nvfp4_quant(x, torch.tensor([2.0**-5]))
    assert same_but_for_zeros_sign(codes, their_codes(x, scale.float(), 16, 1 / one))


def test_their_global_scale_is_the_inverse() -> None:
    helpers = pytest.importorskip("compressed_tensors.quantization.utils.helpers")
    x = drawn()
    theirs = helpers.generate_gparam(x.min(), x.max())
    torch.testing.assert_close(ops.nvfp4_global_scale(x), 1 / theirs, rtol=2.0**-22, atol=0)


def same_but_for_zeros_sign(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """They give -0 where a negative number is rounded to zero, or +0, by the way that runs."""
    every = [torch.stack((each & 15, each >> 4)) for each in (found, expected)]
    ours, theirs = (torch.where(each == 8, 0, each) for each in every)
    return torch.equal(ours, theirs)
