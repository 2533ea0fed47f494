// Which experts a token goes to, and the order in which a mixture's products read its tokens.
#include <optional>

#include "tensors.cuh"

namespace policyquant {
namespace {

constexpr unsigned kWarp = 0xFFFFFFFFu;

// ---- choosing experts ----

constexpr int kThreadsChoosing = 128;
constexpr int kTaken = -0x7FFFFFFF - 1;  // less than every key

// Integers that order as numbers do; NaN is the largest, and -0 is 0.
__device__ __forceinline__ int key_of(float x) {
  if (x != x) return 0x7FFFFFFF;
  const int bits = x == 0.0f ? 0 : int(bits_of(x));
  return bits < 0 ? bits ^ 0x7FFFFFFF : bits;
}

__device__ __forceinline__ float number_of(int key) { return float_of(uint32_t(key < 0 ? key ^ 0x7FFFFFFF : key)); }

template <typename T>
struct Logits {
  const T* logits;
  uint32_t tokens;
  int experts;
  int64_t row_stride;
  int64_t column_stride;
  const float* bias;  // null: there is none
  int64_t bias_stride;
  int k;  // at most as many as a warp has lanes
  bool renormalize;
  float* weights;
  int* ids;

  __device__ __forceinline__ float of(uint32_t token, int expert) const {
    return to_float(logits[token * row_stride + expert * column_stride]);
  }
};

// A token is a warp's. Lane l holds the keys of the experts l, l + 32, …, and at last the expert chosen as number l.
template <typename T, int kHeld, bool kSigmoid>
__global__ void __launch_bounds__(kThreadsChoosing) choose(const __grid_constant__ Logits<T> logits) {
  constexpr int kWarps = kThreadsChoosing / 32;
  const int lane = threadIdx.x % 32;
  for (uint32_t token = blockIdx.x * kWarps + threadIdx.x / 32; token < logits.tokens; token += gridDim.x * kWarps) {
    int keys[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int expert = i * 32 + lane;
      keys[i] = kTaken;
      if (expert < logits.experts) {
        float x = logits.of(token, expert);
        if (kSigmoid && logits.bias != nullptr) {
          x = sigmoid<float>(x) + __ldg(logits.bias + expert * logits.bias_stride);
        }
        keys[i] = key_of(x);
      }
    }
    float largest = 0.0f, powers = 0.0f;
    if constexpr (!kSigmoid) {
      int key = kTaken;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) key = keys[i] > key ? keys[i] : key;
      largest = number_of(__reduce_max_sync(kWarp, key));
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (keys[i] != kTaken) powers += std::exp(number_of(keys[i]) - largest);
      }
      powers = over_lanes(powers, 32, Sum());
    }

    int chosen = 0;
    for (int rank = 0; rank < logits.k; ++rank) {
      int best = kTaken, expert = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (keys[i] > best) {
          best = keys[i];
          expert = i * 32 + lane;
        }
      }
      const int most = __reduce_max_sync(kWarp, best);
      const int taken = __reduce_min_sync(kWarp, best == most ? expert : 0x7FFFFFFF);
      if (lane == rank) chosen = taken;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (taken == i * 32 + lane) keys[i] = kTaken;
      }
    }

    float weight = 0.0f;
    if (lane < logits.k) {
      const float x = logits.of(token, chosen);
      weight = kSigmoid ? sigmoid<float>(x) : std::exp(x - largest) / powers;
    }
    if (logits.renormalize) {
      const float total = over_lanes(weight, 32, Sum());
      // Where all scores underflow, weights are zeros instead of NaN.
      weight /= total < kSmallestScale ? kSmallestScale : total;
    }
    if (lane < logits.k) {
      logits.weights[int64_t(token) * logits.k + lane] = weight;
      logits.ids[int64_t(token) * logits.k + lane] = chosen;
    }
  }
}

int* ints_of(const Tensor& x) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Int, "results must be int32");
  return static_cast<int*>(x.data_ptr());
}

// body(std::integral_constant<int, ...>()) for so many experts a lane.
template <typename Body>
void for_held(int64_t experts, Body body) {
  if (experts <= 64) return body(std::integral_constant<int, 2>());
  if (experts <= 256) return body(std::integral_constant<int, 8>());
  if (experts <= 512) return body(std::integral_constant<int, 16>());
  STD_TORCH_CHECK(experts <= 2048, "at most 2048 experts, found ", experts);
  body(std::integral_constant<int, 64>());
}

