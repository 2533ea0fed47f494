// Sixteen neighbouring elements of a row, which is what a thread reads, computes and writes at a time: 16 codes are one
// store of 16 bytes.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "arithmetic.cuh"
#include "pairs.cuh"

namespace policyquant {

constexpr int kPack = 16;

template <typename T>
struct alignas(16) Pack {
  T values[kPack];
};

// Elements of two bytes are computed in pairs.
template <typename T>
constexpr bool kPaired = sizeof(T) == 2;
constexpr int kPairs = kPack / 2;

template <typename T>
__device__ __forceinline__ uint32_t pair_at(const Pack<T>& pack, int i) {
  static_assert(kPaired<T>);
  uint32_t pair;
  std::memcpy(&pair, &pack.values[2 * i], sizeof(pair));
  return pair;
}

template <typename T>
__device__ __forceinline__ void set_pair(Pack<T>& pack, int i, uint32_t pair) {
  static_assert(kPaired<T>);
  std::memcpy(&pack.values[2 * i], &pair, sizeof(pair));
}

// Division of numbers below 2**31 in a multiplication and a shift. The multiplier is 2**(31 + s) / divisor rounded up,
// where 2**s >= divisor; so the quotient is too large by less than 1 / divisor, and never reaches the next integer.
// Without a divisor the quotient is 0.
struct Divisor {
  uint32_t divisor = 0;
  uint32_t multiplier = 0;
  int shift = 31;

  Divisor() = default;
  explicit Divisor(uint32_t divisor) : divisor(divisor) {
    while ((uint64_t(1) << (shift - 31)) < divisor) ++shift;
    multiplier = uint32_t((uint64_t(1) << shift) / std::max(divisor, 1u) + 1);
  }

  __device__ __forceinline__ uint32_t divide(uint32_t n) const { return uint32_t((uint64_t(n) * multiplier) >> shift); }
};

// The rows of a tensor whose leading dimensions fold into two; less than 2**31.
struct Rows {
  int64_t count;
  int64_t inner;         // rows of the inner one of the two
  int64_t outer_stride;  // in elements
  int64_t inner_stride;
  Divisor by_inner{};  // where there are two

  __device__ __forceinline__ int64_t offset(uint32_t row) const {
    const uint32_t outer = by_inner.divide(row);
    return outer * outer_stride + (row - outer * by_inner.divisor) * inner_stride;
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
  for (int i = 0; i < kPack; ++i) {
    if constexpr (kPaired<T>) {
      x[i] = i % 2 == 0 ? low_of<T>(pair_at(pack, i / 2)) : high_of<T>(pair_at(pack, i / 2));
    } else {
      x[i] = to_float(pack.values[i]);
    }
  }
}

// Numbers beyond the ordinary are a matter of a call, so that they take no room among the others.
template <typename T>
__device__ POLICYQUANT_APART float largest_beside_infinities(uint4 first, uint4 second) {
  // x · 0 + x is x, but NaN of infinity.
  uint32_t pairs[kPairs] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
#pragma unroll
  for (int i = 0; i < kPairs; ++i) pairs[i] = fused<T>(pairs[i], 0u, pairs[i]);
  return largest_magnitude<T, kPairs>(pairs);
}

// The largest |x|, where NaN and infinities count as 0.
template <typename T>
__device__ __forceinline__ float largest_finite(const Pack<T>& pack) {
  if constexpr (kPaired<T>) {
    uint32_t pairs[kPairs];
#pragma unroll
    for (int i = 0; i < kPairs; ++i) pairs[i] = pair_at(pack, i);
    const float largest = largest_magnitude<T, kPairs>(pairs);
    if (largest <= kLargestFloat) return largest;
    return largest_beside_infinities<T>(make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]),
                                        make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]));
  } else {
    return largest_finite<kPack>(pack.values);
  }
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

template <typename T>
using QuotientOf = std::conditional_t<kPaired<T>, QuotientOfPairs<T>, Quotient>;

template <Format kFormat, bool kShifted, typename T>
__device__ __forceinline__ uint4 encoded_pairs(const Pack<T>& pack, const QuotientOfPairs<T>& quotient) {
  uint32_t codes[kPack / 4];
#pragma unroll
  for (int i = 0; i < kPack / 4; ++i) {
    float q[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t pair = pair_at(pack, 2 * i + j);
      quotient.of(kShifted ? quotient.shifted(pair) : pair, q + 2 * j);
    }
    codes[i] = encoded_four<kFormat>(q);
  }
  return make_uint4(codes[0], codes[1], codes[2], codes[3]);
}

template <Format kFormat, typename T>
__device__ POLICYQUANT_APART uint4 encoded_shifted(Pack<T> pack, QuotientOfPairs<T> quotient) {
  return encoded_pairs<kFormat, true>(pack, quotient);
}

template <Format kFormat, typename T>
__device__ __forceinline__ uint4 encoded_pack(const Pack<T>& pack, const QuotientOf<T>& quotient) {
  if constexpr (kPaired<T>) {
    if (quotient.shifts()) return encoded_shifted<kFormat>(pack, quotient);
    return encoded_pairs<kFormat, false>(pack, quotient);
  } else {
    return encoded_pack<kFormat>(pack.values, quotient);
  }
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

// The largest over neighbouring 2, 4 or 8 lanes: a lane may be compared with itself, which spares the loop.
__device__ __forceinline__ float largest_over(int lanes, float x) {
#pragma unroll
  for (int distance = 4; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, (lanes - 1) & distance));
  }
  return x;
}

__device__ __forceinline__ float over_warp(float x, Sum) { return over_lanes(x, 32, Sum()); }
__device__ __forceinline__ float over_warp(float x, Larger) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  // What is not negative is ordered as its bits are.
  return float_of(__reduce_max_sync(0xFFFFFFFFu, bits_of(x)));
#else
  return over_lanes(x, 32, Larger());
#endif
}

// Over a block of whole warps, of numbers that are not negative. `shared` holds 32 floats.
template <typename Operation>
__device__ __forceinline__ float over_block(float x, float* shared, Operation operation) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = over_warp(x, operation);
  if (warps == 1) return x;
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = over_warp(lane < warps ? shared[lane] : 0.0f, operation);
  __syncthreads();  // before `shared` is written again
  return x;
}

}  // namespace policyquant
