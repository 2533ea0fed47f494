// Sixteen neighbouring elements of a row, which is what a thread reads, computes and writes at a time: 16 codes are one
// store of 16 bytes.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "arithmetic.cuh"

namespace policyquant {

constexpr int kPack = 16;

template <typename T>
struct alignas(16) Pack {
  T values[kPack];
};

// Division of numbers below 2**31 in a multiplication and a shift. The multiplier is 2**(31 + s) / divisor rounded up,
// where 2**s >= divisor; so the quotient is too large by less than 1 / divisor, and never reaches the next integer.
struct Divisor {
  uint32_t divisor;
  uint32_t multiplier;
  int shift;

  explicit Divisor(uint32_t divisor) : divisor(divisor), shift(31) {
    while ((uint64_t(1) << (shift - 31)) < divisor) ++shift;
    multiplier = uint32_t((uint64_t(1) << shift) / std::max(divisor, 1u) + 1);
  }

  __device__ __forceinline__ uint32_t divide(uint32_t n) const { return uint32_t((uint64_t(n) * multiplier) >> shift); }
};

// The elements of a tensor whose dimensions fold into two.
struct Elements {
  Divisor inner;  // elements of the inner one of the two
  int64_t outer_stride;
  int64_t inner_stride;

  __device__ __forceinline__ int64_t offset(uint32_t element) const {
    const uint32_t outer = inner.divide(element);
    return outer * outer_stride + (element - outer * inner.divisor) * inner_stride;
  }
};

// The rows of a tensor whose leading dimensions fold into two.
struct Rows {
  int64_t count;
  int64_t inner;         // rows of the inner one of the two
  int64_t outer_stride;  // in elements
  int64_t inner_stride;

  __device__ __forceinline__ int64_t offset(int64_t row) const {
    if (inner == count) return row * inner_stride;
    return row / inner * outer_stride + row % inner * inner_stride;
  }
};

// Elements column to column + 15 of a row; beyond the last column they are 0. `kAligned`: the stride is 1, the row begins
// at a multiple of 16 bytes, and its length is a multiple of 16 elements.
template <typename T, bool kAligned>
__device__ __forceinline__ Pack<T> load_pack(const T* row, int64_t column, int64_t columns,
                                             int64_t stride) {
  Pack<T> pack;
  if constexpr (kAligned) {
    const uint4* source = reinterpret_cast<const uint4*>(row + column);
    uint4* target = reinterpret_cast<uint4*>(&pack);
#pragma unroll
    for (int i = 0; i < int(sizeof(pack) / sizeof(uint4)); ++i) target[i] = source[i];
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      pack.values[i] = column + i < columns ? row[(column + i) * stride] : T{};
    }
  }
  return pack;
}

template <typename T, bool kAligned>
__device__ __forceinline__ void store_pack(T* row, int64_t column, int64_t columns, const Pack<T>& pack,
                                           int64_t stride = 1) {
  if constexpr (kAligned) {
    uint4* target = reinterpret_cast<uint4*>(row + column);
    const uint4* source = reinterpret_cast<const uint4*>(&pack);
#pragma unroll
    for (int i = 0; i < int(sizeof(pack) / sizeof(uint4)); ++i) target[i] = source[i];
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (column + i < columns) row[(column + i) * stride] = pack.values[i];
    }
  }
}

template <typename T>
__device__ __forceinline__ void widen(const Pack<T>& pack, float (&x)[kPack]) {
#pragma unroll
  for (int i = 0; i < kPack; ++i) x[i] = to_float(pack.values[i]);
}

// Codes of x / scale.
template <Format kFormat>
__device__ __forceinline__ uint4 encoded_pack(const float (&x)[kPack], const Quotient& quotient) {
  float q[kPack];
#pragma unroll
  for (int i = 0; i < kPack; ++i) q[i] = quotient.of(x[i]);
  return make_uint4(encoded_four<kFormat>(q), encoded_four<kFormat>(q + 4), encoded_four<kFormat>(q + 8),
                    encoded_four<kFormat>(q + 12));
}

template <bool kAligned>
__device__ __forceinline__ void store_codes(uint8_t* row, int64_t column, int64_t columns, const uint4& codes,
                                            int64_t stride = 1) {
  Pack<uint8_t> pack;
  *reinterpret_cast<uint4*>(&pack) = codes;
  store_pack<uint8_t, kAligned>(row, column, columns, pack, stride);
}

struct Larger {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};

// Over neighbouring `lanes`, a power of two; all of a warp take part, and all get the result.
template <typename Operation>
__device__ __forceinline__ float over_lanes(float x, int lanes, Operation operation) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    x = operation(x, __shfl_xor_sync(0xFFFFFFFFu, x, distance));
  }
  return x;
}

// Over a block of whole warps, of numbers that are not negative. `shared` holds 32 floats.
template <typename Operation>
__device__ __forceinline__ float over_block(float x, float* shared, Operation operation) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = over_lanes(x, 32, operation);
  if (warps == 1) return x;
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = over_lanes(lane < warps ? shared[lane] : 0.0f, 32, operation);
  __syncthreads();  // before `shared` is written again
  return x;
}

}  // namespace policyquant
