// Gated activations, stored as they are or encoded to FP8 before: [..., 2N] = [gate | up] to [..., N].
#include <string>

#include "encoding_launch.cuh"

namespace policyquant {
namespace {

// activation(gate) · up, computed where it is loaded.
template <Activation kActivation, typename T_, bool kAligned_>
struct Gated {
  using T = T_;
  static constexpr bool kAligned = kAligned_;
  const T* x;
  Rows rows;
  int64_t columns;
  int64_t stride;

  __device__ __forceinline__ Pack<T> load(uint32_t row, int64_t column) const {
    const T* gates = x + rows.offset(row);
    Pack<T> gate = load_pack<T, kAligned>(gates, column, columns, stride);
    const Pack<T> up = load_pack<T, kAligned>(gates + columns * stride, column, columns, stride);
#pragma unroll
    for (int i = 0; i < (kPaired<T> ? kPairs : kPack); ++i) {
      if constexpr (kPaired<T>) {
        set_pair(gate, i, gated_pair<kActivation, T>(pair_at(gate, i), pair_at(up, i)));
      } else {
        gate.values[i] = gated<kActivation, T>(gate.values[i], up.values[i]);
      }
    }
    return gate;
  }
};

template <Activation activation>
using Activating = std::integral_constant<Activation, activation>;

// body(Activating<...>()) for an activation of this name.
template <typename Body>
void for_activation(const std::string& name, Body body) {
  if (name == "silu") return body(Activating<Activation::silu>());
  if (name == "gelu") return body(Activating<Activation::gelu>());
  STD_TORCH_CHECK(name == "gelu_tanh", "an activation is silu, gelu or gelu_tanh, found ", name);
  body(Activating<Activation::gelu_tanh>());
}

template <typename Body>
void for_gated(const Tensor& x, const Layout& layout, const std::string& name, Body body) {
  for_activation(name, [&](auto activation) {
    for_dtype(x, [&](auto type) {
      using T = typename decltype(type)::type;
      for_flag(layout.aligned, [&](auto aligned) {
        body(Gated<activation.value, T, aligned.value>{static_cast<const T*>(x.data_ptr()), layout.rows,
                                                       layout.columns, layout.stride});
      });
    });
  });
}

void store_gated(const Tensor& x, const std::string& activation, const Tensor& out) {
  if (out.numel() == 0) return;
  const Layout layout(x, out, 2);
  for_gated(x, layout, activation, [&](const auto& source) { launch_elements(source, layout, out, Gpu(x)); });
}

void silu_and_mul(Tensor x, Tensor out) { store_gated(x, "silu", out); }

void gelu_and_mul(Tensor x, std::string approximate, Tensor out) {
  store_gated(x, approximate == "tanh" ? "gelu_tanh" : "gelu", out);
}

void gated_activation_static_fp8_quant(Tensor x, Tensor scale, std::string activation, Tensor out) {
  if (out.numel() == 0) return;
  const Layout layout(x, out, 2);
  for_gated(x, layout, activation, [&](const auto& source) {
    launch_with_scale(source, layout, one_scale(scale), out, Gpu(x));
  });
}

void gated_activation_per_token_fp8_quant(Tensor x, std::string activation, std::optional<double> scale_ub, Tensor out,
                                          Tensor out_scale) {
  if (out_scale.numel() == 0) return;
  const Layout layout(x, out, 2);
  for_gated(x, layout, activation, [&](const auto& source) {
    launch_rows(source, layout, bound_of(scale_ub), out, out_scale, Gpu(x));
  });
}

void gated_activation_group_fp8_quant(Tensor x, std::string activation, int64_t group_size, bool, bool power_of_two,
                                      Tensor out, Tensor out_scale) {
  if (out.numel() == 0) return;
  const Layout layout(x, out, 2);
  for_gated(x, layout, activation, [&](const auto& source) {
    launch_groups(source, layout, group_size, power_of_two, out, out_scale, Gpu(x));
  });
}

}  // namespace
}  // namespace policyquant

STABLE_TORCH_LIBRARY_FRAGMENT(policyquant_cuda, library) {
  library.def("silu_and_mul(Tensor x, *, Tensor(a!) out) -> ()");
  library.def("gelu_and_mul(Tensor x, str approximate, *, Tensor(a!) out) -> ()");
  library.def(
      "gated_activation_static_fp8_quant(Tensor x, Tensor scale, str activation, *, Tensor(a!) out) -> ()");
  library.def(
      "gated_activation_per_token_fp8_quant(Tensor x, str activation, float? scale_ub, *, Tensor(a!) out, "
      "Tensor(b!) out_scale) -> ()");
  library.def(
      "gated_activation_group_fp8_quant(Tensor x, str activation, int group_size, bool column_major, "
      "bool power_of_two, *, Tensor(a!) out, Tensor(b!) out_scale) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(policyquant_cuda, POLICYQUANT_DEVICE, library) {
  library.impl("silu_and_mul", TORCH_BOX(&policyquant::silu_and_mul));
  library.impl("gelu_and_mul", TORCH_BOX(&policyquant::gelu_and_mul));
  library.impl("gated_activation_static_fp8_quant", TORCH_BOX(&policyquant::gated_activation_static_fp8_quant));
  library.impl("gated_activation_per_token_fp8_quant", TORCH_BOX(&policyquant::gated_activation_per_token_fp8_quant));
  library.impl("gated_activation_group_fp8_quant", TORCH_BOX(&policyquant::gated_activation_group_fp8_quant));
}
