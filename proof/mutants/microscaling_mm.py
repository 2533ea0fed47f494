"""Mutants of products with weights in MX and NVFP4."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str) -> Mutant:
    return Mutant(
        kind, "kernels/triton/microscaling_mm.py", old, new, "tests/kernels/test_microscaling_mm.py", "triton"
    )


MUTANTS: list[Mutant] = [
    _own("swap the halves of a byte", "tl.interleave(codes & 15, codes >> 4)", "tl.interleave(codes >> 4, codes & 15)"),
    _own("missing mask of K", "mask=(k < K - start)[:, None] & (m < M)[None, :]", "mask=(k < K)[:, None] & (m < M)[None, :]"),
    _own("one scale for all rows", "tl.load(scale + rows * stride_scale_row + block * stride_scale_block, mask", "tl.load(scale + block * stride_scale_block, mask"),
    _own("stale block", "block = tl.full((), start // _MX, tl.int64)", "block = tl.full((), begin // _MX, tl.int64)"),
    _own("stale block of NVFP4", "block = start // _NVFP4 + tl.arange", "block = begin // _NVFP4 + tl.arange"),
    _own("missing scale of activations", "product *= decode_e8m0(tl.load(of_x, mask=m < M, other=0))[None, :]", "product *= 1.0"),
    _own("missing global scale", "sums *= tl.load(global_scale)", "sums *= 1.0"),
    _own("missing global scale of parts", '"block" if global_scale is None else "tensor"', '"block"'),
    _own("missing bias", "sums += tl.load(bias + rows * stride_bias, mask=n < N, other=0.0).to(tl.float32)[:, None]", "sums += 0.0"),
    _own("missing bias of the native kernel", "sums += tl.load(bias + from_n * stride_bias).to(tl.float32)[None, :]", "sums += 0.0"),
    _own("swap the scales", 'sums = tl.dot_scaled(of_a, scales_a, "e4m3", of_b.T, scales_b, "e4m3", sums)', 'sums = tl.dot_scaled(of_a, scales_b, "e4m3", of_b.T, scales_a, "e4m3", sums)'),
    _own("scales as they lie", "tl.reshape(tl.permute(block, (1, 0, 2)), (128, 4))", "tl.reshape(block, (128, 4))"),
    _own("stale scales of a step", "at = (tile.to(tl.int64) * across + step) * 512", "at = (tile.to(tl.int64) * across) * 512"),
    _own("missing mask of the native K", "of_a = tl.load(a_at, mask=(k < left)[None, :], other=0.0)", "of_a = tl.load(a_at)"),
    _own("write past the last row", "mask=(m < M)[:, None] & (n < N)[None, :])\n\n\n@triton.jit\ndef _scales_of_tile", "mask=(m <= M)[:, None] & (n < N)[None, :])\n\n\n@triton.jit\ndef _scales_of_tile"),
]  # fmt: skip
