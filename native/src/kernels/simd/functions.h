// Elementary functions of float vectors beyond math.h: sines, powers, logarithms, arcs.
//
// Infinities, NaN and signed zeros give what the C library gives. Errors are below 4 ulp, and below
// 1 ulp for powers (tests/native_kernels/test_tensor_functions_native.py).
#pragma once

#include <math.h>

#include "kernels/simd/wide.h"

namespace weft::WEFT_TARGET {

// Whether any lane is set.
static inline bool any_of(vi v) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(reinterpret_cast<__m512i>(v), reinterpret_cast<__m512i>(v)) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256(reinterpret_cast<__m256i>(v), reinterpret_cast<__m256i>(v)) == 0;
#elif defined(WEFT_NEON)
  return vmaxvq_u32(vreinterpretq_u32_s32(v)) != 0;
#else
  int32_t all = 0;
  for (int i = 0; i < kLanes; ++i) all |= v[i];
  return all != 0;
#endif
}

// A C library function on each lane.
template <float (*kOne)(float)>
static inline vf each(vf x) {
  for (int i = 0; i < kLanes; ++i) x[i] = kOne(x[i]);
  return x;
}

// Rounds to the nearest integer, halves to even.
static inline vf round_even(vf x) {
  const vf big = copysign(splat(8388608.0f), x);
  return vabs(x) < 8388608.0f ? copysign((x + big) - big, x) : x;
}

// ---- sine, cosine, tangent ----------------------------------------------------------------------

// For angles up to this one the number of quarter turns has at most 16 bits, so that its products
// with the parts of pi/2 below are exact.
inline constexpr float kMostAngle = 100000.0f;

// x = quadrant * pi/2 + rest, |rest| <= pi/4, for |x| <= kMostAngle.
static inline vf quarter_turns(vf x, vi& quadrant) {
  const vf sum = fma(x, splat(0.636619772f), splat(kRound));
  const vf n = sum - kRound;
  quadrant = as_int(sum);  // the low bits are the integer
  // pi/2 is the sum of three parts of 8 bits each and a rest.
  vf r = fma(n, splat(-1.5703125f), x);
  r = fma(n, splat(-0.0004825592041015625f), r);
  r = fma(n, splat(-1.2665987014770508e-06f), r);
  return fma(n, splat(-9.9209362947050295e-10f), r);
}

// Larger angles, infinities and NaN go through the C library.
static inline vf sin(vf x) {
  if (__builtin_expect(any_of(!(vabs(x) <= kMostAngle)), 0)) return each<::sinf>(x);
  vi quadrant;
  vf sine, cosine;
  const vf r = quarter_turns(x, quadrant);
  sincos(r, quadrant, sine, cosine);
  return x == 0.0f ? x : sine;
}
static inline vf cos(vf x) {
  if (__builtin_expect(any_of(!(vabs(x) <= kMostAngle)), 0)) return each<::cosf>(x);
  vi quadrant;
  vf sine, cosine;
  const vf r = quarter_turns(x, quadrant);
  sincos(r, quadrant, sine, cosine);
  return cosine;
}
static inline vf tan(vf x) {
  if (__builtin_expect(any_of(!(vabs(x) <= kMostAngle)), 0)) return each<::tanf>(x);
  vi quadrant;
  vf sine, cosine;
  const vf r = quarter_turns(x, quadrant);
  sincos(r, quadrant & 1, sine, cosine);
  return x == 0.0f ? x : sine / cosine;
}

// ---- powers and logarithms ----------------------------------------------------------------------

static inline vf exp2(vf x) {
  const vf y = in_double(x, exp2_wide);
  return x != x ? x : y;
}
static inline vf log2(vf x) { return in_double(x, log2_any); }
static inline vf log10(vf x) {
  return in_double(x, [](vd v) { return log2_any(v) * 0.30102999566398120; });
}

inline constexpr double kLn2 = 0.69314718055994531;

// log(1 + x) for every x; log1p of math.h requires x >= 0.
static inline vf log1p_any(vf x) {
  const vf y = in_double(x, [](vd v) { return log2_any(v + 1.0) * kLn2; });
  return vabs(x) < 1e-4f ? fma(x * x, splat(-0.5f), x) : y;
}

// a^b with the special cases of IEEE 754.
static inline vf pow(vf a, vf b) {
  constexpr float kInfinity = __builtin_inff();
  const vf size = vabs(a);
  const Wide base = widen(size), exponent = widen(b);
  vf y = narrow({exp2_wide(exponent.low * log2_wide(base.low)),
                 exp2_wide(exponent.high * log2_wide(base.high))});
  const vi ends = (size == 0.0f) | (size == kInfinity);
  const vi up = (size == kInfinity) == (b > 0.0f);
  y = ends ? (up ? splat(kInfinity) : vf{}) : y;
  // 1^b is 1 for an infinite b too, where the exponent above is 0 times infinity.
  y = size == 1.0f ? splat(1.0f) : y;
  const vf whole = trunc(b);
  const vf half = 0.5f * whole;
  const vi odd = trunc(half) != half;  // floats from 2^24 up are even
  const vi negative = as_int(a) < 0;
  y = negative & (whole == b) & odd ? -y : y;
  y = negative & (whole != b) & ~ends ? splat(__builtin_nanf("")) : y;
  y = ((a != a) | (b != b)) ? a + b : y;
  return ((a == 1.0f) | (b == 0.0f)) ? splat(1.0f) : y;
}

