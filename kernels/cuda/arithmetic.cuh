// What is computed of one element, as plain functions that the host compiles too: the tests run this very code on a
// CPU, over every bfloat16, every float16 and every FP8 code, against policyquant.kernels.reference.
//
// Where a GPU has an instruction for it, __CUDA_ARCH__ chooses that; its result is the same.
#pragma once

#include <cstdint>
#include <cstring>
#include <cmath>

#ifdef __CUDACC__
#define POLICYQUANT_BOTH __host__ __device__ __forceinline__
#define POLICYQUANT_APART __noinline__
#else
#define POLICYQUANT_BOTH inline
#define POLICYQUANT_APART
#endif

namespace policyquant {

enum class Format : int32_t { e4m3fn, e5m2 };

// As torch stores them.
struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

constexpr float kSmallestScale = 1.1754943508222875e-38f;  // 2**-126, the smallest normal float32
constexpr float kLargestFloat = 3.4028234663852886e38f;
constexpr uint32_t kSign = 0x80000000u;

POLICYQUANT_BOTH uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
#endif
}

POLICYQUANT_BOTH float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
#endif
}

// ---- plain numbers ----

POLICYQUANT_BOTH float to_float(float x) { return x; }

POLICYQUANT_BOTH float to_float(bfloat16 x) { return float_of(uint32_t(x.bits) << 16); }

POLICYQUANT_BOTH float to_float(float16 x) {
#ifdef __CUDA_ARCH__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  const uint32_t sign = uint32_t(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return float_of(sign | 0x7F800000u | ((magnitude & 0x3FFu) << 13));
  // Re-biased by a multiplication, which is exact and makes normal numbers of subnormal ones.
  return float_of(sign | bits_of(float_of(magnitude << 13) * 0x1p112f));
#endif
}

template <typename T>
POLICYQUANT_BOTH T rounded_to(float x);

template <>
POLICYQUANT_BOTH float rounded_to<float>(float x) {
  return x;
}

template <>
POLICYQUANT_BOTH bfloat16 rounded_to<bfloat16>(float x) {
#ifdef __CUDA_ARCH__
  bfloat16 narrow;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
#else
  const uint32_t bits = bits_of(x);
  if (x != x) return bfloat16{0x7FFFu};
  return bfloat16{uint16_t((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
#endif
}

template <>
POLICYQUANT_BOTH float16 rounded_to<float16>(float x) {
#ifdef __CUDA_ARCH__
  float16 narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
#else
  const uint32_t bits = bits_of(x);
  const uint16_t sign = uint16_t((bits & kSign) >> 16);
  uint32_t magnitude = bits & ~kSign;
  if (x != x) return float16{0x7FFFu};
  if (magnitude >= 0x477FF000u) return float16{uint16_t(sign | 0x7C00u)};  // 65520, halfway to what would be next
  if (magnitude < 0x38800000u) {                                           // below 2**-14: multiples of 2**-24
    return float16{uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)))};
  }
  magnitude += 0xFFFu + ((magnitude >> 13) & 1u);
  return float16{uint16_t(sign | ((magnitude - (112u << 23)) >> 13))};
#endif
}

// x as it is after it was stored as T.
template <typename T>
POLICYQUANT_BOTH float through(float x) {
  return to_float(rounded_to<T>(x));
}

// ---- FP8 ----

POLICYQUANT_BOTH float largest_of(Format format) { return format == Format::e4m3fn ? 448.0f : 57344.0f; }

