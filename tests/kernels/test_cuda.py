"""The CUDA library: what it has, and that its kernels run; that they are right, the tests of each family say."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from policyquant.kernels import dispatch, ops, reference
from policyquant.kernels.cuda import library
from policyquant.kernels.machine import CUDA_LIBRARY, Machine
from tests.kernels.cuda_on_cpu import library as on_cpu
from tests.kernels.device import DEVICE

NAMES = sorted(name for name, every in dispatch.operators().items() if any(each.name == "cuda" for each in every))


def schema(operator: Any) -> str:
    """Arguments and results, without the name."""
    return str(operator._schema).split("(", 1)[1]


def packet(name: str) -> Any:
    found = getattr(torch.ops.policyquant, name)
    return found.out if "out" in found.overloads() else found.default


@pytest.mark.parametrize("name", NAMES)
def test_an_operator_of_the_library_takes_what_the_operator_of_its_name_takes(name: str) -> None:
    assert schema(getattr(library, name)) == schema(packet(name))


def test_the_library_has_no_other_operators() -> None:
    library.load()
    found = torch._C._dispatch_get_all_op_names()
    assert sorted(each.split("::")[1] for each in found if each.startswith(f"{library.NAME}::")) == NAMES


def test_it_is_preferred_where_it_is_built_and_missed_where_it_is_not() -> None:
    x = torch.empty(4, 256, device="meta", dtype=torch.bfloat16)
    outs = {"out": torch.empty(4, 256, device="meta", dtype=torch.float8_e4m3fn), "out_scale": torch.empty(4, 1)}
    built = Machine("cuda", (9, 0), 132, frozenset({"triton", CUDA_LIBRARY}))
    assert dispatch.choose("per_token_scaled_fp8_quant", built, (x, None), outs).name == "cuda"
    without = Machine("cuda", (9, 0), 132, frozenset({"triton"}))
    assert dispatch.choose("per_token_scaled_fp8_quant", without, (x, None), outs).name == "triton"
    reasons = {each.name: why for each, why in dispatch.available("per_token_scaled_fp8_quant", without)}
    assert reasons["cuda"] == "not built (policyquant kernels build)"


def test_an_old_gpu_encodes_by_it_too() -> None:
    ampere = Machine("cuda", (8, 0), 108, frozenset({"triton", CUDA_LIBRARY}))
    reasons = {each.name: why for each, why in dispatch.available("group_fp8_quant", ampere)}
    assert reasons["cuda"] is None


@pytest.mark.gpu
def test_dimensions_that_do_not_fold_into_two_are_left_to_others() -> None:
    x = torch.randn(2, 3, 2, 64).to(DEVICE)
    dispatch.launches.clear()
    with dispatch.force("cuda"):
        for each in (x, x.transpose(0, 2), x[0, :, 0]):
            ops.per_token_scaled_fp8_quant(each)
    assert dispatch.launches["per_token_scaled_fp8_quant", "cuda"] == 2


@pytest.mark.gpu
@pytest.mark.parametrize("exponent", range(-20, 21, 4))
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_quotient_in_few_operations_has_the_codes_of_a_division(dtype: torch.dtype, exponent: int) -> None:
    """Of every number of two bytes, by scales of which the products with codes' midpoints are hard to tell apart."""
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype).to(DEVICE)
    mantissas = torch.rand(6, generator=torch.Generator().manual_seed(exponent)) + 1
    for scale in torch.cat([mantissas, 1 + torch.tensor([0, 1, 2**22]) * 2.0**-23]) * 2.0**exponent:
        with dispatch.force("cuda"):
            codes = ops.static_scaled_fp8_quant(x, scale.reshape(1).to(DEVICE)).cpu()
        expected = reference.encode_fp8(x.float().cpu() / scale, torch.float8_e4m3fn)
        assert torch.equal(reference.decode(codes).nan_to_num(1e9), reference.decode(expected).nan_to_num(1e9))


