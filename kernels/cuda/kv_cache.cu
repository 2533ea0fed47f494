// Keys and values in an FP8 cache [blocks, block size, heads, head size], whatever its strides: written to slots as
// codes, read from slots as numbers. A slot that is not there is skipped, or read as zeros.
#include "encoding_launch.cuh"

namespace policyquant {
namespace {

// Sixteen columns of a head of a token, of all tokens' [heads, head size].
struct Place {
  uint32_t token;
  uint32_t head;
  int64_t column;
};

struct Places {
  uint32_t count;
  Divisor a_head;
  Divisor heads;

  Places(int64_t tokens, int64_t heads, int64_t columns)
      : count(Layout::counted(tokens * heads * over(columns, kPack))),
        a_head(Layout::counted(over(columns, kPack))),
        heads(Layout::counted(heads)) {}

  __device__ __forceinline__ Place operator[](uint32_t pack) const {
    const uint32_t row = a_head.divide(pack), token = heads.divide(row);
    return {token, row - token * heads.divisor, int64_t(pack - row * a_head.divisor) * kPack};
  }
};

// Where a token is in a cache.
struct Slot {
  bool exists;
  uint32_t block;
  uint32_t position;
};

// The slots of tokens. Slot s is position s % block size of block s / block size.
struct Slots {
  const int64_t* slots;
  Rows tokens;
  uint32_t count;  // how many there are in the cache
  Divisor block_size;

  Slots(const Tensor& slots, const Tensor& cache)
      : slots(static_cast<const int64_t*>(slots.data_ptr())),
        tokens(elements_of(slots)),
        count(Layout::counted(cache.size(0) * cache.size(1))),
        block_size(Layout::counted(cache.size(1))) {
    STD_TORCH_CHECK(slots.scalar_type() == ScalarType::Long, "slots must be int64");
  }

  __device__ __forceinline__ Slot operator[](uint32_t token) const {
    const int64_t slot = __ldg(slots + tokens.offset(token));
    const uint32_t block = block_size.divide(uint32_t(slot));
    return {uint64_t(slot) < count, block, uint32_t(slot) - block * block_size.divisor};
  }
};

struct Cache {
  uint8_t* codes;
  int64_t columns;
  int64_t block_stride;
  int64_t position_stride;
  int64_t head_stride;
  int64_t column_stride;
  const float* scale;
  int64_t scale_stride;  // 0: one scale for all heads

  Cache(const Tensor& cache, const Tensor& scales)
      : codes(codes_of(cache)),
        columns(cache.size(3)),
        block_stride(cache.stride(0)),
        position_stride(cache.stride(1)),
        head_stride(cache.stride(2)),
        column_stride(cache.stride(3)),
        scale(floats_of(scales)),
        scale_stride(scales.size(0) > 1 ? scales.stride(0) : 0) {}

  __device__ __forceinline__ uint8_t* row(const Slot& slot, uint32_t head) const {
    return codes + slot.block * block_stride + slot.position * position_stride + head * head_stride;
  }

  __device__ __forceinline__ float scale_of(uint32_t head) const { return __ldg(scale + head * scale_stride); }
};

// Keys, or values, and the cache that they go to.
struct Written {
  const void* x;
  int64_t token_stride;
  int64_t head_stride;
  int64_t column_stride;
  Cache cache;

  Written(const Tensor& x, const Tensor& cache, const Tensor& scale)
      : x(x.data_ptr()),
        token_stride(x.stride(0)),
        head_stride(x.stride(1)),
        column_stride(x.stride(2)),
        cache(cache, scale) {}
};

struct Write {
  Places places;
  Slots slots;
  Written parts[2];
};

// The heads of keys and those of values may differ in size: `places` has the larger one.
template <Format kFormat, typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) write_packs(const __grid_constant__ Write write) {
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < write.places.count; pack += gridDim.x * kThreads) {
    const Place place = write.places[pack];
    // All is loaded whether there is a slot or not, so that no load waits for another.
    Pack<T> x[2];
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Written& part = write.parts[i];
      const T* row = static_cast<const T*>(part.x) + place.token * part.token_stride + place.head * part.head_stride;
      if (place.column < part.cache.columns) {
        x[i] = load_pack<T, kAligned>(row, place.column, part.cache.columns, part.column_stride);
      }
      scale[i] = part.cache.scale_of(place.head);
    }
    const Slot slot = write.slots[place.token];
    if (!slot.exists) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Cache& cache = write.parts[i].cache;
      if (place.column < cache.columns) {
        store_codes<kAligned>(cache.row(slot, place.head), place.column, cache.columns,
                              encoded_pack<kFormat, T>(x[i], QuotientOf<T>::of_any(usable_scale(scale[i]))),
                              cache.column_stride);
      }
    }
  }
}

