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

  __device__ __forceinline__ Pack<T> load(uint32_t row, int64_t column) const {
    return load_pack<T, kAligned>(x + rows.offset(row), column, columns, stride);
  }
};

// Where scales go: one for each group of a row.
struct ScaleTarget {
  float* scale;
  Rows rows;
  int64_t stride;  // from group to group
  bool power_of_two;

  __device__ __forceinline__ float write(float amax, float largest, float bound, uint32_t row, uint32_t group,
                                         bool writes) const {
    float value = scale_of(amax, largest, bound);
    if (power_of_two) value = power_of_two_from(value);
    if (writes) scale[rows.offset(row) + group * stride] = value;
    return value;
  }
};

constexpr int kThreads = 256;
constexpr int kPacksAThread = 4;  // of a row, where there are rows enough to fill the GPU
// Of a block that has a row: more would not leave them registers enough, least of all for the addresses of elements that
// are not known to be neighbours.
template <bool kAligned>
constexpr int kMostThreads = kAligned ? 512 : 256;

// How many packs of a row a thread has in registers at most.
template <typename T, bool kAligned>
constexpr int kHeldPacks = kAligned && kPaired<T> ? kPacksAThread : 1;

// The elements of a source as they are, in contiguous rows.
template <typename Source>
__global__ void __launch_bounds__(kThreads)
    store_elements(Source source, typename Source::T* __restrict__ out, uint32_t packs, Divisor packs_a_row) {
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < packs; pack += gridDim.x * kThreads) {
    const uint32_t row = packs_a_row.divide(pack);
    const int64_t column = int64_t(pack - row * packs_a_row.divisor) * kPack;
    store_pack<typename Source::T, Source::kAligned>(out + int64_t(row) * source.columns, column, source.columns,
                                                     source.load(row, column));
  }
}

// Codes are contiguous rows.
template <Format kFormat, typename Source>
__global__ void __launch_bounds__(kThreads)
    encode_with_scale(Source source, const float* __restrict__ scale, uint8_t* __restrict__ out, uint32_t packs,
                      Divisor packs_a_row) {
  using T = typename Source::T;
  const QuotientOf<T> quotient = QuotientOf<T>::of_any(usable_scale(__ldg(scale)));
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < packs; pack += gridDim.x * kThreads) {
    const uint32_t row = packs_a_row.divide(pack);
    const int64_t column = int64_t(pack - row * packs_a_row.divisor) * kPack;
    store_codes<Source::kAligned>(out + int64_t(row) * source.columns, column, source.columns,
                                  encoded_pack<kFormat, T>(source.load(row, column), quotient));
  }
}

// A row is a block's. Its first packs stay in registers from the search for the largest to the encoding.
template <Format kFormat, typename Source>
__global__ void __launch_bounds__(kMostThreads<Source::kAligned>)
    encode_rows(Source source, ScaleTarget target, uint8_t* __restrict__ out, uint32_t packs_a_row, float bound) {
  using T = typename Source::T;
  constexpr int kHeld = kHeldPacks<T, Source::kAligned>;
  __shared__ float shared[32];
  for (uint32_t row = blockIdx.x; row < uint32_t(source.rows.count); row += gridDim.x) {
    Pack<T> held[kHeld];
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t pack = threadIdx.x + i * blockDim.x;
      if (pack < packs_a_row) held[i] = source.load(row, int64_t(pack) * kPack);
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (threadIdx.x + i * blockDim.x < packs_a_row) amax = fmaxf(amax, largest_finite(held[i]));
    }
    for (uint32_t pack = threadIdx.x + kHeld * blockDim.x; pack < packs_a_row; pack += blockDim.x) {
      amax = fmaxf(amax, largest_finite(source.load(row, int64_t(pack) * kPack)));
    }
    amax = over_block(amax, shared, Larger());
    const QuotientOf<T> quotient(target.write(amax, largest_of(kFormat), bound, row, 0, threadIdx.x == 0));
    uint8_t* codes = out + int64_t(row) * source.columns;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t pack = threadIdx.x + i * blockDim.x;
      if (pack < packs_a_row) {
        store_codes<Source::kAligned>(codes, int64_t(pack) * kPack, source.columns,
                                      encoded_pack<kFormat, T>(held[i], quotient));
      }
    }
    for (uint32_t pack = threadIdx.x + kHeld * blockDim.x; pack < packs_a_row; pack += blockDim.x) {
      const int64_t column = int64_t(pack) * kPack;
      store_codes<Source::kAligned>(codes, column, source.columns,
                                    encoded_pack<kFormat, T>(source.load(row, column), quotient));
    }
  }
}

// A group is that of `lanes` neighbouring threads, so its elements stay in their registers. Rows are padded to whole
// groups: packs_a_row is a multiple of `lanes`.
template <Format kFormat, typename Source>
__global__ void __launch_bounds__(kThreads)
    encode_groups(Source source, ScaleTarget target, uint8_t* __restrict__ out, uint32_t packs, Divisor packs_a_row,
                  int lanes) {
  using T = typename Source::T;
  // Whole warps stay in the loop, for the sake of the shuffles.
  const uint32_t rounded = (packs + 31) / 32 * 32;
  const uint32_t filled = uint32_t((source.columns + kPack - 1) / kPack);
  const uint32_t group_shift = lanes == 8 ? 3 : (lanes == 4 ? 2 : 1);
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < rounded; pack += gridDim.x * kThreads) {
    const uint32_t row = packs_a_row.divide(pack);
    const uint32_t place = pack - row * packs_a_row.divisor;
    const int64_t column = int64_t(place) * kPack;
    const bool here = pack < packs && place < filled;
    Pack<T> x = {};
    if (here) x = source.load(row, column);
    const float amax = largest_over(lanes, largest_finite(x));
    const bool writes = pack < packs && (place & (lanes - 1)) == 0;
    const float scale = target.write(amax, largest_of(kFormat), kLargestFloat, row, place >> group_shift, writes);
    if (here) {
      store_codes<Source::kAligned>(out + int64_t(row) * source.columns, column, source.columns,
                                    encoded_pack<kFormat, T>(x, QuotientOf<T>(scale)));
    }
  }
}

}  // namespace policyquant
