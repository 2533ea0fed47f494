// Root mean square norms, with or without the residual addition before them, stored as they are or encoded to FP8.
#include <type_traits>

#include "encoding_launch.cuh"

namespace policyquant {
namespace {

enum class Scales { none, given, of_rows, of_groups };

struct Norm {
  const void* x;
  const void* residual;  // null: there is none
  const void* weight;
  void* out_residual;
  Rows rows;
  Rows residual_rows;
  int64_t columns;
  int64_t stride;
  int64_t residual_stride;
  int64_t weight_stride;
  float eps;
  float inverse_columns;  // 1 / columns
  void* out;  // codes, or with no scales the products
  const float* scale;  // given
  ScaleTarget target;  // found
  int lanes;           // neighbouring threads that share a group
  float bound;
};

// A row as one block goes through it. W is the weight's type, T or float, and that of the products.
template <typename T, typename W, bool kAligned>
class RowOfNorm {
 public:
  __device__ __forceinline__ RowOfNorm(const Norm& norm, uint32_t row)
      : norm_(norm),
        x_(static_cast<const T*>(norm.x) + norm.rows.offset(row)),
        residual_(static_cast<const T*>(norm.residual)),
        sum_(static_cast<T*>(norm.out_residual) + int64_t(row) * norm.columns) {
    if (residual_ != nullptr) residual_ += norm.residual_rows.offset(row);
  }

  // Elements of x, or of its sum with the residual, which is stored.
  __device__ __forceinline__ Pack<T> first(int64_t column) const {
    Pack<T> values = load_pack<T, kAligned>(x_, column, norm_.columns, norm_.stride);
    if (residual_ != nullptr) {
      const Pack<T> added = load_pack<T, kAligned>(residual_, column, norm_.columns, norm_.residual_stride);
#pragma unroll
      for (int i = 0; i < (kPaired<T> ? kPairs : kPack); ++i) {
        if constexpr (kPaired<T>) {
          set_pair(values, i, sum<T>(pair_at(values, i), pair_at(added, i)));
        } else {
          values.values[i] = total<T>(values.values[i], added.values[i]);
        }
      }
      store_pack<T, kAligned>(sum_, column, norm_.columns, values);
    }
    return values;
  }

  // The same once more, by the thread that stored it: the sum may have taken the place of x.
  __device__ __forceinline__ Pack<T> again(int64_t column) const {
    return residual_ == nullptr ? load_pack<T, kAligned>(x_, column, norm_.columns, norm_.stride)
                                : load_pack<T, kAligned>(sum_, column, norm_.columns, 1);
  }

  // The norm of these elements, rounded as the norm alone would round it.
  __device__ __forceinline__ Pack<W> normalize(const Pack<T>& values, int64_t column, float inverse) const {
    const W* weights = static_cast<const W*>(norm_.weight);
    Pack<W> y = load_pack<W, kAligned>(weights, column, norm_.columns, norm_.weight_stride);
    if constexpr (kPaired<W>) {
#pragma unroll
      for (int i = 0; i < kPairs; ++i) set_pair(y, i, normalized_pair<T>(pair_at(values, i), inverse, pair_at(y, i)));
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        y.values[i] = normalized<T, W>(values.values[i], inverse, to_float(y.values[i]));
      }
    }
    return y;
  }

