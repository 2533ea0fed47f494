"""A mixture of experts as one operator: the same as its parts one after another, and near the reference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from policyquant.kernels import dispatch, ops, reference
from tests.kernels.device import DEVICE

E4M3 = torch.float8_e4m3fn
implementations = pytest.mark.parametrize("implementation", ["torch", "triton"])


@dataclass(frozen=True)
class Mixture:
    """The arguments of the operator, on the CPU."""

    x: torch.Tensor
    w13: torch.Tensor
    w2: torch.Tensor
    w13_scale: torch.Tensor
    w2_scale: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    activation: str = "silu"
    quantization: str = "token"
    x_scale: torch.Tensor | None = None
    intermediate_scale: torch.Tensor | None = None
    scale_ub: float | None = None
    expert_map: torch.Tensor | None = None
    out_dtype: torch.dtype = torch.bfloat16

    def arguments(self, device: str) -> list[object]:
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        return [value.to(device) if isinstance(value, torch.Tensor) else value for value in values]

    def by(self, implementation: str) -> torch.Tensor:
        with dispatch.force(fused_moe=implementation):
            return ops.fused_moe(*self.arguments(DEVICE)).cpu()  # type: ignore[arg-type]

    def exact(self) -> torch.Tensor:
        return reference.fused_moe(*self.arguments("cpu"))  # type: ignore[arg-type]


def mixture(
    tokens: int = 5, experts: int = 4, k: int = 2, hidden: int = 48, inner: int = 72, scales: str = "channel"
) -> Mixture:
    """Random, with weights of such a size that results are about 1."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def of_weight(rows: int, columns: int) -> torch.Tensor:
        blocks = (-(-rows // 128), -(-columns // 128))
        shape = {"tensor": (experts,), "channel": (experts, rows, 1), "block": (experts, *blocks)}[scales]
        return (torch.rand(shape, generator=generator) + 0.5) / columns**0.5

    ids = torch.stack([torch.randperm(experts, generator=generator)[:k] for _ in range(tokens)])
    return Mixture(
        normal(tokens, hidden).bfloat16(),
        normal(experts, 2 * inner, hidden).to(E4M3),
        normal(experts, hidden, inner).to(E4M3),
        of_weight(2 * inner, hidden),
        of_weight(hidden, inner),
        torch.rand(tokens, k, generator=generator),
        ids.int(),
        quantization="group" if scales == "block" else "token",
    )


def assert_near(y: torch.Tensor, exact: torch.Tensor) -> None:
    """Token by token: where codes of the intermediate flip at ties, a result moves by a part of 2**-4 of one term."""
    error = (y.double() - exact).norm(dim=-1)
    assert bool((error <= 1e-2 * exact.norm(dim=-1) + 1e-6).all()), error / exact.norm(dim=-1)


@pytest.fixture
def memory_full_of_nan() -> Iterator[None]:
    """New memory holds NaN, so that what is read and was never written shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("scales", ["tensor", "channel", "block"])
@pytest.mark.parametrize(("tokens", "experts", "k"), [(1, 4, 2), (5, 1, 1), (19, 4, 3), (3, 9, 1)])
def test_near_the_reference(implementation: str, scales: str, tokens: int, experts: int, k: int) -> None:
    given = mixture(tokens, experts, k, scales=scales)
    assert_near(given.by(implementation), given.exact())


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
def test_activations(implementation: str, activation: str) -> None:
    given = replace(mixture(), activation=activation)
    assert_near(given.by(implementation), given.exact())


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize(("hidden", "inner", "scales"), [(33, 17, "channel"), (130, 200, "block"), (256, 128, "block")])
def test_shapes_that_nothing_divides(implementation: str, hidden: int, inner: int, scales: str) -> None:
    given = mixture(hidden=hidden, inner=inner, scales=scales)
    assert_near(given.by(implementation), given.exact())


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("each", [False, True], ids=["one scale", "a scale an expert"])
def test_static_scales(implementation: str, each: bool) -> None:
    of_x, of_intermediate = torch.tensor([0.01, 0.02, 0.015, 0.03]), torch.tensor([0.005, 0.01, 0.02, 0.007])
    given = replace(
        mixture(),
        quantization="tensor",
        x_scale=of_x if each else of_x[:1],
        intermediate_scale=of_intermediate if each else of_intermediate[:1],
    )
    assert_near(given.by(implementation), given.exact())


@pytest.mark.gpu
@implementations
def test_codes_are_taken_as_they_are(implementation: str) -> None:
    given = mixture()
    codes, scale = reference.per_token_scaled_fp8_quant(given.x)
    as_codes = replace(given, x=codes, x_scale=scale)
    assert torch.equal(as_codes.by(implementation), given.by(implementation))


@pytest.mark.gpu
@implementations
@pytest.mark.usefixtures("memory_full_of_nan")
def test_experts_that_are_elsewhere_add_nothing(implementation: str) -> None:
    """Ids are of all eight experts; four of them are here, and one id is of none."""
    expert_map = torch.tensor([-1, 2, -1, 0, 1, -1, 3, -1], dtype=torch.int32)
    ids = torch.tensor([[1, 0], [2, 5], [3, 6], [4, 10**6], [-1, 7]], dtype=torch.int32)
    given = replace(mixture(), ids=ids, expert_map=expert_map)
    y = given.by(implementation)
    assert_near(y, given.exact())
    assert not y[1].any()
    assert not y[4].any()


@pytest.mark.gpu
@implementations
def test_all_tokens_may_go_to_one_expert(implementation: str) -> None:
    given = mixture(tokens=40, k=1)
    given = replace(given, ids=torch.full_like(given.ids, 3))
    assert_near(given.by(implementation), given.exact())


@pytest.mark.gpu
@implementations
def test_a_row_of_nan_stays_in_its_row(implementation: str) -> None:
    given = mixture()
    x = given.x.clone()
    x[2] = torch.nan
    y, without = replace(given, x=x).by(implementation), given.by(implementation)
    assert bool(y[2].isnan().all())
    others = [0, 1, 3, 4]
    assert torch.equal(y[others], without[others])


@pytest.mark.gpu
@implementations
def test_no_tokens(implementation: str) -> None:
    given = mixture()
    none = replace(given, x=given.x[:0], weights=given.weights[:0], ids=given.ids[:0])
    assert none.by(implementation).shape == (0, 48)


@pytest.mark.gpu
@implementations
def test_strides_are_honoured(implementation: str) -> None:
    given = mixture()
    wide = torch.full((5, 2 * 48 + 1), torch.nan, dtype=torch.bfloat16)
    wide[:, 1::2] = given.x
    strided = replace(
        given, x=wide[:, 1::2], ids=given.ids.t().contiguous().t(), weights=given.weights.t().contiguous().t()
    )
    assert torch.equal(strided.by(implementation), given.by(implementation))


@pytest.mark.gpu
def test_every_run_gives_the_same_bits() -> None:
    given = mixture(tokens=19, k=3)
    assert torch.equal(given.by("triton"), given.by("triton"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "relu"}, "activation is one of silu, gelu, gelu_tanh; found 'relu'"),
        ({"quantization": "tensor"}, "x_scale must be given"),
        ({"x": torch.zeros(5, 47)}, r"x \[T, H\]"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(mixture(), **change).by("torch")  # type: ignore[arg-type]