template <bool kSigmoid>
void choose_experts(const Tensor& x, int64_t k, bool renormalize, const Tensor* bias, const Tensor& out,
                    const Tensor& out_ids) {
  if (out.numel() == 0) return;
  STD_TORCH_CHECK(k <= 32, "at most 32 choices, found ", k);
  STD_TORCH_CHECK(out.numel() < (int64_t(1) << 31), "choices are numbered in 32 bits");
  const Gpu gpu(x);
  const unsigned blocks = gpu.blocks(over(x.size(0), kThreadsChoosing / 32), kThreadsChoosing);
  for_dtype(x, [&](auto type) {
    using T = typename decltype(type)::type;
    Logits<T> logits{static_cast<const T*>(x.data_ptr()), uint32_t(x.size(0)), int(x.size(1)), x.stride(0), x.stride(1),
                     nullptr, 0, int(k), renormalize, static_cast<float*>(out.data_ptr()), ints_of(out_ids)};
    if (bias != nullptr) {
      STD_TORCH_CHECK(bias->scalar_type() == ScalarType::Float, "the bias must be float32");
      logits.bias = static_cast<const float*>(bias->data_ptr());
      logits.bias_stride = bias->stride(0);
    }
    for_held(x.size(1), [&](auto held) {
      launch(choose<T, held.value, kSigmoid>, blocks, kThreadsChoosing, gpu.stream, logits);
    });
  });
}

void topk_softmax(Tensor logits, int64_t k, bool renormalize, Tensor out, Tensor out_ids) {
  choose_experts<false>(logits, k, renormalize, nullptr, out, out_ids);
}

void topk_sigmoid(Tensor logits, int64_t k, bool renormalize, std::optional<Tensor> bias, Tensor out, Tensor out_ids) {
  choose_experts<true>(logits, k, renormalize, bias.has_value() ? &*bias : nullptr, out, out_ids);
}

// ---- aligning ----

constexpr int kMostExperts = 4096;  // whose counts have room in shared memory
constexpr int kMostThreads = 1024;
constexpr int kFewestThreads = 128;
constexpr int kPairsAThread = 4;  // or more, where that takes more than the most threads

// Which of the experts here a pair of token and choice goes to.
template <typename Id>
struct Choices {
  const Id* ids;
  Rows pairs;
  const int32_t* expert_map;  // null: an id is the expert's number
  int64_t map_stride;
  uint64_t known;  // ids are less than that
  int experts;

  // `experts` if it goes to none of those here.
  __device__ __forceinline__ int operator[](uint32_t pair) const {
    int64_t expert = __ldg(ids + pairs.offset(pair));
    if (uint64_t(expert) >= known) return experts;
    if (expert_map != nullptr) expert = __ldg(expert_map + expert * map_stride);
    return uint64_t(expert) < uint64_t(experts) ? int(expert) : experts;
  }
};

template <typename Id>
struct Alignment {
  Choices<Id> choices;
  uint32_t total;  // pairs
  Divisor block;
  int blocks;
  int* sorted_ids;
  int* expert_ids;
  int* num_padded;

  __device__ __forceinline__ int blocks_for(int pairs) const { return block.divide(pairs + block.divisor - 1); }
};

// A block has one expert, and the last one what lies behind all experts'. Each counts for itself the pairs of those
// before its own, so that none waits for another and nothing depends on an order.
template <typename Id>
__global__ void __launch_bounds__(kMostThreads) align(const __grid_constant__ Alignment<Id> to) {
  __shared__ int counts[kMostExperts];
  __shared__ int places_before[32];
  __shared__ int own_pairs[32];
  const int own = blockIdx.x;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int expert = threadIdx.x; expert < own; expert += blockDim.x) counts[expert] = 0;
  __syncthreads();

  // A warp's pairs are neighbours, so that it knows the places of its own without the other warps' rounds.
  const uint32_t rounds = (to.total + blockDim.x - 1) / blockDim.x;
  const uint32_t begin = warp * rounds * 32;
  const uint32_t end = begin + rounds * 32 < to.total ? begin + rounds * 32 : to.total;
  int found = 0;