 private:
  const Norm& norm_;
  const T* x_;
  const T* residual_;
  T* sum_;
};

template <typename T>
__device__ __forceinline__ float with_squares(float sum, const Pack<T>& pack) {
  float x[kPack];
  widen(pack, x);
#pragma unroll
  for (int i = 0; i < kPack; ++i) sum = std::fma(x[i], x[i], sum);
  return sum;
}

// A row is a block's; its first packs stay in registers from the sum of squares to the codes.
template <typename T, typename W, bool kAligned, Scales kScales, Format kFormat>
__global__ void __launch_bounds__(kMostThreads<kAligned>) encode_norms(const __grid_constant__ Norm norm) {
  constexpr int kHeld = kHeldPacks<T, kAligned>;
  constexpr bool kHoldsNorm = kScales == Scales::of_rows && std::is_same_v<T, W>;
  __shared__ float shared[32];
  const uint32_t packs = uint32_t((norm.columns + kPack - 1) / kPack);
  // Whole warps stay in the last loops, for the sake of the shuffles between the threads of a group.
  const uint32_t rounded = (packs + 31) / 32 * 32;
  for (uint32_t row = blockIdx.x; row < uint32_t(norm.rows.count); row += gridDim.x) {
    const RowOfNorm<T, W, kAligned> source(norm, row);
    Pack<T> held[kHeld] = {};
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t pack = threadIdx.x + i * blockDim.x;
      if (pack < packs) {
        held[i] = source.first(int64_t(pack) * kPack);
        squares = with_squares(squares, held[i]);
      }
    }
    for (uint32_t pack = threadIdx.x + kHeld * blockDim.x; pack < packs; pack += blockDim.x) {
      squares = with_squares(squares, source.first(int64_t(pack) * kPack));
    }
    const float inverse = inverse_root_of(over_block(squares, shared, Sum()) * norm.inverse_columns + norm.eps);

    QuotientOf<W> quotient(1.0f);
    if constexpr (kScales == Scales::given) quotient = QuotientOf<W>::of_any(usable_scale(__ldg(norm.scale)));
    if constexpr (kScales == Scales::of_rows) {
      float amax = 0.0f;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const uint32_t pack = threadIdx.x + i * blockDim.x;
        if (pack < packs) {
          const Pack<W> y = source.normalize(held[i], int64_t(pack) * kPack, inverse);
          amax = fmaxf(amax, largest_finite(y));
          if constexpr (kHoldsNorm) held[i] = y;
        }
      }
      for (uint32_t pack = threadIdx.x + kHeld * blockDim.x; pack < packs; pack += blockDim.x) {
        const int64_t column = int64_t(pack) * kPack;
        amax = fmaxf(amax, largest_finite(source.normalize(source.again(column), column, inverse)));
      }
      amax = over_block(amax, shared, Larger());
      quotient = QuotientOf<W>(
          norm.target.write(amax, largest_of(kFormat), norm.bound, row, 0, threadIdx.x == 0));
    }

    const auto encode = [&](uint32_t pack, const Pack<W>& y) {
      const int64_t column = int64_t(pack) * kPack;
      if constexpr (kScales == Scales::none) {
        if (pack >= packs) return;
        store_pack<W, kAligned>(static_cast<W*>(norm.out) + int64_t(row) * norm.columns, column, norm.columns, y);
      } else {
        if constexpr (kScales == Scales::of_groups) {
          const float amax = largest_over(norm.lanes, largest_finite(y));
          const uint32_t group_shift = norm.lanes == 8 ? 3 : (norm.lanes == 4 ? 2 : 1);
          const bool writes = pack < packs && (pack & (norm.lanes - 1)) == 0;
          quotient = QuotientOf<W>(
              norm.target.write(amax, largest_of(kFormat), norm.bound, row, pack >> group_shift, writes));
        }
        if (pack >= packs) return;
        store_codes<kAligned>(static_cast<uint8_t*>(norm.out) + int64_t(row) * norm.columns, column, norm.columns,
                              encoded_pack<kFormat, W>(y, quotient));
      }
    };
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const uint32_t pack = threadIdx.x + i * blockDim.x;
      if (pack < rounded) {
        Pack<W> y = {};
        if constexpr (kHoldsNorm) {
          y = held[i];
        } else if (pack < packs) {
          y = source.normalize(held[i], int64_t(pack) * kPack, inverse);
        }
        encode(pack, y);
      }
    }
    for (uint32_t pack = threadIdx.x + kHeld * blockDim.x; pack < rounded; pack += blockDim.x) {
      const int64_t column = int64_t(pack) * kPack;
      Pack<W> y = {};
      if (pack < packs) y = source.normalize(source.again(column), column, inverse);
      encode(pack, y);
    }
  }
}

// x [..., N], a residual of its dtype or null, and a weight [N] of its dtype or float32.
struct Inputs {
  const Tensor& x;
  const Tensor* residual;
  const Tensor& weight;
  double eps;
  const Tensor& out;
  const Tensor* out_residual;
};

