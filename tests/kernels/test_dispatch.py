"""Which implementation runs: by machine, by shape, by what is asked for, and when one turns out not to work."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from policyquant.kernels import dispatch, ops, registration
from policyquant.kernels.dispatch import Implementation, KernelUnavailableError, Machine, choose, force, verdicts
from policyquant.kernels.machine import CUDA_LIBRARY, OPTIONAL_PACKAGES

ROOT = Path(__file__).parents[2]
ALL = frozenset({*OPTIONAL_PACKAGES, CUDA_LIBRARY})
CPU = Machine("cpu", packages=ALL)
INTERPRETING = Machine("cpu", packages=ALL, on_cpu=frozenset({"triton"}))
GPUS = {number: Machine("cuda", (number // 10, number % 10), 100, ALL) for number in (75, 80, 89, 90, 100, 120)}
ROCM = Machine("cuda", (9, 4), 100, ALL, rocm=True)
OPERATOR = "twice"


def _odd(on: Machine, x: torch.Tensor, *, out: torch.Tensor) -> str | None:
    return "the length is odd" if x.shape[-1] % 2 else None


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An operator that is known to the dispatcher alone, and what other tests have left behind set aside."""
    for name in ("_implementations", "_broken"):
        monkeypatch.setattr(dispatch, name, dict(getattr(dispatch, name)))
    monkeypatch.setattr(dispatch, "_warned", set())
    dispatch.register(
        OPERATOR,
        (
            Implementation("deep_gemm", "nowhere:twice", "deep_gemm", (9, 0), (10, 0), _odd),
            Implementation("cuda", "nowhere:twice", CUDA_LIBRARY, (8, 9), refuses=_odd),
            dispatch.triton("nowhere", OPERATOR),
        ),
    )
    yield
    dispatch._candidates.cache_clear()


def chosen(on: Machine, length: int = 4, dtype: torch.dtype = torch.bfloat16) -> str:
    x = torch.empty(3, length, dtype=dtype, device="meta")
    return choose(OPERATOR, on, (x,), {"out": torch.empty_like(x)}).name


def reasons(on: Machine, length: int = 4, dtype: torch.dtype = torch.bfloat16) -> dict[str, str | None]:
    x = torch.empty(3, length, dtype=dtype, device="meta")
    return {each.name: reason for each, reason in verdicts(OPERATOR, on, (x,), {"out": torch.empty_like(x)})}


@pytest.mark.parametrize(
    ("capability", "even", "odd"),
    [(89, "cuda", "triton"), (90, "deep_gemm", "triton"), (100, "cuda", "triton")],
)
def test_the_first_that_the_gpu_and_the_shape_allow_runs(capability: int, even: str, odd: str) -> None:
    assert chosen(GPUS[capability], 4) == even
    assert chosen(GPUS[capability], 5) == odd


@pytest.mark.parametrize("on", [CPU, INTERPRETING])
def test_a_cpu_runs_plain_torch(on: Machine) -> None:
    assert chosen(on) == "torch"


def test_what_is_not_installed_or_built_does_not_run() -> None:
    bare = Machine("cuda", (9, 0), 100)
    with pytest.warns(RuntimeWarning, match="twice runs in plain torch"):
        assert chosen(bare) == "torch"
    assert reasons(bare) == {
        "deep_gemm": "deep_gemm is not installed",
        "cuda": "not built (policyquant kernels build)",
        "triton": "triton is not installed",
        "torch": None,
    }


def test_each_verdict_has_its_reason() -> None:
    assert reasons(GPUS[80], 5) == {
        "deep_gemm": "it needs compute capability 9.0, found 8.0",
        "cuda": "it needs compute capability 8.9, found 8.0",
        "triton": "it needs compute capability 8.9, found 8.0",
        "torch": None,
    }
    assert reasons(GPUS[100], 5) == {
        "deep_gemm": "it needs a compute capability below 10.0, found 10.0",
        "cuda": "the length is odd",
        "triton": None,
        "torch": None,
    }
    assert reasons(GPUS[120])["triton"] == "it needs a compute capability below 11.0, found 12.0"
    assert set(reasons(CPU).values()) == {"it needs a GPU", None}


