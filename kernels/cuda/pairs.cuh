// Two neighbouring elements of two bytes in one word, the first in its lower half: a GPU computes both at once. Each
// result is that of the same operations in float32, rounded to the elements' type: a sum or a product of two numbers of
// 8 or 11 significant bits is not changed by being rounded to 24 before.
#pragma once

#include <type_traits>

#include "arithmetic.cuh"

namespace policyquant {

template <typename T>
POLICYQUANT_BOTH float low_of(uint32_t pair);
template <typename T>
POLICYQUANT_BOTH float high_of(uint32_t pair);

template <>
POLICYQUANT_BOTH float low_of<bfloat16>(uint32_t pair) {
  return float_of(pair << 16);
}
template <>
POLICYQUANT_BOTH float high_of<bfloat16>(uint32_t pair) {
  return float_of(pair & 0xFFFF0000u);
}
template <>
POLICYQUANT_BOTH float low_of<float16>(uint32_t pair) {
  return to_float(float16{uint16_t(pair)});
}
template <>
POLICYQUANT_BOTH float high_of<float16>(uint32_t pair) {
  return to_float(float16{uint16_t(pair >> 16)});
}

// Both rounded to T.
template <typename T>
POLICYQUANT_BOTH uint32_t pair_of(float low, float high) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#else
  return rounded_to<T>(low).bits | uint32_t(rounded_to<T>(high).bits) << 16;
#endif
}

// a · b + c, where the product or the sum leaves float32 nothing to round.
template <typename T>
POLICYQUANT_BOTH uint32_t fused(uint32_t a, uint32_t b, uint32_t c) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(a), "r"(b), "r"(c));
  }
  return pair;
#else
  return pair_of<T>(low_of<T>(a) * low_of<T>(b) + low_of<T>(c), high_of<T>(a) * high_of<T>(b) + high_of<T>(c));
#endif
}

template <typename T>
POLICYQUANT_BOTH uint32_t product(uint32_t a, uint32_t b) {
  return fused<T>(a, b, 0x80008000u);  // -0, the sum with which is what it was
}

template <typename T>
POLICYQUANT_BOTH uint32_t sum(uint32_t a, uint32_t b) {
  return fused<T>(a, std::is_same_v<T, bfloat16> ? 0x3F803F80u : 0x3C003C00u, b);  // a · 1 + b
}

// The larger magnitudes, with whatever signs; of a number and NaN, the number's.
template <typename T>
POLICYQUANT_BOTH uint32_t larger_magnitudes(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  uint32_t pair;
#if __CUDA_ARCH__ >= 860
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  } else {
    asm("max.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  }
#else
  a &= 0x7FFF7FFFu;
  b &= 0x7FFF7FFFu;
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  } else {
    asm("max.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(a), "r"(b));
  }
#endif
  return pair;
#else
  return pair_of<T>(std::fmax(std::fabs(low_of<T>(a)), std::fabs(low_of<T>(b))),
                    std::fmax(std::fabs(high_of<T>(a)), std::fabs(high_of<T>(b))));
#endif
}

// The largest magnitude of `count` pairs, where NaN counts as 0.
template <typename T, int count>
POLICYQUANT_BOTH float largest_magnitude(const uint32_t* pairs) {
  uint32_t largest[count];
#pragma unroll
  for (int i = 0; i < count; ++i) largest[i] = pairs[i];
#pragma unroll
  for (int left = count / 2; left > 0; left /= 2) {
#pragma unroll
    for (int i = 0; i < left; ++i) largest[i] = larger_magnitudes<T>(largest[i], largest[i + left]);
  }
  return std::fmax(std::fmax(std::fabs(low_of<T>(largest[0])), std::fabs(high_of<T>(largest[0]))), 0.0f);
}

// 1 / x rounded, of an x whose inverse is a normal number.
POLICYQUANT_BOTH float inverse_of(float x) {
#ifdef __CUDA_ARCH__
  // What a division does that need not ask whether it is one.
  float near;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(x));
  return std::fma(near, std::fma(-x, near, 1.0f), near);
#else
  return 1.0f / x;
#endif
}

// x / scale for the sake of a code, of pairs, in two operations each.
//
// With y = 1 / scale rounded, let `high` be the number below y, and `low` = (1 - high · scale) · y, of which the first
// factor is exact: high + low errs by 2**-47 or so, and low > 0. x · low, then x · high + that, rounded once, is the
// rounded quotient but for those that are as near to the middle between two numbers. It must be on the same side of a
// tie between codes, and is: tests/kernels/test_cuda.py tries every x of 8 or 11 significant bits, each tie, and all
// scales near to x over the tie. Since low > 0, infinity stays what it is. Beyond a scale of 2**100 `low` would be
// subnormal, so that bfloat16 is multiplied by 2**-64 before; codes of float16 are 0 there.
template <typename T>
class QuotientOfPairs {
 public:
  // Of a scale that was found: it is finite.
  POLICYQUANT_BOTH explicit QuotientOfPairs(float scale)
      : shifts_(std::is_same_v<T, bfloat16> && scale > kMost) {
    const float divisor = shifts_ ? scale * 0x1p-64f : scale;
    const float inverse = inverse_of(divisor);
    high_ = float_of(bits_of(inverse) - 1u);
    low_ = std::fma(-high_, divisor, 1.0f) * inverse;
  }

  // Of a scale that is given.
  POLICYQUANT_BOTH static QuotientOfPairs of_any(float scale) {
    QuotientOfPairs quotient(std::is_same_v<T, float16> && scale > kMost ? kMost : scale);
    // By infinity or NaN it is a product with 0 or NaN.
    if (!(scale <= kLargestFloat)) quotient.high_ = quotient.low_ = scale == scale ? 0.0f : scale;
    return quotient;
  }

  // Whether pairs go through `shifted` before.
  POLICYQUANT_BOTH bool shifts() const { return shifts_; }
  POLICYQUANT_BOTH static uint32_t shifted(uint32_t pair) { return product<bfloat16>(pair, 0x1F801F80u); }

  // The two quotients of a pair.
  POLICYQUANT_BOTH void of(uint32_t pair, float* q) const {
    const float a = low_of<T>(pair), b = high_of<T>(pair);
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    asm("{\n\t.reg .b64 x, high, low;\n\t"
        "mov.b64 x, {%2, %3};\n\tmov.b64 high, {%4, %4};\n\tmov.b64 low, {%5, %5};\n\t"
        "mul.rn.f32x2 low, x, low;\n\tfma.rn.f32x2 x, x, high, low;\n\tmov.b64 {%0, %1}, x;\n\t}"
        : "=f"(q[0]), "=f"(q[1])
        : "f"(a), "f"(b), "f"(high_), "f"(low_));
#else
    q[0] = std::fma(a, high_, a * low_);
    q[1] = std::fma(b, high_, b * low_);
#endif
  }

 private:
  static constexpr float kMost = 0x1p100f;
  float high_, low_;
  bool shifts_;
};

// `gated` and `normalized` of pairs.
template <Activation activation, typename T>
POLICYQUANT_BOTH uint32_t gated_pair(uint32_t gate, uint32_t up) {
  return product<T>(pair_of<T>(activated<activation, T>(low_of<T>(gate)), activated<activation, T>(high_of<T>(gate))),
                    up);
}

template <typename T>
POLICYQUANT_BOTH uint32_t normalized_pair(uint32_t x, float inverse, uint32_t weight) {
  return product<T>(pair_of<T>(low_of<T>(x) * inverse, high_of<T>(x) * inverse), weight);
}

}  // namespace policyquant