template <Scales kScales>
void launch_norm(const Inputs& inputs, Norm norm) {
  const Tensor& x = inputs.x;
  const Gpu gpu(x);
  const Layout layout(x, inputs.out);
  norm.x = x.data_ptr();
  norm.rows = layout.rows;
  norm.columns = layout.columns;
  norm.stride = layout.stride;
  norm.weight = inputs.weight.data_ptr();
  norm.weight_stride = inputs.weight.stride(0);
  norm.eps = float(inputs.eps);
  norm.inverse_columns = float(1.0 / double(layout.columns));
  norm.out = inputs.out.data_ptr();
  bool aligned = layout.aligned && norm.weight_stride == 1 && is_aligned(norm.weight);
  if (inputs.residual != nullptr) {
    const Tensor& residual = *inputs.residual;
    STD_TORCH_CHECK(residual.scalar_type() == x.scalar_type(), "the residual must have the dtype of x");
    const Layout added(residual, *inputs.out_residual);
    norm.residual = residual.data_ptr();
    norm.residual_rows = added.rows;
    norm.residual_stride = added.stride;
    norm.out_residual = inputs.out_residual->data_ptr();
    aligned = aligned && added.aligned;
  }
  const bool wide = inputs.weight.scalar_type() == ScalarType::Float;
  STD_TORCH_CHECK(wide || inputs.weight.scalar_type() == x.scalar_type(),
                  "the weight must have the dtype of x or be float32");
  const int threads = threads_for(layout.packs_a_row(), layout.rows.count, aligned, gpu);
  const unsigned blocks = gpu.blocks(layout.rows.count, threads);
  const auto run = [&](auto format) {
    for_dtype(x, [&](auto type) {
      using T = typename decltype(type)::type;
      for_flag(aligned, [&](auto flag) {
        for_flag(wide, [&](auto of_float) {
          using W = std::conditional_t<of_float.value, float, T>;
          launch(encode_norms<T, W, flag.value, kScales, format.value>, blocks, threads, gpu.stream, norm);
        });
      });
    });
  };
  if constexpr (kScales == Scales::none) {
    run(Encoding<Format::e4m3fn>());  // unused
  } else {
    for_format(inputs.out, run);
  }
}

void without_scales(const Inputs& inputs) {
  if (inputs.x.numel() == 0) return;
  launch_norm<Scales::none>(inputs, Norm{});
}

void with_scale(const Inputs& inputs, const Tensor& scale) {
  if (inputs.x.numel() == 0) return;
  Norm norm{};
  norm.scale = one_scale(scale);
  launch_norm<Scales::given>(inputs, norm);
}

void with_row_scales(const Inputs& inputs, std::optional<double> scale_ub, const Tensor& out_scale) {
  if (inputs.x.numel() == 0) return;
  Norm norm{};
  norm.bound = bound_of(scale_ub);
  norm.target = row_scales(out_scale, out_scale.numel());
  launch_norm<Scales::of_rows>(inputs, norm);
}

void with_group_scales(const Inputs& inputs, int64_t group_size, bool power_of_two, const Tensor& out_scale) {
  if (inputs.x.numel() == 0) return;
  Norm norm{};
  norm.bound = bound_of(std::nullopt);
  norm.lanes = lanes_of(group_size);
  norm.target = group_scales(out_scale, power_of_two);
  launch_norm<Scales::of_groups>(inputs, norm);
}

void rms_norm(Tensor x, Tensor weight, double eps, Tensor out) {
  without_scales({x, nullptr, weight, eps, out, nullptr});
}

void fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, double eps, Tensor out, Tensor out_residual) {
  without_scales({x, &residual, weight, eps, out, &out_residual});
}

void rms_norm_static_fp8_quant(Tensor x, Tensor weight, double eps, Tensor scale, Tensor out) {
  with_scale({x, nullptr, weight, eps, out, nullptr}, scale);
}

void fused_add_rms_norm_static_fp8_quant(Tensor x, Tensor residual, Tensor weight, double eps, Tensor scale, Tensor out,
                                         Tensor out_residual) {
  with_scale({x, &residual, weight, eps, out, &out_residual}, scale);
}

