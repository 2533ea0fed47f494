// Encoding to FP8 with a scale for each group along a row.
#include "encoding_launch.cuh"

namespace policyquant {
namespace {

// The scales' strides say whether they lie in rows or in columns.
void group_fp8_quant(Tensor x, int64_t group_size, bool, bool power_of_two, Tensor out, Tensor out_scale) {
  if (x.numel() == 0) return;
  const Layout layout(x, out);
  for_stored(x, layout, [&](const auto& source) {
    launch_groups(source, layout, group_size, power_of_two, out, out_scale, Gpu(x));
  });
}

}  // namespace
}  // namespace policyquant

STABLE_TORCH_LIBRARY_FRAGMENT(policyquant_cuda, library) {
  library.def(
      "group_fp8_quant(Tensor x, int group_size, bool column_major, bool power_of_two, *, Tensor(a!) out, "
      "Tensor(b!) out_scale) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(policyquant_cuda, POLICYQUANT_DEVICE, library) {
  library.impl("group_fp8_quant", TORCH_BOX(&policyquant::group_fp8_quant));
}
