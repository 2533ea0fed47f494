"""Which implementation multiplies FP8 with FP8, on machines that need not be here; and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from policyquant.kernels import dispatch, ops, reference
from policyquant.kernels.dispatch import Machine
from policyquant.kernels.libraries import torch_scaled_mm
from policyquant.kernels.triton.scaled_mm import shape_class, splits
from policyquant.kernels.tuning import configuration
from tests.kernels.device import DEVICE

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
EVERYTHING = frozenset({"triton", "deep_gemm", "flashinfer"})


def on(capability: tuple[int, int], packages: frozenset[str] = frozenset({"triton"})) -> Machine:
    return Machine("cuda", capability, 132, packages)


def operands(m: int, n: int, k: int, scales: str, dtype: torch.dtype = E4M3) -> list[Any]:
    """a, b and their scales: of "tensor", "row" or "block"."""
    groups = -(-k // 128)
    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
        "tensor": ((1,), (1,)),
        "row": ((m, 1), (n, 1)),
        "mixed": ((m, 1), (1,)),
        "block": ((m, groups), (-(-n // 128), groups)),
    }
    of_a, of_b = shapes[scales]
    codes = [torch.empty(rows, k, dtype=dtype, device="meta") for rows in (m, n)]
    return [*codes, torch.empty(of_a, device="meta"), torch.empty(of_b, device="meta"), None, None]


def chosen(machine: Machine, scales: str, m: int, n: int, k: int, out: torch.dtype = torch.bfloat16) -> str:
    name = "block_scaled_mm" if scales == "block" else "scaled_mm"
    return dispatch.choose(name, machine, tuple(operands(m, n, k, scales)), {"out": _out(m, n, out)}).name


def _out(m: int, n: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(m, n, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("capability", "packages", "scales", "m", "n", "k", "expected"),
    [
        # Few rows: Triton, which splits K.
        ((9, 0), EVERYTHING, "tensor", 1, 4096, 4096, "triton"),
        ((9, 0), EVERYTHING, "row", 64, 4096, 4096, "triton"),
        ((9, 0), EVERYTHING, "block", 64, 4096, 4096, "triton"),
        # Many: a library where one can.
        ((9, 0), EVERYTHING, "tensor", 65, 4096, 4096, "torch_scaled_mm"),
        ((8, 9), EVERYTHING, "row", 2048, 4096, 4096, "torch_scaled_mm"),
        ((9, 0), EVERYTHING, "block", 2048, 4096, 4096, "deep_gemm"),
        ((10, 0), EVERYTHING, "block", 2048, 4096, 4096, "flashinfer"),
        ((9, 0), frozenset({"triton"}), "block", 2048, 4096, 4096, "torch_scaled_mm"),
        # And Triton where none can.
        ((10, 0), frozenset({"triton"}), "block", 2048, 4096, 4096, "triton"),
        ((8, 9), EVERYTHING, "block", 2048, 4096, 4096, "triton"),
        ((9, 0), EVERYTHING, "block", 2049, 4096, 4097, "triton"),
        ((9, 0), EVERYTHING, "tensor", 2048, 4090, 4096, "triton"),
        ((9, 0), EVERYTHING, "mixed", 2048, 4096, 4096, "triton"),
        # Without Triton, torch.
        ((9, 0), frozenset(), "tensor", 1, 4096, 4096, "torch_scaled_mm"),
        ((12, 0), EVERYTHING, "tensor", 1, 4096, 4096, "torch_scaled_mm"),
    ],
)
def test_a_product_is_run_by(
    capability: tuple[int, int], packages: frozenset[str], scales: str, m: int, n: int, k: int, expected: str
) -> None:
    assert chosen(on(capability, packages), scales, m, n, k) == expected


@pytest.mark.parametrize("scales", ["tensor", "block"])
def test_a_gpu_without_fp8_runs_plain_torch_and_says_why(scales: str) -> None:
    with pytest.warns(RuntimeWarning, match="runs in plain torch.*compute capability 8.9, found 8.0"):
        assert chosen(on((8, 0)), scales, 100, 64, 128) == "torch"


@pytest.mark.parametrize("out", [E4M3, torch.float16])
def test_a_result_that_torch_cannot_make_is_made_by_triton(out: torch.dtype) -> None:
    assert chosen(on((9, 0)), "row", 2048, 4096, 4096, out) == "triton"


@pytest.mark.parametrize("misfit", ["strided", "a byte further", "a wider bias", "narrow rows"])
def test_torch_is_not_given_what_it_would_read_wrongly(misfit: str) -> None:
    given = operands(128, 64, 256, "tensor")
    if misfit == "strided":
        given[0] = torch.empty(256, 128, dtype=E4M3, device="meta").T
    elif misfit == "a byte further":
        given[0] = torch.empty(128 * 256 + 1, dtype=E4M3, device="meta")[1:].view(128, 256)
    elif misfit == "narrow rows":
        given[1] = torch.empty(64, 257, dtype=E4M3, device="meta")[:, :256]
    else:
        given[4] = torch.empty(64, device="meta")
    assert dispatch.choose("scaled_mm", on((9, 0)), tuple(given), {"out": _out(128, 64)}).name == "triton"


def test_sums_of_fewer_bits_are_run_only_where_they_are_asked_for() -> None:
    given, out = tuple(operands(2048, 4096, 4096, "tensor")), {"out": _out(2048, 4096)}
    with dispatch.force(scaled_mm="triton_fast_accum"):
        assert dispatch.choose("scaled_mm", on((9, 0)), given, out).name == "triton_fast_accum"
    names = [each.name for each in dispatch.operators()["scaled_mm"]]
    assert names.index("triton_fast_accum") > max(i for i, name in enumerate(names) if name == "triton")


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [48, 8352])
@pytest.mark.parametrize("by_row", [False, True])
def test_torch_computes_the_same(by_row: bool, rows: int) -> None:
    """torch has these on a CPU too. Early versions of it read past the scales where 256 does not divide the rows."""
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, 64, generator=random).to(E4M3) for size in (rows, 32))
    scale_a, scale_b = (torch.rand(size, 1, generator=random) if by_row else torch.rand(1) for size in (rows, 32))
    out = torch.empty(rows, 32, dtype=torch.bfloat16, device=DEVICE)
    torch_scaled_mm.scaled_mm(*(each.to(DEVICE) for each in (a, b, scale_a, scale_b)), None, None, out=out)
    exact = reference.scaled_mm(a, b, scale_a, scale_b)
    assert float((out.cpu() - exact).norm() / exact.norm()) < 2.5e-3


@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 128, 129, 10**6])
@pytest.mark.parametrize("kind", ["", ", blocks", ", fast accumulation"])
@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), (10, 3)])
def test_every_shape_has_a_configuration(rows: int, kind: str, capability: tuple[int, int]) -> None:
    found = configuration("scaled_mm", capability, shape_class(rows) + kind)
    # What tensor cores call rows are 64 at least, and scales of blocks belong to 128 columns.
    assert found["BLOCK_N" if found["SWAPPED"] else "BLOCK_M"] >= 64
    assert found["BLOCK_K"] == 128
    assert found["PROMOTED"] is (kind == ", blocks" or (kind == "" and capability < (10, 0)))


@pytest.mark.parametrize(
    ("tiles", "steps", "expected"),
    [(1, 1, 1), (1, 7, 1), (1, 8, 2), (64, 56, 4), (64, 32, 4), (132, 56, 2), (133, 56, 1), (1, 1000, 16), (0, 8, 2)],
)
def test_k_is_split_until_every_multiprocessor_has_two_programs(tiles: int, steps: int, expected: int) -> None:
    assert splits(tiles, steps, 132) == expected


@pytest.mark.parametrize("m", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("scales", ["row", "block"])
def test_shapes_without_data_are_those_of_the_result(m: int, scales: str) -> None:
    with FakeTensorMode():
        groups, n, k = 2, 9, 150
        a, b = (torch.empty(rows, k, dtype=E4M3, device="cuda") for rows in (m, n))
        shapes = ((m, 1), (n, 1)) if scales == "row" else ((m, groups), (1, groups))
        y = ops.scaled_mm(a, b, *(torch.empty(shape, device="cuda") for shape in shapes), None, E4M3)
        assert (y.shape, y.stride(), y.dtype, y.device.type) == ((m, n), (n, 1), E4M3, "cuda")


def test_the_scales_say_which_product_is_meant() -> None:
    a, b = torch.ones(3, 200).to(E4M3), torch.ones(130, 200).to(E4M3)
    dispatch.launches.clear()
    by_block = ops.scaled_mm(a, b, torch.full((3, 2), 2.0), torch.full((2, 2), 3.0))
    by_row = ops.scaled_mm(a, b, torch.full((3, 1), 2.0), torch.full((130, 1), 3.0))
    assert torch.equal(by_block, by_row)
    assert dispatch.launches["block_scaled_mm", "torch"] == dispatch.launches["scaled_mm", "torch"] == 1


def test_within_one_block_both_readings_are_the_same() -> None:
    a, b = torch.ones(3, 100).to(E4M3), torch.ones(70, 100).to(E4M3)
    scale_a, scale_b = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[8.0]])
    assert torch.equal(ops.scaled_mm(a, b, scale_a, scale_b), ops.block_scaled_mm(a, b, scale_a, scale_b))


@pytest.mark.parametrize(
    ("scale_a", "scale_b"), [((1,), (2, 2)), ((3, 2), (1,)), ((3, 2), (1, 2)), ((2, 1), (130, 1)), ((3,), (1,))]
)
def test_scales_that_fit_nothing_are_an_error(scale_a: tuple[int, ...], scale_b: tuple[int, ...]) -> None:
    a, b = torch.ones(3, 200).to(E4M3), torch.ones(130, 200).to(E4M3)
    expected = r"expected \[1\] or \[3, 1\] for a and \[1\] or \[130, 1\] for b; or \[3, 2\] for a and \[2, 2\] for b"
    with pytest.raises(ValueError, match=expected):
        ops.scaled_mm(a, b, torch.ones(scale_a), torch.ones(scale_b))


def test_only_an_fp8_result_has_a_scale() -> None:
    a, one = torch.ones(3, 8).to(E4M3), torch.ones(1)
    with dispatch.force("triton"), pytest.raises(ValueError, match="only an FP8 result has one"):
        ops.scaled_mm(a, a, one, one, scale_result=one)