void rms_norm_per_token_fp8_quant(Tensor x, Tensor weight, double eps, std::optional<double> scale_ub, Tensor out,
                                  Tensor out_scale) {
  with_row_scales({x, nullptr, weight, eps, out, nullptr}, scale_ub, out_scale);
}

void fused_add_rms_norm_per_token_fp8_quant(Tensor x, Tensor residual, Tensor weight, double eps,
                                            std::optional<double> scale_ub, Tensor out, Tensor out_scale,
                                            Tensor out_residual) {
  with_row_scales({x, &residual, weight, eps, out, &out_residual}, scale_ub, out_scale);
}

void rms_norm_group_fp8_quant(Tensor x, Tensor weight, double eps, int64_t group_size, bool, bool power_of_two,
                              Tensor out, Tensor out_scale) {
  with_group_scales({x, nullptr, weight, eps, out, nullptr}, group_size, power_of_two, out_scale);
}

void fused_add_rms_norm_group_fp8_quant(Tensor x, Tensor residual, Tensor weight, double eps, int64_t group_size, bool,
                                        bool power_of_two, Tensor out, Tensor out_scale, Tensor out_residual) {
  with_group_scales({x, &residual, weight, eps, out, &out_residual}, group_size, power_of_two, out_scale);
}

}  // namespace
}  // namespace policyquant

STABLE_TORCH_LIBRARY_FRAGMENT(policyquant_cuda, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps, *, Tensor(a!) out) -> ()");
  library.def(
      "fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, *, Tensor(a!) out, "
      "Tensor(c!) out_residual) -> ()");
  library.def("rms_norm_static_fp8_quant(Tensor x, Tensor weight, float eps, Tensor scale, *, Tensor(a!) out) -> ()");
  library.def(
      "fused_add_rms_norm_static_fp8_quant(Tensor x, Tensor residual, Tensor weight, float eps, Tensor scale, *, "
      "Tensor(a!) out, Tensor(c!) out_residual) -> ()");
  library.def(
      "rms_norm_per_token_fp8_quant(Tensor x, Tensor weight, float eps, float? scale_ub, *, Tensor(a!) out, "
      "Tensor(b!) out_scale) -> ()");
  library.def(
      "fused_add_rms_norm_per_token_fp8_quant(Tensor x, Tensor residual, Tensor weight, float eps, float? scale_ub, "
      "*, Tensor(a!) out, Tensor(b!) out_scale, Tensor(c!) out_residual) -> ()");
  library.def(
      "rms_norm_group_fp8_quant(Tensor x, Tensor weight, float eps, int group_size, bool column_major, "
      "bool power_of_two, *, Tensor(a!) out, Tensor(b!) out_scale) -> ()");
  library.def(
      "fused_add_rms_norm_group_fp8_quant(Tensor x, Tensor residual, Tensor weight, float eps, int group_size, "
      "bool column_major, bool power_of_two, *, Tensor(a!) out, Tensor(b!) out_scale, Tensor(c!) out_residual) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(policyquant_cuda, POLICYQUANT_DEVICE, library) {
  library.impl("rms_norm", TORCH_BOX(&policyquant::rms_norm));
  library.impl("fused_add_rms_norm", TORCH_BOX(&policyquant::fused_add_rms_norm));
  library.impl("rms_norm_static_fp8_quant", TORCH_BOX(&policyquant::rms_norm_static_fp8_quant));
  library.impl("fused_add_rms_norm_static_fp8_quant", TORCH_BOX(&policyquant::fused_add_rms_norm_static_fp8_quant));
  library.impl("rms_norm_per_token_fp8_quant", TORCH_BOX(&policyquant::rms_norm_per_token_fp8_quant));
  library.impl("fused_add_rms_norm_per_token_fp8_quant",
               TORCH_BOX(&policyquant::fused_add_rms_norm_per_token_fp8_quant));
  library.impl("rms_norm_group_fp8_quant", TORCH_BOX(&policyquant::rms_norm_group_fp8_quant));
  library.impl("fused_add_rms_norm_group_fp8_quant", TORCH_BOX(&policyquant::fused_add_rms_norm_group_fp8_quant));
}
