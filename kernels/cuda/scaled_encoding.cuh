// Encoding rows of 16-element packs, whatever they are made of: with one given scale, with a scale for each row, or with
// one for each group of a row. A Source gives the packs: a stored tensor, or what is computed of one.
#pragma once

#include "elements.cuh"

namespace policyquant {

// Elements as they are stored.
template <typename T_, bool kAligned_>
struct Stored {
  using T = T_;
  static constexpr bool kAligned = kAligned_;
  const T* x;
  Rows rows;
  int64_t columns;
  int64_t stride;

  __device__ __forceinline__ Pack<T> load(int64_t row, int64_t column) const {
    return load_pack<T, kAligned>(x + rows.offset(row), column, columns, stride);
  }
};

// Where scales go: one for each group of a row.
struct ScaleTarget {
  float* scale;
  Rows rows;
  int64_t stride;  // from group to group
  bool power_of_two;

  __device__ __forceinline__ float write(float amax, float largest, float bound, int64_t row, int64_t group,
                                         bool writes) const {
    float value = scale_of(amax, largest, bound);
    if (power_of_two) value = power_of_two_from(value);
    if (writes) scale[rows.offset(row) + group * stride] = value;
    return value;
  }
};

constexpr int kThreads = 256;
constexpr int kMostThreads = 512;  // of a block that has a row: more would not leave them registers enough

// The elements of a source as they are, in contiguous rows.
template <typename Source>
__global__ void __launch_bounds__(kThreads)
    store_elements(Source source, typename Source::T* __restrict__ out, uint32_t packs, uint32_t packs_a_row) {
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < packs; pack += gridDim.x * kThreads) {
    const int64_t row = source.rows.count == 1 ? 0 : pack / packs_a_row;
    const int64_t column = int64_t(pack - uint32_t(row) * packs_a_row) * kPack;
    store_pack<typename Source::T, Source::kAligned>(out + row * source.columns, column, source.columns,
                                                     source.load(row, column));
  }
}

// Codes are contiguous rows.
template <Format kFormat, typename Source>
__global__ void __launch_bounds__(kThreads)
    encode_with_scale(Source source, const float* __restrict__ scale, uint8_t* __restrict__ out, uint32_t packs,
                      uint32_t packs_a_row) {
  const Quotient quotient(usable_scale(__ldg(scale)));
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < packs; pack += gridDim.x * kThreads) {
    const int64_t row = source.rows.count == 1 ? 0 : pack / packs_a_row;
    const int64_t column = int64_t(pack - uint32_t(row) * packs_a_row) * kPack;
    float x[kPack];
    widen(source.load(row, column), x);
    store_codes<Source::kAligned>(out + row * source.columns, column, source.columns,
                                  encoded_pack<kFormat>(x, quotient));
  }
}

// A row is a block's. Its first packs stay in registers from the search for the largest to the encoding.
template <Format kFormat, typename Source>
__global__ void __launch_bounds__(kMostThreads)
    encode_rows(Source source, ScaleTarget target, uint8_t* __restrict__ out, uint32_t packs_a_row, float bound) {
  using T = typename Source::T;
  constexpr int kHeld = Source::kAligned && sizeof(T) == 2 ? 2 : 1;
  __shared__ float shared[32];
  for (int64_t row = blockIdx.x; row < source.rows.count; row += gridDim.x) {
    Pack<T> held[kHeld];
    float x[kPack];
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t pack = threadIdx.x + i * blockDim.x;
      if (pack < packs_a_row) held[i] = source.load(row, int64_t(pack) * kPack);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (threadIdx.x + i * blockDim.x < packs_a_row) {
        widen(held[i], x);
        amax = fmaxf(amax, largest_finite<kPack>(x));
      }
    }
    for (uint32_t pack = threadIdx.x + kHeld * blockDim.x; pack < packs_a_row; pack += blockDim.x) {
      widen(source.load(row, int64_t(pack) * kPack), x);
      amax = fmaxf(amax, largest_finite<kPack>(x));
    }
    amax = over_block(amax, shared, Larger());
    const Quotient quotient(target.write(amax, largest_of(kFormat), bound, row, 0, threadIdx.x == 0));
    uint8_t* codes = out + row * source.columns;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t pack = threadIdx.x + i * blockDim.x;
      if (pack < packs_a_row) {
        widen(held[i], x);
        store_codes<Source::kAligned>(codes, int64_t(pack) * kPack, source.columns,
                                      encoded_pack<kFormat>(x, quotient));
      }
    }
    for (uint32_t pack = threadIdx.x + kHeld * blockDim.x; pack < packs_a_row; pack += blockDim.x) {
      widen(source.load(row, int64_t(pack) * kPack), x);
      store_codes<Source::kAligned>(codes, int64_t(pack) * kPack, source.columns, encoded_pack<kFormat>(x, quotient));
    }
  }
}

// A group is that of `lanes` neighbouring threads, so its elements stay in their registers. Rows are padded to whole
// groups: packs_a_row is a multiple of `lanes`.
template <Format kFormat, typename Source>
__global__ void __launch_bounds__(kThreads)
    encode_groups(Source source, ScaleTarget target, uint8_t* __restrict__ out, uint32_t packs, uint32_t packs_a_row,
                  int lanes) {
  // Whole warps stay in the loop, for the sake of the shuffles.
  const uint32_t rounded = (packs + 31) / 32 * 32;
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < rounded; pack += gridDim.x * kThreads) {
    const uint32_t row = pack / packs_a_row;
    const uint32_t place = pack - row * packs_a_row;
    const int64_t column = int64_t(place) * kPack;
    const bool here = pack < packs && column < source.columns;
    float x[kPack] = {};
    if (here) widen(source.load(row, column), x);
    const float amax = over_lanes(largest_finite<kPack>(x), lanes, Larger());
    const float scale =
        target.write(amax, largest_of(kFormat), kLargestFloat, row, place / lanes, pack < packs && place % lanes == 0);
    if (here) {
      store_codes<Source::kAligned>(out + int64_t(row) * source.columns, column, source.columns,
                                    encoded_pack<kFormat>(x, Quotient(scale)));
    }
  }
}

}  // namespace policyquant
