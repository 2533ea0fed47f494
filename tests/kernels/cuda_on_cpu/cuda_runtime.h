// As much of CUDA as the kernels use, on a CPU: the very code that nvcc compiles is compiled by the host's compiler, and
// every thread of every block runs.
//
// The threads of a block take turns, and go on until they meet a barrier or a shuffle. In which order they take turns
// changes from round to round, so that a barrier that is missing shows in the results. A barrier that some threads never
// reach, and 16 bytes that are not aligned, are errors. What this cannot show: the instructions that only a GPU has,
// and accesses that race without a barrier between them where the order makes no difference here.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline

struct uint3 {
  unsigned x, y, z;
};

namespace cuda_on_cpu {

inline void check_alignment(const void* address, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    throw std::runtime_error("an access of several bytes at an address that is not a multiple of them");
  }
}

struct Barrier {
  unsigned waiting = 0;
  unsigned generation = 0;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  uint3 index{};
  bool finished = false;
};

class Block {
 public:
  uint3 index{}, size{}, blocks{};

  void run(unsigned threads, const std::function<void()>& kernel) {
    while (threads_.size() < threads) threads_.push_back(std::make_unique<Thread>());
    size = {threads, 1, 1};
    kernel_ = &kernel;
    alive_ = threads;
    error_ = nullptr;
    all_ = Barrier();
    warps_.assign((threads + 31) / 32, Warp());
    for (unsigned i = 0; i < threads; ++i) start(*threads_[i], i);
    while (alive_ > 0 && error_ == nullptr) round(threads);
    if (error_ != nullptr) std::rethrow_exception(error_);
  }

  void synchronize() { wait(all_, [this] { return alive_; }); }

  // The values that the lanes of the warp give.
  template <typename T>
  std::array<T, 32> lanes(T value) {
    static_assert(sizeof(T) <= sizeof(std::uint64_t));
    Warp& warp = warps_[now().index.x / 32];
    std::uint64_t& own = warp.values[now().index.x % 32];
    own = 0;
    __builtin_memcpy(&own, &value, sizeof(T));
    synchronize_warp();
    std::array<T, 32> all;
    for (unsigned lane = 0; lane < 32; ++lane) __builtin_memcpy(&all[lane], &warp.values[lane], sizeof(T));
    synchronize_warp();
    return all;
  }

  void synchronize_warp() {
    const unsigned first = now().index.x / 32 * 32;
    wait(warps_[first / 32].barrier, [this, first] {
      unsigned alive = 0;
      for (unsigned i = first; i < std::min(first + 32, size.x); ++i) alive += !threads_[i]->finished;
      return alive;
    });
  }

  const Thread& now() const { return *threads_[current_]; }

 private:
  struct Warp {
    Barrier barrier;
    std::uint64_t values[32] = {};
  };

  void start(Thread& thread, unsigned number) {
    constexpr std::size_t kStack = 256 * 1024;
    if (thread.stack == nullptr) thread.stack = std::make_unique<char[]>(kStack);
    thread.index = {number, 0, 0};
    thread.finished = false;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = &scheduler_;
    makecontext(&thread.context, &Block::enter, 0);
  }

  static void enter();

  void body() {
    try {
      (*kernel_)();
    } catch (...) {
      error_ = std::current_exception();
    }
    threads_[current_]->finished = true;
    --alive_;
    ++progress_;
  }

  void round(unsigned threads) {
    const unsigned before = progress_;
    seed_ = seed_ * 1664525u + 1013904223u;
    const unsigned first = seed_ >> 8;
    const bool backward = (seed_ & 0x40000000u) != 0;
    for (unsigned i = 0; i < threads && error_ == nullptr; ++i) {
      const unsigned at = (first + (backward ? threads - 1 - i : i)) % threads;
      if (threads_[at]->finished) continue;
      current_ = at;
      swapcontext(&scheduler_, &threads_[at]->context);
    }
    if (progress_ == before && error_ == nullptr) {
      throw std::runtime_error("some threads of a block wait at a barrier that others never reach");
    }
  }