def test_a_gpu_of_amd_runs_plain_torch_and_is_told_why() -> None:
    with pytest.warns(RuntimeWarning, match="this torch is for AMD's"):
        assert chosen(ROCM) == "torch"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_kernels_refuse_the_formats_of_amd(dtype: torch.dtype) -> None:
    found = reasons(GPUS[90], dtype=dtype)
    assert "240 where e4m3fn has 448" in (found["triton"] or "")
    assert found["torch"] is None
    with pytest.warns(RuntimeWarning, match="240"):
        assert chosen(GPUS[90], dtype=dtype) == "torch"


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_plain_torch_encodes_the_formats_of_amd_with_their_own_largest_value(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([[0.5, -largest, 3 * largest, float("nan"), float("inf"), -0.0]])
    codes = ops.static_scaled_fp8_quant(x, torch.ones(1), dtype)
    expected = torch.tensor([[0.5, -largest, largest, float("nan"), largest, 0.0]])
    assert torch.equal(codes.float().nan_to_num(nan=-1.0), expected.nan_to_num(nan=-1.0))
    _, scale = ops.per_token_scaled_fp8_quant(torch.tensor([[1.0, -2.0]]), None, dtype)
    assert scale.item() == torch.tensor(2.0).div(largest).item()


def test_plain_torch_on_a_gpu_warns_once_for_an_operator_and_a_machine() -> None:
    with pytest.warns(RuntimeWarning, match="triton: it needs compute capability 8.9, found 8.0") as warned:
        assert [chosen(GPUS[80]), chosen(GPUS[80])] == ["torch", "torch"]
    assert len(warned) == 1
    with pytest.warns(RuntimeWarning, match="found 7.5"):
        chosen(GPUS[75])


def test_an_operator_that_has_nothing_else_runs_in_plain_torch_without_a_warning() -> None:
    dispatch.register(OPERATOR, ())
    assert chosen(GPUS[90]) == "torch"


# What is asked for


def test_a_name_for_all_operators_holds_where_it_can() -> None:
    with force("cuda"):
        assert chosen(GPUS[90]) == "cuda"
        assert chosen(GPUS[90], 5) == "triton"
        assert chosen(CPU) == "torch"
    assert chosen(GPUS[90]) == "deep_gemm"


def test_a_name_for_one_operator_holds_or_is_an_error() -> None:
    with force(twice="cuda"):
        assert chosen(GPUS[90]) == "cuda"
        with pytest.raises(KernelUnavailableError, match=r"^twice cannot run as 'cuda': the length is odd$"):
            chosen(GPUS[90], 5)
        with pytest.raises(KernelUnavailableError, match="twice cannot run as 'cuda': it needs a GPU"):
            chosen(CPU)


def test_plain_torch_can_be_asked_for_on_a_gpu_and_does_not_warn() -> None:
    with force("torch"):
        assert chosen(GPUS[90]) == "torch"


def test_tritons_kernels_run_on_a_cpu_where_they_are_interpreted() -> None:
    with force(twice="triton"):
        assert chosen(INTERPRETING) == "triton"
        with pytest.raises(KernelUnavailableError, match="it needs a GPU"):
            chosen(CPU)


def test_what_is_forced_inside_goes_before_what_is_forced_outside() -> None:
    with force("cuda", twice="triton"):
        assert chosen(GPUS[90]) == "triton"
        with force(twice="deep_gemm"):
            assert chosen(GPUS[90]) == "deep_gemm"
        with force("torch"):
            assert chosen(GPUS[90]) == "torch"
        assert chosen(GPUS[90]) == "triton"


def test_what_is_forced_ends_with_an_error_inside() -> None:
    with pytest.raises(ZeroDivisionError), force("torch"):
        raise ZeroDivisionError
    assert not dispatch.forced()


def test_a_thread_does_not_see_what_another_forces() -> None:
    seen = []
    with force("torch"):
        thread = threading.Thread(target=lambda: seen.append(chosen(GPUS[90])))
        thread.start()
        thread.join()
    assert seen == ["deep_gemm"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"name": "trtion"}, "no operator has an implementation 'trtion'; did you mean 'triton'"),
        ({"twise": "triton"}, "there is no operator 'twise'; did you mean 'twice'"),
        ({"twice": "coda"}, "twice has no implementation 'coda'; did you mean 'cuda'"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_with_the_nearest(names: dict[str, str], message: str) -> None:
    with pytest.raises(KernelUnavailableError, match=message), force(**names):
        pass


# The environment


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", {}),
        ("torch", {"*": "torch"}),
        (" scaled_mm = torch , rms_norm=torch", {"scaled_mm": "torch", "rms_norm": "torch"}),
        ("torch,scaled_mm=torch,", {"*": "torch", "scaled_mm": "torch"}),
    ],
)
def test_the_environment_forces(monkeypatch: pytest.MonkeyPatch, value: str, expected: dict[str, str]) -> None:
    monkeypatch.setattr(dispatch, "_by_environment", {})
    monkeypatch.setenv(dispatch.VARIABLE, value)
    dispatch.force_as_environment_says()
    assert dispatch.forced() == expected