// The code of the nearest value, ties to even; ±inf and what is too large saturate, NaN has the code 0x7F.
template <Format format>
POLICYQUANT_BOTH uint8_t encoded_in_software(float x) {
  constexpr bool e4m3 = format == Format::e4m3fn;
  constexpr int kDropped = e4m3 ? 20 : 21;                                 // mantissa bits that float32 has more
  constexpr uint32_t kRebias = e4m3 ? (120u << 3) : (112u << 2);           // difference of the exponents' biases
  constexpr uint32_t kLargest = e4m3 ? 0x43E00000u : 0x47600000u;          // 448, 57344
  constexpr uint32_t kLargestCode = e4m3 ? 0x7Eu : 0x7Bu;
  constexpr uint32_t kSmallestNormal = e4m3 ? 0x3C800000u : 0x38800000u;   // 2**-6, 2**-14
  constexpr float kStep = e4m3 ? 0x1p14f : 0x1p7f;                         // its neighbours differ by 2**-9, 2**-16
  const uint32_t bits = bits_of(x);
  const uint32_t magnitude = bits & ~kSign;
  const uint32_t sign = (bits & kSign) >> 24;
  if (magnitude > 0x7F800000u) return 0x7Fu;
  if (magnitude >= kLargest) return uint8_t(sign | kLargestCode);
  // The addition rounds to multiples of the smallest subnormal value.
  if (magnitude < kSmallestNormal) return uint8_t(sign | (bits_of(float_of(magnitude) + kStep) - bits_of(kStep)));
  const uint32_t nearest = magnitude + (1u << (kDropped - 1)) - 1u + ((magnitude >> kDropped) & 1u);
  return uint8_t(sign | ((nearest >> kDropped) - kRebias));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define POLICYQUANT_FP8_INSTRUCTIONS
#endif

// Two codes, that of `low` in the lower byte. The instruction clamps first, and gives NaN the code 0x7F.
template <Format format>
POLICYQUANT_BOTH uint16_t encoded_pair(float low, float high) {
#ifdef POLICYQUANT_FP8_INSTRUCTIONS
  uint16_t codes;
  if constexpr (format == Format::e4m3fn) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  }
  return codes;
#else
  return uint16_t(encoded_in_software<format>(low) | (encoded_in_software<format>(high) << 8));
#endif
}

template <Format format>
POLICYQUANT_BOTH uint32_t encoded_four(const float* x) {
  return uint32_t(encoded_pair<format>(x[0], x[1])) | (uint32_t(encoded_pair<format>(x[2], x[3])) << 16);
}

// The value of a code.
template <Format format>
POLICYQUANT_BOTH float decoded(uint8_t code) {
  if constexpr (format == Format::e5m2) {
    return to_float(float16{uint16_t(uint32_t(code) << 8)});
  } else {
    const uint32_t sign = uint32_t(code & 0x80u) << 24;
    const uint32_t magnitude = code & 0x7Fu;
    if (magnitude == 0x7Fu) return float_of(sign | 0x7FC00000u);
    return float_of(sign | bits_of(float_of(magnitude << 20) * 0x1p120f));
  }
}

// The values of two codes, that of the lower byte first.
template <Format format>
POLICYQUANT_BOTH void decode_pair(uint16_t codes, float* x) {
#ifdef POLICYQUANT_FP8_INSTRUCTIONS
  if constexpr (format == Format::e4m3fn) {
    uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(codes));
    x[0] = to_float(float16{uint16_t(halves)});
    x[1] = to_float(float16{uint16_t(halves >> 16)});
    return;
  }
#endif
  x[0] = decoded<format>(uint8_t(codes));
  x[1] = decoded<format>(uint8_t(codes >> 8));
}

// ---- scales ----

// The largest |x| of `count` numbers, where NaN and infinities count as 0. Infinities are rare, so they get a loop apart.
template <int count>
POLICYQUANT_BOTH float largest_finite(const float* x) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < count; ++i) largest = std::fmax(largest, std::fabs(x[i]));  // of a number and NaN, the number
  if (largest > kLargestFloat) {
    largest = 0.0f;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float magnitude = std::fabs(x[i]);
      largest = std::fmax(largest, magnitude <= kLargestFloat ? magnitude : 0.0f);
    }
  }
  return largest;
}

// x / divisor, whose inverse is known: a product with that and a step of Newton's method, of which the remainder is exact,
// are the rounded quotient, if it is a normal number.
POLICYQUANT_BOTH float quotient_by(float x, float divisor, float inverse) {
  const float first = x * inverse;
  return std::fma(std::fma(-first, divisor, x), inverse, first);
}

// amax / largest, at most `bound`, at least 2**-126; `largest` is known when this is compiled.
POLICYQUANT_BOTH float scale_of(float amax, float largest, float bound) {
  return std::fmax(std::fmin(quotient_by(amax, largest, 1.0f / largest), bound), kSmallestScale);
}

// A scale that is given: at least 2**-126; NaN stays NaN.
POLICYQUANT_BOTH float usable_scale(float scale) { return scale < kSmallestScale ? kSmallestScale : scale; }