#pragma unroll 4
  for (uint32_t pair = begin + lane; pair < end; pair += 32) {
    const int expert = to.choices[pair];
    if (expert < own) atomicAdd(&counts[expert], 1);
    found += expert == own;
  }
  __syncthreads();

  int places = 0;
  for (int expert = threadIdx.x; expert < own; expert += blockDim.x) places += to.blocks_for(counts[expert]);
  places = __reduce_add_sync(kWarp, places * int(to.block.divisor));
  found = __reduce_add_sync(kWarp, found);
  if (lane == 0) {
    places_before[warp] = places;
    own_pairs[warp] = found;
  }
  __syncthreads();
  int first = 0, count = 0, count_before = 0;
  for (uint32_t other = 0; other < warps; ++other) {
    first += places_before[other];
    if (other == warp) count_before = count;
    count += own_pairs[other];
  }

  const int size = to.block.divisor, first_block = to.block.divide(first);
  const bool behind = own == to.choices.experts;
  if (behind && threadIdx.x == 0) *to.num_padded = first;
  const int blocks = behind ? to.blocks - first_block : to.blocks_for(count);
  for (int i = threadIdx.x; i < blocks; i += blockDim.x) to.expert_ids[first_block + i] = behind ? -1 : own;
  for (int i = (behind ? 0 : count) + threadIdx.x; i < blocks * size; i += blockDim.x) {
    to.sorted_ids[first + i] = to.total;
  }
  if (behind || found == 0) return;
  int* next = to.sorted_ids + first + count_before;
#pragma unroll 4
  for (uint32_t pair = begin + lane; pair - lane < end; pair += 32) {
    const bool mine = pair < end && to.choices[pair] == own;
    const unsigned all = __ballot_sync(kWarp, mine);
    if (mine) next[__popc(all & ((1u << lane) - 1))] = pair;
    next += __popc(all);
  }
}

void moe_align(Tensor ids, int64_t block_size, int64_t num_experts, std::optional<Tensor> expert_map, Tensor out,
               Tensor out_expert_ids, Tensor out_num_padded) {
  STD_TORCH_CHECK(num_experts <= kMostExperts, "at most ", kMostExperts, " experts, found ", num_experts);
  STD_TORCH_CHECK(out.numel() < (int64_t(1) << 31) - block_size, "places are numbered in 32 bits");
  const Gpu gpu(ids);
  const int64_t total = ids.numel();
  const int threads =
      int(std::clamp<int64_t>(over(over(total, kPairsAThread), 32) * 32, kFewestThreads, kMostThreads));
  const auto run = [&](auto type) {
    using Id = typename decltype(type)::type;
    Choices<Id> choices{static_cast<const Id*>(ids.data_ptr()), elements_of(ids), nullptr, 0, uint64_t(num_experts),
                        int(num_experts)};
    if (expert_map.has_value()) {
      choices.expert_map = ints_of(*expert_map);
      choices.map_stride = expert_map->stride(0);
      choices.known = uint64_t(expert_map->numel());
    }
    const Alignment<Id> alignment{choices, uint32_t(total), Divisor(uint32_t(block_size)), int(out_expert_ids.numel()),
                                  ints_of(out), ints_of(out_expert_ids), ints_of(out_num_padded)};
    launch(align<Id>, unsigned(num_experts) + 1, threads, gpu.stream, alignment);
  };
  if (ids.scalar_type() == ScalarType::Long) return run(Type<int64_t>());
  STD_TORCH_CHECK(ids.scalar_type() == ScalarType::Int, "ids must be int32 or int64");
  run(Type<int32_t>());
}

}  // namespace
}  // namespace policyquant

STABLE_TORCH_LIBRARY_FRAGMENT(policyquant_cuda, library) {
  library.def("topk_softmax(Tensor logits, int k, bool renormalize, *, Tensor(a!) out, Tensor(b!) out_ids) -> ()");
  library.def(
      "topk_sigmoid(Tensor logits, int k, bool renormalize, Tensor? bias, *, Tensor(a!) out, "
      "Tensor(b!) out_ids) -> ()");
  library.def(
      "moe_align(Tensor ids, int block_size, int num_experts, Tensor? expert_map, *, Tensor(a!) out, "
      "Tensor(b!) out_expert_ids, Tensor(c!) out_num_padded) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(policyquant_cuda, POLICYQUANT_DEVICE, library) {
  library.impl("topk_softmax", TORCH_BOX(&policyquant::topk_softmax));
  library.impl("topk_sigmoid", TORCH_BOX(&policyquant::topk_sigmoid));
  library.impl("moe_align", TORCH_BOX(&policyquant::moe_align));
}