def test_a_call_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_by_environment", {OPERATOR: "triton"})
    assert chosen(GPUS[90]) == "triton"
    with force("cuda"):
        assert chosen(GPUS[90]) == "cuda"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("trtion", "no operator has an implementation 'trtion'"),
        ("scaled_m=torch", "there is no operator 'scaled_m'; did you mean 'scaled_mm'"),
        ("scaled_mm=tosch", "scaled_mm has no implementation 'tosch'; did you mean 'torch'"),
        ("scaled_mm=", "scaled_mm has no implementation ''"),
        ("=torch", "there is no operator ''"),
        ("torch,scaled_mm=torch,scaled_mm=torch", "scaled_mm: both 'torch' and 'torch'"),
        ("torch,triton", "all operators: both 'torch' and 'triton'"),
    ],
)
def test_an_environment_that_is_wrong_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    monkeypatch.setenv(dispatch.VARIABLE, value)
    with pytest.raises(KernelUnavailableError, match=f"environment variable POLICYQUANT_KERNELS: {message}"):
        dispatch.force_as_environment_says()
    assert not dispatch.forced()


def test_an_environment_that_is_wrong_ends_the_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from policyquant.kernels import ops"],
        env={"POLICYQUANT_KERNELS": "cudda", "PATH": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "POLICYQUANT_KERNELS: no operator has an implementation 'cudda'" in done.stderr.splitlines()[-1]


# Implementations that turn out not to work


class TritonError(Exception):
    """Named as Triton's own, which none of its errors of compiling can be raised without."""


def _as_if_on(monkeypatch: pytest.MonkeyPatch, on: Machine, *functions: Any) -> registration._Operator:
    """An operator whose implementations are these functions, called with CPU tensors as if a GPU had them."""
    found = {f"here:{number}": function for number, function in enumerate(functions)}
    monkeypatch.setattr(dispatch, "_loaded", lambda name: found[name]())
    monkeypatch.setattr(registration, "_machine", lambda inputs, targets: on)
    ways = [Implementation(f"way_{number}", name) for number, name in enumerate(found)]
    dispatch.register(OPERATOR, tuple(ways))
    monkeypatch.setattr(dispatch, "launches", type(dispatch.launches)())

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    return registration._Operator(OPERATOR, ("out",), plain, torch.empty_like, False, None)


def _works() -> Any:
    return lambda x, *, out: out.copy_(x + x)


def _raises_when_called(error: Exception) -> Any:
    def load() -> Any:
        def function(x: torch.Tensor, *, out: torch.Tensor) -> None:
            out.fill_(-1.0)
            raise error

        return function

    return load


def _raises_when_imported() -> Any:
    raise ImportError("no module named 'nowhere'")


BROKEN = {
    "import": _raises_when_imported,
    "compiler": _raises_when_called(TritonError("at 3:5: unsupported\nout of resource: shared memory")),
    "no C compiler": _raises_when_called(RuntimeError("Failed to find C compiler. Please specify via CC")),
    "no ptxas": _raises_when_called(FileNotFoundError("ptxas")),
    "gcc": _raises_when_called(subprocess.CalledProcessError(1, ["gcc"])),
    "newer than the driver": _raises_when_called(RuntimeError("Triton Error [CUDA]: device kernel image is invalid")),
}
X = torch.tensor([1.0, 2.5])


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_an_implementation_that_cannot_be_made_to_run_gives_way_to_the_next_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    called = _as_if_on(monkeypatch, GPUS[90], broken, _works)
    with pytest.warns(RuntimeWarning, match="twice runs as 'way_1', not as 'way_0': it cannot be made") as warned:
        results = [called.dispatched(X) for _ in range(3)]
    assert len(warned) == 1
    assert all(torch.equal(result, X * 2) for result in results)
    assert dispatch.launches == {(OPERATOR, "way_1"): 3}
    assert "cannot be made to run here" in str(reasons(GPUS[90])["way_0"])


def test_the_last_to_give_way_to_is_plain_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    called = _as_if_on(monkeypatch, GPUS[90], *[BROKEN["compiler"]] * 2)
    out = torch.empty(2)
    with pytest.warns(RuntimeWarning, match="twice runs as") as warned:
        called.dispatched_out(X, out=out)
    assert [str(each.message).partition(":")[0] for each in warned] == [
        "twice runs as 'way_1', not as 'way_0'",
        "twice runs as 'torch', not as 'way_1'",
    ]
    assert torch.equal(out, X * 2)
    assert dispatch.launches == {(OPERATOR, "torch"): 1}


@pytest.mark.parametrize("error", [ValueError("b is 2 wide"), RuntimeError("CUDA error: an illegal memory access")])
def test_other_errors_of_an_implementation_are_raised(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    called = _as_if_on(monkeypatch, GPUS[90], _raises_when_called(error), _works)
    with pytest.raises(type(error), match=str(error)):
        called.dispatched(X)


def test_a_broken_implementation_that_is_asked_for_by_name_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    called = _as_if_on(monkeypatch, GPUS[90], BROKEN["compiler"], _works)
    with force(twice="way_0"), pytest.raises(KernelUnavailableError, match="shared memory"):
        called.dispatched(X)


def test_nothing_takes_over_what_may_have_overwritten_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    called = _as_if_on(monkeypatch, GPUS[90], BROKEN["compiler"], _works)
    x = torch.ones(2)
    with pytest.raises(TritonError):
        called.dispatched_out(x, out=x)


def test_errors_of_interpreted_kernels_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    called = _as_if_on(monkeypatch, INTERPRETING, BROKEN["compiler"], _works)
    monkeypatch.setattr(Implementation, "why_not", lambda self, on: None)
    with force("way_0"), pytest.raises(TritonError):
        called.dispatched(X)


def test_the_name_that_tells_tritons_errors_is_that_of_their_base() -> None:
    errors = pytest.importorskip("triton.errors")
    runtime = pytest.importorskip("triton.runtime.errors")
    assert errors.TritonError.__name__ == TritonError.__name__
    assert issubclass(runtime.OutOfResources, errors.TritonError)


# All operators


def test_every_implementation_needs_a_package_that_is_looked_for() -> None:
    needed = {each.package for every in dispatch.operators().values() for each in every} - {None}
    assert needed <= {*OPTIONAL_PACKAGES, CUDA_LIBRARY}


def test_launches_are_counted_by_operator_and_implementation() -> None:
    dispatch.launches.clear()
    ops.silu_and_mul(torch.ones(2, 4))
    ops.silu_and_mul(torch.ones(2, 4))
    assert dispatch.launches == {("silu_and_mul", "torch"): 2}
