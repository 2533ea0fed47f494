"""torch's grouped products: who chooses them, what they are not given, and that they are given what they ask for.

torch has shapes and checks of `_scaled_grouped_mm` for tensors without data, and no implementation for a CPU. The one
that stands in for it here multiplies each group by `torch._scaled_mm`, which has one, reads memory as the GPU's kernel
does, and leaves rows behind the last group as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from policyquant.kernels import dispatch, reference
from policyquant.kernels import ops as _registered  # noqa: F401 (importing it defines the operators)
from policyquant.kernels.dispatch import Machine
from policyquant.kernels.libraries import torch_scaled_grouped_mm

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
HOPPER = Machine("cuda", (9, 0), 132, frozenset())


def operands(rows: int = 40, experts: int = 3, n: int = 32, k: int = 64, scales: str = "channel") -> list[Any]:
    """a, b, their scales, offsets and no bias; random."""
    random = torch.Generator().manual_seed(rows)
    of_a, of_b = {
        "tensor": ((1,), (experts,)),
        "one column": ((1,), (experts, 1)),
        "channel": ((rows, 1), (experts, n, 1)),
        "tensor and token": ((rows, 1), (experts,)),
        "block": ((rows, -(-k // 128)), (experts, -(-n // 128), -(-k // 128))),
    }[scales]
    codes = [torch.randn(shape, generator=random).to(E4M3) for shape in ((rows, k), (experts, n, k))]
    known = [torch.rand(shape, generator=random) + 0.5 for shape in (of_a, of_b)]
    return [*codes, *known, torch.arange(1, experts + 1, dtype=torch.int32) * rows // experts, None]


def reason(given: list[Any], out_dtype: torch.dtype = torch.bfloat16, on: Machine = HOPPER) -> str | None:
    """Why it does not run these; None: it does."""
    out = torch.empty(given[0].shape[0], given[1].shape[1], dtype=out_dtype)
    found = dispatch.verdicts("grouped_scaled_mm", on, tuple(given), {"out": out})
    return next(reason for each, reason in found if each.name == "torch_scaled_grouped_mm")


@pytest.mark.parametrize(
    ("capability", "packages", "expected"),
    [((9, 0), frozenset({"triton"}), "triton"), ((9, 0), frozenset(), "torch_scaled_grouped_mm")],
)
def test_it_takes_the_place_of_triton(capability: tuple[int, int], packages: frozenset[str], expected: str) -> None:
    on, given = Machine("cuda", capability, 132, packages), operands()
    out = {"out": torch.empty(40, 32, dtype=torch.bfloat16)}
    assert dispatch.choose("grouped_scaled_mm", on, tuple(given), out).name == expected


@pytest.mark.parametrize(("capability", "said"), [((8, 9), "needs compute capability 9.0"), ((10, 0), "below 9.1")])
def test_it_is_for_one_generation_of_gpus(capability: tuple[int, int], said: str) -> None:
    assert said in str(reason(operands(), on=Machine("cuda", capability, 132, frozenset())))


@pytest.mark.parametrize("scales", ["tensor", "one column", "channel", "tensor and token"])
def test_scales_of_tensors_and_rows_are_its_own(scales: str) -> None:
    assert reason(operands(scales=scales)) is None


def _strided(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _wider(x: torch.Tensor, by: int, start: int = 0) -> torch.Tensor:
    """The same values in rows that are longer and start later."""
    room = torch.zeros(*x.shape[:-1], x.shape[-1] + by, dtype=torch.uint8).view(x.dtype)
    room[..., start : start + x.shape[-1]] = x
    return room[..., start : start + x.shape[-1]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({0: lambda a: a[:0]}, "nothing to multiply"),
        ({0: _strided}, "rows that are contiguous"),
        ({1: _strided}, "rows that are contiguous"),
        ({0: lambda a: _wider(a, 8)}, "multiples of 16 bytes"),
        ({1: lambda b: _wider(b, 16, 1)}, "multiples of 16 bytes"),
        ({0: lambda a: a[:, :56], 1: lambda b: b[..., :56]}, "found K = 56"),
        ({1: lambda b: b[:, :24], 3: lambda s: s[:, :24]}, "N = 24"),
        ({0: lambda a: a.float().to(E5M2)}, "bfloat16 of float8_e4m3fn"),
        ({5: lambda _: torch.ones(3, 32)}, "adds no bias"),
        ({1: lambda b: b[:1].expand(1024, 32, 64), 3: lambda s: s[:1].expand(1024, 32, 1)}, "at most 1023 experts"),
    ],
)
def test_what_torch_would_refuse_or_read_wrongly_is_not_given_to_it(change: dict[int, Any], said: str) -> None:
    given = operands()
    for i, make in change.items():
        given[i] = make(given[i])
    assert said in str(reason(given))


def test_it_has_no_scales_of_blocks_and_no_other_result() -> None:
    assert "not for blocks" in str(reason(operands(scales="block", n=256, k=256)))
    assert "found torch.float16" in str(reason(operands(), torch.float16))


def test_a_contiguous_row_may_be_part_of_a_longer_one() -> None:
    given = operands()
    given[0], given[1] = _wider(given[0], 16), _wider(given[1], 32, 16)
    assert reason(given) is None


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """An implementation for the CPU that is as strict as torch's own, and reads what it is not checked for."""

    def multiply(
        a: torch.Tensor,
        b: torch.Tensor,
        scale_a: torch.Tensor,
        scale_b: torch.Tensor,
        offs: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scale_result: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
        use_fast_accum: bool = False,
    ) -> torch.Tensor:
        assert offs is not None
        checked = [x.to("meta") for x in (a, b, scale_a, scale_b, offs)]
        checked[1] = torch.empty_strided(b.shape, b.stride(), dtype=b.dtype, device="meta")
        shape = torch._scaled_grouped_mm(*checked[:4], offs=checked[4], out_dtype=out_dtype).shape
        out = torch.full(shape, torch.nan, dtype=out_dtype)
        assert not use_fast_accum
        assert offs.is_contiguous()
        start = 0
        for group, end in enumerate(offs.tolist()):
            assert start <= end <= a.shape[0]
            if end > start:
                out[start:end] = torch._scaled_mm(
                    a[start:end], b[group], scale_a[start:end, None], scale_b[None, group], out_dtype=torch.bfloat16
                )
            start = end
        return out

    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_grouped_mm", multiply, "CPU")
    yield
    library._destroy()


