// Encoding to FP8 with one scale for a tensor or for each of its rows.
#include "encoding_launch.cuh"

namespace policyquant {
namespace {

// Largest finite magnitudes, one for each block.
template <typename Source>
__global__ void __launch_bounds__(kThreads)
    largest_of_blocks(Source source, float* __restrict__ largest, uint32_t packs, Divisor packs_a_row) {
  __shared__ float shared[32];
  float amax = 0.0f;
  for (uint32_t pack = blockIdx.x * kThreads + threadIdx.x; pack < packs; pack += gridDim.x * kThreads) {
    const uint32_t row = packs_a_row.divide(pack);
    amax = fmaxf(amax, largest_finite(source.load(row, int64_t(pack - row * packs_a_row.divisor) * kPack)));
  }
  amax = over_block(amax, shared, Larger());
  if (threadIdx.x == 0) largest[blockIdx.x] = amax;
}

template <Format kFormat>
__global__ void __launch_bounds__(kThreads)
    scale_of_blocks(const float* largest, int count, float* scale, float bound) {
  __shared__ float shared[32];
  float amax = 0.0f;
  for (int i = threadIdx.x; i < count; i += kThreads) amax = fmaxf(amax, largest[i]);
  amax = over_block(amax, shared, Larger());
  if (threadIdx.x == 0) *scale = scale_of(amax, largest_of(kFormat), bound);
}

void encode_elements(const Tensor& x, const float* scale, const Tensor& out, const Gpu& gpu) {
  const Layout layout = Layout::of_elements(x, out);
  for_stored(x, layout, [&](const auto& source) { launch_with_scale(source, layout, scale, out, gpu); });
}

void static_scaled_fp8_quant(Tensor x, Tensor scale, Tensor out) {
  if (x.numel() == 0) return;
  encode_elements(x, one_scale(scale), out, Gpu(x));
}

void per_token_scaled_fp8_quant(Tensor x, std::optional<double> scale_ub, Tensor out, Tensor out_scale) {
  if (out_scale.numel() == 0) return;
  const Layout layout(x, out);
  for_stored(x, layout, [&](const auto& source) {
    launch_rows(source, layout, bound_of(scale_ub), out, out_scale, Gpu(x));
  });
}

void dynamic_scaled_fp8_quant(Tensor x, std::optional<double> scale_ub, Tensor out, Tensor out_scale) {
  constexpr int64_t kOneBlock = 16384;
  const Gpu gpu(x);
  const Layout layout = Layout::of_elements(x, out);
  if (layout.rows.count == 1 && layout.columns <= kOneBlock) {
    for_stored(x, layout, [&](const auto& source) {
      launch_rows(source, layout, bound_of(scale_ub), out, out_scale, gpu);
    });
    return;
  }
  // The largest of each block waits where codes will be, or where the scale will be if these are too few: nothing is
  // allocated, and nothing need be zero beforehand.
  constexpr int64_t kSize = sizeof(float);
  float* scale = floats_of(out_scale);
  auto* largest = reinterpret_cast<float*>(over(reinterpret_cast<uintptr_t>(out.data_ptr()), kSize) * kSize);
  const int64_t room = (out.numel() - kSize + 1) / kSize;
  if (room < 1) largest = scale;
  const int64_t wanted = gpu.blocks(over(layout.packs(), kThreads), kThreads);
  const unsigned blocks = unsigned(std::clamp<int64_t>(room, 1, std::max<int64_t>(wanted, 1)));
  if (layout.packs() > 0) {
    for_stored(x, layout, [&](const auto& source) {
      using Source = std::decay_t<decltype(source)>;
      launch(largest_of_blocks<Source>, blocks, kThreads, gpu.stream, source, largest, layout.packs(),
             Divisor(layout.packs_a_row()));
    });
  }
  for_format(out, [&](auto format) {
    launch(scale_of_blocks<format.value>, 1, kThreads, gpu.stream, largest, layout.packs() > 0 ? int(blocks) : 0, scale,
           bound_of(scale_ub));
  });
  if (x.numel() > 0) encode_elements(x, scale, out, gpu);
}

}  // namespace
}  // namespace policyquant

STABLE_TORCH_LIBRARY_FRAGMENT(policyquant_cuda, library) {
  library.def("static_scaled_fp8_quant(Tensor x, Tensor scale, *, Tensor(a!) out) -> ()");
  library.def("dynamic_scaled_fp8_quant(Tensor x, float? scale_ub, *, Tensor(a!) out, Tensor(b!) out_scale) -> ()");
  library.def("per_token_scaled_fp8_quant(Tensor x, float? scale_ub, *, Tensor(a!) out, Tensor(b!) out_scale) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(policyquant_cuda, POLICYQUANT_DEVICE, library) {
  library.impl("static_scaled_fp8_quant", TORCH_BOX(&policyquant::static_scaled_fp8_quant));
  library.impl("dynamic_scaled_fp8_quant", TORCH_BOX(&policyquant::dynamic_scaled_fp8_quant));
  library.impl("per_token_scaled_fp8_quant", TORCH_BOX(&policyquant::per_token_scaled_fp8_quant));
}