// The smallest power of two that is not below a normal scale, by its bits; 2**127 is the largest that ue8m0 and
// float32 share.
POLICYQUANT_BOTH float power_of_two_from(float scale) {
  const uint32_t bits = bits_of(scale);
  uint32_t exponent = (bits >> 23) + ((bits & 0x7FFFFFu) != 0u ? 1u : 0u);
  exponent = exponent < 1u ? 1u : (exponent > 254u ? 254u : exponent);
  return float_of(exponent << 23);
}

// x / scale for the sake of a code, in 6 operations instead of a division's dozen.
//
// scale = m · 2**e with 1 <= m < 2, or m < 4 for the largest scales, so that 2**-e is a normal number. x' = x · 2**-e is
// exact unless it saturates or has the code 0. With y = 1 / m rounded, q = x' · y errs by 3/2 units in the last place; a
// step of Newton's method, whose remainder is exact, leaves half a unit and 3/2 · 2**-24 of one. Where that could be on
// another side of a tie between codes than the rounded quotient, all cases were tried: kernels/triton/encode.py has the
// derivation. What saturates anyhow keeps q, since infinity minus infinity is none.
class Quotient {
 public:
  POLICYQUANT_BOTH static Quotient of_any(float scale) { return Quotient(scale); }

  POLICYQUANT_BOTH explicit Quotient(float scale) {
    const uint32_t bits = bits_of(scale);
    const uint32_t field = bits >> 23 < 253u ? bits >> 23 : 253u;
    divisor_ = float_of(bits - ((field - 127u) << 23));
    reciprocal_ = 1.0f / divisor_;
    power_ = scale <= kLargestFloat ? float_of((254u - field) << 23) : (scale != scale ? scale : 0.0f);
  }

  POLICYQUANT_BOTH float of(float x) const {
    const float scaled = x * power_;
    const float q = scaled * reciprocal_;
    // Written so that a zero keeps its sign.
    const float excess = std::fma(q, divisor_, -scaled);
    const float nearest = std::fma(-excess, reciprocal_, q);
    return std::fabs(q) < 65536.0f ? nearest : q;
  }

 private:
  float divisor_, reciprocal_, power_;
};

// ---- activations and norms ----

enum class Activation : int32_t { silu, gelu, gelu_tanh };

// 1 / (1 + exp(-x)). A GPU's fast operations err by 2**-21 or so, which two bytes cannot tell; a quarter is taken
// because they flush 1 / y to zero from y = 2**126 on.
template <typename T>
POLICYQUANT_BOTH float sigmoid(float x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    float exponential, reciprocal;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(std::fma(exponential, 0.25f, 0.25f)));
    return reciprocal * 0.25f;
  }
#endif
  return 1.0f / (1.0f + std::exp(-x));
}

// The activation in float32, before it is rounded to T.
template <Activation activation, typename T>
POLICYQUANT_BOTH float activated(float x) {
  if constexpr (activation == Activation::silu) {
    return x * sigmoid<T>(x);
  } else if constexpr (activation == Activation::gelu) {
    return x * 0.5f * (1.0f + std::erf(x * 0.70710678118654752f));
  } else {
    // (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which does not cancel.
    return x * sigmoid<T>(1.5957691216057308f * std::fma(0.044715f * x * x, x, x));
  }
}

// activation(gate) · up with both roundings that the separate operators have.
template <Activation activation, typename T>
POLICYQUANT_BOTH T gated(T gate, T up) {
  const float active = through<T>(activated<activation, T>(to_float(gate)));
  return rounded_to<T>(active * to_float(up));
}

// x · inverse · weight: the normalized x is rounded to T, the product to R, the wider of T and the weight's type.
template <typename T, typename R>
POLICYQUANT_BOTH R normalized(T x, float inverse, float weight) {
  return rounded_to<R>(through<T>(to_float(x) * inverse) * weight);
}

// 1 / sqrt(x).
POLICYQUANT_BOTH float inverse_root_of(float x) {
#ifdef __CUDA_ARCH__
  return rsqrtf(x);
#else
  return 1.0f / std::sqrt(x);
#endif
}

// The sum that a norm follows.
template <typename T>
POLICYQUANT_BOTH T total(T x, T residual) {
  return rounded_to<T>(to_float(x) + to_float(residual));
}

}  // namespace policyquant