QUOTIENTS = """
#include <cstdio>

#include "pairs.cuh"

using namespace policyquant;

int side(float x, float of) { return (x > of) - (x < of); }

// x of so many significant bits over scales around x / tie, of every tie between codes of either format but for powers
// of two: how many quotients are not on the side of the tie that the rounded one is on.
template <typename T>
long wrong(int bits, long& all) {
  long count = 0;
  for (int x = 1 << (bits - 1); x < 1 << bits; ++x) {
    for (int tie = 1; tie < 32; tie += 2) {
      const float middle = float(x) / float(tie);
      for (int step = -16; step <= 16; ++step) {
        const float scale = float_of(bits_of(middle) + step);
        float q[2];
        const QuotientOfPairs<T> quotient(scale);
        quotient.of(pair_of<T>(float(x), float(-x)), q);
        const int expected = side(float(x) / scale, float(tie));
        count += side(q[0], float(tie)) != expected || side(q[1], float(-tie)) != -expected;
        ++all;
      }
    }
  }
  return count;
}

int main() {
  long all = 0;
  const long count = wrong<bfloat16>(8, all) + wrong<float16>(11, all);
  std::printf("%ld of %ld", count, all);
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_quotient_in_two_operations_is_on_the_right_side_of_every_tie(tmp_path: Path) -> None:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(QUOTIENTS)
    subprocess.run(
        ["g++", "-std=c++17", "-O1", "-ffp-contract=off", "-w", f"-I{library.SOURCES}", source, "-o", program],
        check=True,
    )
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert said == f"0 of {(128 + 1024) * 16 * 33}"


@pytest.mark.gpu
@pytest.mark.parametrize(
    "scale", [2.0**-126, 2.0**99, 1.5 * 2.0**100, (2 - 2.0**-23) * 2.0**110, 2.0**127, float("inf"), float("nan")]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_scales_at_the_ends_of_float32_have_the_codes_of_a_division(dtype: torch.dtype, scale: float) -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)
    with dispatch.force("cuda"):
        codes = ops.static_scaled_fp8_quant(x.to(DEVICE), torch.tensor([scale], device=DEVICE)).cpu()
    expected = reference.encode_fp8(x.float() / scale, torch.float8_e4m3fn)
    assert torch.equal(codes.float().nan_to_num(1e9), expected.float().nan_to_num(1e9))
    assert torch.equal(codes.float().signbit() | codes.isnan(), expected.float().signbit() | expected.isnan())


PROGRAM = """
#include <cuda_runtime.h>
#include <cstdio>
#include <cstring>

__global__ void turned(const int* in, int* out, bool waits) {
  __shared__ int shared[64];
  shared[threadIdx.x] = in[threadIdx.x];
  if (waits) __syncthreads();
  out[threadIdx.x] = shared[63 - threadIdx.x];
}
__global__ void some_never_arrive() {
  if (threadIdx.x < 32) __syncwarp();
  while (threadIdx.x == 40) __syncthreads();
  if (threadIdx.x >= 32 && threadIdx.x < 40) for (;;) __syncwarp();
}
__global__ void apart(const unsigned char* in, uint4* out) {
  *out = __ldg(reinterpret_cast<const uint4*>(in));
}

int main(int, char** arguments) try {
  int in[64], out[64];
  for (int i = 0; i < 64; ++i) in[i] = i, out[i] = -1;
  if (std::strcmp(arguments[1], "deadlock") == 0) {
    cuda_on_cpu::launch(1, 64, [] { some_never_arrive(); });
  } else if (std::strcmp(arguments[1], "unaligned") == 0) {
    alignas(16) unsigned char bytes[32] = {};
    alignas(16) uint4 codes;
    cuda_on_cpu::launch(1, 1, [&] { apart(bytes + 1, &codes); });
  } else {
    const bool waits = std::strcmp(arguments[1], "barrier") == 0;
    for (int round = 0; round < 4; ++round) {
      cuda_on_cpu::launch(1, 64, [&] { turned(in, out, waits); });
      for (int i = 0; i < 64; ++i) {
        if (out[i] != 63 - i) return std::puts("wrong"), 0;
      }
      for (int i = 0; i < 64; ++i) in[i] = i;
    }
    std::puts("right");
  }
} catch (const std::exception& error) {
  std::puts(error.what());
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_cpu_shows_what_threads_do_wrong_to_each_other(tmp_path: Path) -> None:
    source, program = tmp_path / "program.cpp", tmp_path / "program"
    source.write_text(PROGRAM)
    header = Path(on_cpu.__file__).parent
    subprocess.run(["g++", "-std=c++17", "-w", f"-I{header}", source, "-o", program], check=True)

    def said(word: str) -> str:
        return subprocess.run([program, word], capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    assert said("barrier") == "right"
    assert said("none") == "wrong"
    assert said("deadlock") == "some threads of a block wait at a barrier that others never reach"
    assert said("unaligned") == "an access of several bytes at an address that is not a multiple of them"
