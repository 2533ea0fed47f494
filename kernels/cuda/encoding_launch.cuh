// Launching the kernels that encode packs, for any source of them.
#pragma once

#include <optional>

#include "scaled_encoding.cuh"
#include "tensors.cuh"

namespace policyquant {

inline uint8_t* codes_of(const Tensor& out) { return static_cast<uint8_t*>(out.data_ptr()); }

inline float* floats_of(const Tensor& scale) {
  STD_TORCH_CHECK(scale.scalar_type() == ScalarType::Float, "scales must be float32");
  return static_cast<float*>(scale.data_ptr());
}

inline const float* one_scale(const Tensor& scale) {
  STD_TORCH_CHECK(scale.numel() == 1, "scale must be one number");
  return floats_of(scale);
}

inline float bound_of(std::optional<double> scale_ub) {
  return scale_ub.has_value() ? float(*scale_ub) : std::numeric_limits<float>::infinity();
}

// Scales [..., 1], one for each row, contiguous.
inline ScaleTarget row_scales(const Tensor& out_scale, int64_t rows) {
  return ScaleTarget{floats_of(out_scale), Rows{rows, rows, 0, 1}, 0, false};
}

// Scales [..., groups], in rows or in columns.
inline ScaleTarget group_scales(const Tensor& out_scale, bool power_of_two) {
  return ScaleTarget{floats_of(out_scale), rows_of(out_scale), out_scale.stride(out_scale.dim() - 1), power_of_two};
}

// Neighbouring threads that share a group.
inline int lanes_of(int64_t group_size) {
  STD_TORCH_CHECK(group_size == 32 || group_size == 64 || group_size == 128, "a group of ", group_size, " elements");
  return int(group_size / kPack);
}

// Threads for a row: several packs each where there are rows enough to fill the GPU, else one.
inline int threads_for(int64_t packs_a_row, int64_t rows, bool aligned, const Gpu& gpu) {
  const int64_t packs_a_thread = rows >= 4 * gpu.multiprocessors ? kPacksAThread : 1;
  return int(std::clamp<int64_t>(over(over(packs_a_row, packs_a_thread), 32) * 32, 32,
                                 aligned ? kMostThreads<true> : kMostThreads<false>));
}

template <typename Source>
void launch_elements(const Source& source, const Layout& layout, const Tensor& out, const Gpu& gpu) {
  launch(store_elements<Source>, gpu.blocks(over(layout.packs(), kThreads), kThreads), kThreads, gpu.stream, source,
         static_cast<typename Source::T*>(out.data_ptr()), layout.packs(), Divisor(layout.packs_a_row()));
}

template <typename Source>
void launch_with_scale(const Source& source, const Layout& layout, const float* scale, const Tensor& out,
                       const Gpu& gpu) {
  for_format(out, [&](auto format) {
    launch(encode_with_scale<format.value, Source>, gpu.blocks(over(layout.packs(), kThreads), kThreads), kThreads,
           gpu.stream, source, scale, codes_of(out), layout.packs(), Divisor(layout.packs_a_row()));
  });
}

template <typename Source>
void launch_rows(const Source& source, const Layout& layout, float bound, const Tensor& out, const Tensor& out_scale,
                 const Gpu& gpu) {
  const int threads = threads_for(layout.packs_a_row(), layout.rows.count, Source::kAligned, gpu);
  for_format(out, [&](auto format) {
    launch(encode_rows<format.value, Source>, gpu.blocks(layout.rows.count, threads), threads, gpu.stream, source,
           row_scales(out_scale, layout.rows.count), codes_of(out), layout.packs_a_row(), bound);
  });
}

template <typename Source>
void launch_groups(const Source& source, const Layout& layout, int64_t group_size, bool power_of_two,
                   const Tensor& out, const Tensor& out_scale, const Gpu& gpu) {
  const int lanes = lanes_of(group_size);
  const int64_t packs_a_row = over(layout.columns, group_size) * lanes;
  const uint32_t packs = Layout::counted(packs_a_row * layout.rows.count);
  for_format(out, [&](auto format) {
    launch(encode_groups<format.value, Source>, gpu.blocks(over(packs, kThreads), kThreads), kThreads, gpu.stream,
           source, group_scales(out_scale, power_of_two), codes_of(out), packs, Divisor(uint32_t(packs_a_row)), lanes);
  });
}

// body(Stored<...>) for the elements of x.
template <typename Body>
void for_stored(const Tensor& x, const Layout& layout, Body body) {
  for_dtype(x, [&](auto type) {
    using T = typename decltype(type)::type;
    for_flag(layout.aligned, [&](auto aligned) {
      body(Stored<T, aligned.value>{static_cast<const T*>(x.data_ptr()), layout.rows, layout.columns, layout.stride});
    });
  });
}

}  // namespace policyquant