  // `members` is asked again and again: threads that have ended are no longer waited for.
  template <typename Members>
  void wait(Barrier& barrier, Members members) {
    const unsigned generation = barrier.generation;
    ++barrier.waiting;
    ++progress_;
    while (barrier.generation == generation) {
      if (barrier.waiting >= members()) {
        barrier.waiting = 0;
        ++barrier.generation;
        ++progress_;
        return;
      }
      const unsigned self = current_;
      swapcontext(&threads_[self]->context, &scheduler_);
    }
  }

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  Barrier all_;
  ucontext_t scheduler_;
  const std::function<void()>* kernel_ = nullptr;
  std::exception_ptr error_;
  unsigned alive_ = 0, current_ = 0, progress_ = 0, seed_ = 1;
};

inline Block& block() {
  static Block only;
  return only;
}

inline void Block::enter() { block().body(); }

inline void launch(unsigned blocks, unsigned threads, const std::function<void()>& kernel) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  if (blocks == 0 || threads == 0 || threads > 1024) throw std::runtime_error("a launch of so many threads is refused");
  Block& all = block();
  all.blocks = {blocks, 1, 1};
  for (unsigned i = 0; i < blocks; ++i) {
    all.index = {i, 0, 0};
    all.run(threads, kernel);
  }
}

}  // namespace cuda_on_cpu

#define threadIdx (cuda_on_cpu::block().now().index)
#define blockIdx (cuda_on_cpu::block().index)
#define blockDim (cuda_on_cpu::block().size)
#define gridDim (cuda_on_cpu::block().blocks)

inline void __syncthreads() { cuda_on_cpu::block().synchronize(); }
inline void __syncwarp() { cuda_on_cpu::block().synchronize_warp(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return cuda_on_cpu::block().lanes(value)[(threadIdx.x ^ unsigned(distance)) % 32];
}

template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned distance) {
  const unsigned lane = threadIdx.x % 32;
  return cuda_on_cpu::block().lanes(value)[lane >= distance ? lane - distance : lane];
}

inline unsigned __ballot_sync(unsigned, bool vote) {
  unsigned votes = 0;
  const auto all = cuda_on_cpu::block().lanes(vote);
  for (unsigned lane = 0; lane < 32; ++lane) votes |= unsigned(all[lane]) << lane;
  return votes;
}

inline int __reduce_add_sync(unsigned, int value) {
  int sum = 0;
  for (const int each : cuda_on_cpu::block().lanes(value)) sum += each;
  return sum;
}

inline int __reduce_max_sync(unsigned, int value) {
  const auto all = cuda_on_cpu::block().lanes(value);
  return *std::max_element(all.begin(), all.end());
}

inline int __reduce_min_sync(unsigned, int value) {
  const auto all = cuda_on_cpu::block().lanes(value);
  return *std::min_element(all.begin(), all.end());
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

// Not aligned in itself, lest the compiler trust that it is.
struct uint4 {
  unsigned x, y, z, w;

  uint4() = default;
  uint4(unsigned x, unsigned y, unsigned z, unsigned w) : x(x), y(y), z(z), w(w) {}
  uint4(const uint4&) = default;
  uint4& operator=(const uint4& other) {
    cuda_on_cpu::check_alignment(this, 16);
    __builtin_memcpy(static_cast<void*>(this), &other, 16);
    return *this;
  }
};

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return uint4(x, y, z, w); }

template <typename T>
T __ldg(const T* address) {
  cuda_on_cpu::check_alignment(address, sizeof(T));
  return *address;
}

// Threads take turns, so nothing comes between the two halves.
template <typename T>
T atomicAdd(T* address, T value) {
  const T before = *address;
  *address = before + value;
  return before;
}

// ---- what the host asks ----

using cudaStream_t = void*;
enum cudaError_t { cudaSuccess };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };

inline const char* cudaGetErrorString(cudaError_t) { return "none"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// So few that a tensor of a test keeps the blocks going on to their next work.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}

// It stands for that of torch's CUDA library, which is looked up by name.
extern "C" __attribute__((visibility("default"), weak, used)) std::int32_t aoti_torch_get_current_cuda_stream(
    std::int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}