def multiplied(given: list[Any]) -> torch.Tensor:
    """Called as such: on a CPU, dispatch runs plain torch."""
    out = torch.full((given[0].shape[0], given[1].shape[1]), torch.nan, dtype=torch.bfloat16)
    torch_scaled_grouped_mm.grouped_scaled_mm(*given, out=out)
    return out


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("scales", ["tensor", "one column", "channel", "tensor and token"])
@pytest.mark.parametrize(
    "ends",
    [
        [16, 16, 40],  # one without rows
        [3, 20, 40],  # numbers that nothing divides
        [0, 5, 20],  # rows behind the last
        [0, 0, 0],  # nothing but those
        [10, 50, 60],  # ends beyond the last row
    ],
)
def test_it_gives_what_the_reference_gives(scales: str, ends: list[int]) -> None:
    given = operands(scales=scales)
    given[4] = torch.tensor(ends, dtype=torch.int32)
    exact = reference.grouped_scaled_mm(*given)
    found = multiplied(given).double()
    assert bool(found.isfinite().all())
    assert float((found - exact).norm()) <= 2.5e-3 * float(exact.norm())


@pytest.mark.usefixtures("on_cpu")
def test_ends_that_do_not_ascend_let_it_read_nothing_that_is_not_there() -> None:
    given = operands()
    given[4] = torch.tensor([20, 7, -3], dtype=torch.int32)
    found = multiplied(given)
    assert bool(found.isfinite().all())
    assert not bool(found[20:].any())


@pytest.mark.usefixtures("on_cpu")
def test_offsets_and_scales_may_lie_anywhere() -> None:
    given = operands()
    expected = multiplied(given)
    apart = [torch.stack([x, x], dim=-1)[..., 0] for x in given[2:5]]
    assert not any(x.is_contiguous() for x in apart)
    assert torch.equal(multiplied([*given[:2], *apart, None]), expected)
