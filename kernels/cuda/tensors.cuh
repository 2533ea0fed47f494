// What the host side of an operator asks of torch's tensors and of the GPU, through torch's stable ABI alone: what is
// compiled once runs under torch 2.11 and later, and loads where torch knows no CUDA.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <type_traits>

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/Exception.h>

#include "elements.cuh"

namespace policyquant {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The dispatch key that the operators are registered for.
#ifndef POLICYQUANT_DEVICE
#define POLICYQUANT_DEVICE CUDA
#endif

// The current stream of a device. Only torch's CUDA library can tell, and the library must load without that one, so
// the function is looked up by name when it is first needed.
inline cudaStream_t stream_of(int32_t device) {
  using CurrentStream = AOTITorchError (*)(int32_t, void**);
  static const CurrentStream current = [] {
    constexpr const char* kName = "aoti_torch_get_current_cuda_stream";
    void* found = dlsym(RTLD_DEFAULT, kName);
    if (found == nullptr) {
      // Python loads libraries apart from each other; this one is loaded already, or there is no CUDA tensor.
      void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
      if (library != nullptr) found = dlsym(library, kName);
    }
    return reinterpret_cast<CurrentStream>(found);
  }();
  STD_TORCH_CHECK(current != nullptr, "this torch has no CUDA: ", "aoti_torch_get_current_cuda_stream is not in it");
  void* stream = nullptr;
  STD_TORCH_CHECK(current(device, &stream) == 0, "torch has no current stream for device ", device);
  return static_cast<cudaStream_t>(stream);
}

// Where an operator runs.
struct Gpu {
  cudaStream_t stream;
  int multiprocessors;

  explicit Gpu(const Tensor& x) : stream(stream_of(x.get_device_index())) {
    constexpr int kDevices = 64;
    static std::atomic<int> known[kDevices];
    const int device = x.get_device_index();
    multiprocessors = device < kDevices ? known[device].load(std::memory_order_relaxed) : 0;
    if (multiprocessors == 0) {
      const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
      STD_TORCH_CHECK(error == cudaSuccess, "CUDA error: ", cudaGetErrorString(error));
      if (device < kDevices) known[device].store(multiprocessors, std::memory_order_relaxed);
    }
  }

  // Blocks for `work` blocks of work: no more than the GPU holds at once; each goes on to the next one.
  unsigned blocks(int64_t work, int threads) const {
    const int64_t most = int64_t(multiprocessors) * std::max(1, 2048 / threads);
    return unsigned(std::min(work, most));
  }
};

// Another compiler than nvcc is that of the tests, which run the kernels on a CPU.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), unsigned blocks, int threads, cudaStream_t stream,
            const Arguments&... arguments) {
#ifdef __CUDACC__
  kernel<<<blocks, threads, 0, stream>>>(arguments...);
#else
  cuda_on_cpu::launch(blocks, threads, [&] { kernel(arguments...); });
#endif
  const cudaError_t error = cudaGetLastError();
  STD_TORCH_CHECK(error == cudaSuccess, "CUDA error: ", cudaGetErrorString(error));
}

inline int64_t over(int64_t x, int64_t divisor) { return (x + divisor - 1) / divisor; }

// The first `dimensions` of a tensor, folded into two.
inline Rows folded(const Tensor& x, int64_t dimensions) {
  Rows rows{1, 1, 0, 0};
  int levels = 0;
  for (int64_t i = dimensions - 1; i >= 0; --i) {
    const int64_t size = x.size(i), stride = x.stride(i);
    rows.count *= size;
    if (size == 1) continue;
    if (levels == 0) {
      rows.inner = size;
      rows.inner_stride = stride;
      levels = 1;
    } else if (levels == 1 && stride == rows.inner * rows.inner_stride) {
      rows.inner *= size;
    } else if (levels == 1) {
      rows.outer_stride = stride;
      levels = 2;
    } else {
      // Folding into the outer level needs the rows that it has so far.
      const int64_t outer = rows.count / size / rows.inner;
      STD_TORCH_CHECK(stride == outer * rows.outer_stride, "the leading dimensions do not fold into two");
    }
  }
  STD_TORCH_CHECK(rows.count < (int64_t(1) << 31), "a tensor of ", rows.count, " rows");
  if (levels == 2) {
    rows.by_inner = Divisor(uint32_t(rows.inner));
  } else {
    rows.inner = rows.count;
  }
  return rows;
}