struct Read {
  Places places;
  Slots slots;
  Cache cache;
  void* out;  // contiguous
};

template <Format kFormat, typename T, bool kAligned>
__global__ void __launch_bounds__(kThreads) read_packs(const __grid_constant__ Read read) {
  const int64_t columns = read.cache.columns;
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < read.places.count; pack += gridDim.x * kThreads) {
    const Place place = read.places[pack];
    const float scale = read.cache.scale_of(place.head);
    const Slot slot = read.slots[place.token];
    Pack<T> x{};
    if (slot.exists) {
      const Pack<uint8_t> codes = load_pack<uint8_t, kAligned>(read.cache.row(slot, place.head), place.column, columns,
                                                               read.cache.column_stride);
#pragma unroll
      for (int i = 0; i < kPack; i += 2) {
        float pair[2];
        decode_pair<kFormat>(uint16_t(codes.values[i] | (codes.values[i + 1] << 8)), pair);
        x.values[i] = rounded_to<T>(pair[0] * scale);
        x.values[i + 1] = rounded_to<T>(pair[1] * scale);
      }
    }
    T* row = static_cast<T*>(read.out) + (int64_t(place.token) * read.places.heads.divisor + place.head) * columns;
    store_pack<T, kAligned>(row, place.column, columns, x);
  }
}

// Whether every row of the last dimension is whole packs of neighbours and begins at a multiple of 16 bytes.
bool in_packs(const Tensor& x) {
  const int64_t last = x.dim() - 1;
  if (!is_aligned(x.data_ptr()) || x.size(last) % kPack != 0 || x.stride(last) != 1) return false;
  for (int64_t i = 0; i < last; ++i) {
    if (x.size(i) > 1 && x.stride(i) * int64_t(x.element_size()) % 16 != 0) return false;
  }
  return true;
}

void reshape_and_cache_fp8(Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, Tensor slot_mapping,
                           Tensor k_scale, Tensor v_scale) {
  STD_TORCH_CHECK(key.scalar_type() == value.scalar_type(), "keys and values must have one dtype");
  const Write write{Places(key.size(0), key.size(1), std::max(key.size(2), value.size(2))),
                    Slots(slot_mapping, key_cache),
                    {Written(key, key_cache, k_scale), Written(value, value_cache, v_scale)}};
  if (write.places.count == 0 || write.slots.count == 0) return;
  const Gpu gpu(key);
  const unsigned blocks = gpu.blocks(over(write.places.count, kThreads), kThreads);
  const bool aligned = in_packs(key) && in_packs(value) && in_packs(key_cache) && in_packs(value_cache);
  for_format(key_cache, [&](auto format) {
    for_dtype(key, [&](auto type) {
      using T = typename decltype(type)::type;
      for_flag(aligned, [&](auto flag) {
        launch(write_packs<format.value, T, flag.value>, blocks, kThreads, gpu.stream, write);
      });
    });
  });
}

void gather_cache_fp8(Tensor cache, Tensor slots, Tensor scale, Tensor out) {
  if (out.numel() == 0) return;
  const Read read{Places(slots.numel(), cache.size(2), cache.size(3)), Slots(slots, cache), Cache(cache, scale),
                  out.data_ptr()};
  const Gpu gpu(cache);
  const unsigned blocks = gpu.blocks(over(read.places.count, kThreads), kThreads);
  for_format(cache, [&](auto format) {
    for_dtype(out, [&](auto type) {
      using T = typename decltype(type)::type;
      for_flag(in_packs(cache) && in_packs(out), [&](auto flag) {
        launch(read_packs<format.value, T, flag.value>, blocks, kThreads, gpu.stream, read);
      });
    });
  });
}

}  // namespace
}  // namespace policyquant

STABLE_TORCH_LIBRARY_FRAGMENT(policyquant_cuda, library) {
  library.def(
      "reshape_and_cache_fp8(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
      "Tensor slot_mapping, Tensor k_scale, Tensor v_scale) -> ()");
  library.def("gather_cache_fp8(Tensor cache, Tensor slots, Tensor scale, *, Tensor(a!) out) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(policyquant_cuda, POLICYQUANT_DEVICE, library) {
  library.impl("reshape_and_cache_fp8", TORCH_BOX(&policyquant::reshape_and_cache_fp8));
  library.impl("gather_cache_fp8", TORCH_BOX(&policyquant::gather_cache_fp8));
}