// ---- hyperbolic functions and their inverses ----------------------------------------------------

inline constexpr double kLog2E = 1.44269504088896341;

static inline vf sinh(vf x) {
  constexpr float c[] = {1.666666649e-01f, 8.333350598e-03f, 1.983606625e-04f, 2.817439654e-06f};
  const vf square = x * x;
  const vf small = fma(square * x, polynomial(square, c), x);
  const vf large = in_double(vabs(x), [](vd v) {
    const vd power = exp2_wide(v * kLog2E);
    return 0.5 * (power - 1.0 / power);
  });
  const vf y = vabs(x) < 1.0f ? small : copysign(large, x);
  return x != x ? x : y;
}
static inline vf cosh(vf x) {
  const vf y = in_double(vabs(x), [](vd v) {
    const vd power = exp2_wide(v * kLog2E);
    return 0.5 * (power + 1.0 / power);
  });
  return x != x ? x : y;
}
static inline vf asinh(vf x) {
  const vf y = in_double(vabs(x), [](vd v) { return log2_any(v + vsqrt(v * v + 1.0)) * kLn2; });
  return vabs(x) < 1e-4f ? x : copysign(y, x);
}
static inline vf acosh(vf x) {
  return in_double(x, [](vd v) {
    const vd y = log2_any(v + vsqrt((v - 1.0) * (v + 1.0))) * kLn2;
    return v < 1.0 ? splat_wide(__builtin_nan("")) : y;
  });
}
static inline vf atanh(vf x) {
  const vf y = in_double(vabs(x), [](vd v) { return log2_any((1.0 + v) / (1.0 - v)); });
  return vabs(x) < 1e-4f ? x : copysign(y * (0.5f * static_cast<float>(kLn2)), x);
}

// ---- arcs ---------------------------------------------------------------------------------------

inline constexpr float kHalfPi = 1.57079637f;
inline constexpr float kHalfPiRest = -4.37113883e-8f;  // pi/2 - kHalfPi

// asin(x) = x + x z P(z) with z = x^2 for |x| <= 1/2; larger angles are computed from their half.
struct Arc {
  vf value;  // asin(x) for |x| <= 1/2, else 2 asin(sqrt((1 - |x|) / 2))
  vi near;   // |x| <= 1/2
};
static inline Arc arc(vf x) {
  constexpr float c[] = {1.666665987e-01f, 7.500510917e-02f, 4.451572050e-02f,
                         3.181760932e-02f, 1.440261498e-02f, 3.756518836e-02f};
  const vi near = vabs(x) <= 0.5f;
  const vf z = near ? x * x : fma(vabs(x), splat(-0.5f), splat(0.5f));
  const vf s = near ? x : vsqrt(z);
  const vf y = fma(s * z, polynomial(z, c), s);
  return {near ? y : y + y, near};
}
static inline vf asin(vf x) {
  const Arc a = arc(x);
  return a.near ? a.value : copysign(kHalfPi - (a.value - kHalfPiRest), x);
}
static inline vf acos(vf x) {
  const Arc a = arc(x);
  const vf far = x > 0.0f ? a.value : 2.0f * kHalfPi - (a.value - 2.0f * kHalfPiRest);
  return a.near ? kHalfPi - (a.value - kHalfPiRest) : far;
}

// atan(x) for 0 <= x <= 1.
static inline vf atan_part(vf x) {
  constexpr float c[] = {-3.333332690e-01f, 1.999967110e-01f, -1.427983278e-01f, 1.105822193e-01f,
                         -8.811084784e-02f, 6.741582134e-02f, -4.468973053e-02f, 2.253968743e-02f,
                         -7.317871969e-03f, 1.113771838e-03f};
  const vf z = x * x;
  return fma(z * x, polynomial(z, c), x);
}
static inline vf atan(vf x) {
  const vf size = vabs(x);
  const vi large = size > 1.0f;
  const vf y = atan_part(large ? 1.0f / size : size);
  return copysign(large ? kHalfPi - (y - kHalfPiRest) : y, x);
}
static inline vf atan2(vf y, vf x) {
  const vf a = vabs(y), b = vabs(x);
  const vi steep = a > b;
  const vf low = steep ? b : a, high = steep ? a : b;
  // The quotient of two zeros, or of two infinities, would be a NaN.
  const vf ratio = low == high ? (high == 0.0f ? vf{} : splat(1.0f)) : low / high;
  vf angle = atan_part(ratio);
  angle = steep ? kHalfPi - (angle - kHalfPiRest) : angle;
  angle = as_int(x) < 0 ? 2.0f * kHalfPi - (angle - 2.0f * kHalfPiRest) : angle;
  angle = copysign(angle, y);
  return ((x != x) | (y != y)) ? x + y : angle;
}

}  // namespace weft::WEFT_TARGET