inline Rows rows_of(const Tensor& x) { return folded(x, x.dim() - 1); }

// Its elements, as rows of one.
inline Rows elements_of(const Tensor& x) { return folded(x, x.dim()); }

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// How the rows of x lie, and whether 16-byte loads and stores may be used: every row begins at a multiple of 16 bytes,
// its elements are neighbours, and it is whole packs long.
struct Layout {
  Rows rows;
  int64_t columns;
  int64_t stride;
  bool aligned;

  // Of rows that are `parts` times as long as what comes of them: gate and up lie side by side.
  Layout(const Tensor& x, const Tensor& out, int parts = 1) : rows(rows_of(x)), columns(1), stride(1) {
    if (x.dim() > 0) {
      columns = x.size(x.dim() - 1) / parts;
      stride = x.stride(x.dim() - 1);
    }
    const int64_t size = int64_t(x.element_size());
    aligned = is_aligned(x.data_ptr()) && is_aligned(out.data_ptr()) && stride == 1 && columns % kPack == 0 &&
              (rows.count == 1 || rows.inner_stride * size % 16 == 0) &&
              (rows.inner == rows.count || rows.outer_stride * size % 16 == 0);
  }

  // x as one row where it is contiguous, so that only all of it need be whole packs.
  static Layout of_elements(const Tensor& x, const Tensor& out) {
    Layout layout(x, out);
    if (x.is_contiguous()) {
      layout.columns *= layout.rows.count;
      layout.rows = Rows{1, 1, 0, 0};
      layout.stride = 1;
      layout.aligned = is_aligned(x.data_ptr()) && is_aligned(out.data_ptr()) && layout.columns % kPack == 0;
    }
    return layout;
  }

  uint32_t packs_a_row() const { return counted(over(columns, kPack)); }
  uint32_t packs() const { return counted(over(columns, kPack) * rows.count); }

  // The packs of a tensor that has more are 32 GiB of codes.
  static uint32_t counted(int64_t packs) {
    STD_TORCH_CHECK(packs < (int64_t(1) << 31), "a tensor of more than ", packs, " times ", kPack, " elements");
    return uint32_t(packs);
  }
};

template <typename T>
struct Type {
  using type = T;
};

template <Format format>
using Encoding = std::integral_constant<Format, format>;

// body(Encoding<...>()) for the codes that out holds.
template <typename Body>
void for_format(const Tensor& out, Body body) {
  if (out.scalar_type() == ScalarType::Float8_e4m3fn) return body(Encoding<Format::e4m3fn>());
  STD_TORCH_CHECK(out.scalar_type() == ScalarType::Float8_e5m2, "codes must be float8_e4m3fn or float8_e5m2");
  body(Encoding<Format::e5m2>());
}

// body(Type<T>()) for the type that x is stored as.
template <typename Body>
void for_dtype(const Tensor& x, Body body) {
  switch (x.scalar_type()) {
    case ScalarType::BFloat16:
      return body(Type<bfloat16>());
    case ScalarType::Half:
      return body(Type<float16>());
    case ScalarType::Float:
      return body(Type<float>());
    default:
      STD_TORCH_CHECK(false, "x must be bfloat16, float16 or float32");
  }
}

template <bool value>
using Flag = std::integral_constant<bool, value>;

// body(Flag<...>()), so that a condition is one of the kernel's.
template <typename Body>
void for_flag(bool condition, Body body) {
  condition ? body(Flag<true>()) : body(Flag<false>());
}

}  // namespace policyquant
