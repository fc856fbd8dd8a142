// Elementary functions of float vectors, written once over vec.h.
//
// Each reduces its argument to a short interval and evaluates a polynomial there. The polynomials
// are near-minimax fits (weighted least squares on Chebyshev points, iterated) with errors of a few
// 1e-9. With rounding, results are within 2 ulp (see tests/native_kernels). Infinities and NaN give
// what the C library gives.
#pragma once

#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

static inline vi as_int(vf v) { return reinterpret_cast<vi>(v); }
static inline vf as_float(vi v) { return reinterpret_cast<vf>(v); }
static inline vi splat_int(int32_t x) { return vi{} + x; }

static inline vf vabs(vf x) { return as_float(as_int(x) & 0x7fffffff); }
// The larger of a positive number and |x|.
static inline vf larger(vf a, vf x) {
#if defined(__AVX512DQ__)
  return reinterpret_cast<vf>(
      _mm512_range_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(x), 0x0b));
#else
  return vmax(a, vabs(x));
#endif
}
// |x| with the sign of `sign`.
static inline vf copysign(vf x, vf sign) {
  return as_float((as_int(x) & 0x7fffffff) | (as_int(sign) & splat_int(INT32_MIN)));
}
static inline vf vsqrt(vf x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#elif defined(WEFT_NEON)
  return vsqrtq_f32(x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// c[0] + c[1] x + ... by Horner's rule.
template <int N>
static inline vf polynomial(vf x, const float (&c)[N]) {
  vf y = splat(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) y = fma(y, x, splat(c[i]));
  return y;
}

// The same sum in pairs, whose shorter chain of products lets more vectors be under way.
template <int N>
static inline vf polynomial_by_pairs(vf x, const float (&c)[N]) {
  const vf square = x * x;
  vf y = N % 2 != 0 ? splat(c[N - 1]) : fma(x, splat(c[N - 1]), splat(c[N - 2]));
  for (int i = N - 4 + N % 2; i >= 0; i -= 2) {
    y = fma(y, square, fma(x, splat(c[i + 1]), splat(c[i])));
  }
  return y;
}

// ---- exponential --------------------------------------------------------------------------------

// ln 2 in two parts. The low bits of the first are zeros, so that its small multiples are exact.
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
// Adding and subtracting it rounds to an integer, which is also in the low bits of the sum.
inline constexpr float kRound = 12582912.0f;

struct ExpParts {
  vf tail;      // e^r - 1 for the remainder r, |r| <= ln(2)/2
  vf exponent;  // e^x = 2^exponent (1 + tail)
};

// e^r - 1 for |r| <= ln(2)/2, of which `square` is the square.
static inline vf exp_tail(vf r, vf square) {
  constexpr float c[] = {5.000000029e-01f, 1.666657336e-01f, 4.166636345e-02f, 8.363776144e-03f,
                         1.394216109e-03f};
  return fma(square, polynomial(r, c), r);
}
static inline vf exp_tail(vf r) { return exp_tail(r, r * r); }

// Beyond the bounds the result is 0 or infinite; a NaN is the second of the two and passes.
static inline ExpParts exp_parts(vf x) {
  x = vmin(splat(89.0f), vmax(splat(-104.0f), x));
  const vf n = fma(x, splat(1.44269504f), splat(kRound)) - kRound;
  const vf r = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), x));
  return {exp_tail(r), n};
}

// x 2^n for integers n from -152 to 130, rounded once even where the result is subnormal.
static inline vf scale_by_power(vf x, vf n) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(
      _mm512_scalef_ps(reinterpret_cast<__m512>(x), reinterpret_cast<__m512>(n)));
#else
  // Two factors, as one could leave the range of normal numbers.
  const vi whole = as_int(n + kRound) - 0x4b400000;
  const vi half = whole >> 1;
  const vf first = as_float((half + 127) << 23);
  const vf second = as_float((whole - half + 127) << 23);
  return x * first * second;
#endif
}

static inline vf exp(vf x) {
  const ExpParts p = exp_parts(x);
  return scale_by_power(p.tail + 1.0f, p.exponent);
}

// 1 + e^-x. Beyond 87 it is 1 as well, without the subnormal numbers that take some processors
// long.
static inline vf one_and_exp_of_minus(vf x) {
  x = vmax(splat(-89.0f), vmin(splat(87.0f), x));
  const vf n = fma(x, splat(-1.44269504f), splat(kRound)) - kRound;
  const vf r = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), -x));
  // squares of small numbers are subnormal, too; a larger one is lost in the sum with 1 as well
  const vf root = larger(splat(1e-15f), r);
  return scale_by_power(exp_tail(r, root * root) + 1.0f, n) + 1.0f;
}

// e^x - 1 without cancellation near 0.
static inline vf expm1(vf x) {
  const ExpParts p = exp_parts(x);
  const vf power = scale_by_power(splat(1.0f), p.exponent);
  // For large x, `power` could be 2^128, which is not a float.
  const vf big = scale_by_power(p.tail + 1.0f, p.exponent) - 1.0f;
  return p.exponent > 24.0f ? big : fma(power, p.tail, power - 1.0f);
}

// ---- logarithm ----------------------------------------------------------------------------------

static inline vf log(vf x) {
  constexpr float c[] = {3.333330978e-01f,  -2.499998582e-01f, 2.000227544e-01f,
                         -1.666933200e-01f, 1.421765541e-01f,  -1.238219676e-01f,
                         1.187871091e-01f,  -1.180588739e-01f, 6.921792589e-02f};
  constexpr float kSmallest = 1.17549435e-38f;
  const vi subnormal = x < kSmallest;
  const vf y = subnormal ? x * 8388608.0f : x;
  // y = m 2^e with m in [sqrt(1/2), sqrt(2))
  const vi shifted = reinterpret_cast<vi>(reinterpret_cast<vu>(y) - 0x3f3504f3u);
  const vi exponent = (shifted >> 23) + (subnormal & -23);
  const vf f = as_float((shifted & 0x7fffff) + 0x3f3504f3) - 1.0f;
  const vf e = __builtin_convertvector(exponent, vf);
  const vf square = f * f;
  vf tail = square * f * polynomial(f, c);
  tail = fma(e, splat(kLn2Low), tail);
  tail = fma(square, splat(-0.5f), tail);
  vf out = fma(e, splat(kLn2High), tail + f);
  out = x < __builtin_inff() ? out : x;
  out = x > 0.0f ? out : (x == 0.0f ? splat(-__builtin_inff()) : splat(__builtin_nanf("")));
  return x != x ? x : out;
}

// log(1 + x) for x >= 0.
static inline vf log1p(vf x) {
  const vf u = x + 1.0f;
  const vf lost = x - (u - 1.0f);  // what rounding took from `u`
  const vf out = log(u) + lost / u;
  return u < __builtin_inff() ? out : u;
}

// ---- sigmoid, tanh, erf -------------------------------------------------------------------------

static inline vf sigmoid(vf x) { return 1.0f / one_and_exp_of_minus(x); }

static inline vf tanh(vf x) {
  constexpr float c[] = {-3.333328588e-01f, 1.333149489e-01f, -5.374135897e-02f, 2.063813993e-02f,
                         -5.698559249e-03f};
  const vf square = x * x;
  const vf small = fma(square * x, polynomial(square, c), x);
  const vf large = 1.0f - 2.0f / (exp(2.0f * vabs(x)) + 1.0f);
  return vabs(x) < 0.625f ? small : copysign(large, x);
}

static inline vf erf(vf x) {
  constexpr float c[] = {1.128379166e+00f, -3.761262714e-01f, 1.128360018e-01f, -2.685444459e-02f,
                         5.189535339e-03f, -8.020841280e-04f, 7.889119533e-05f};
  // log(erfc(t)) for t from 1 to 4, where erf reaches 1
  constexpr float d[] = {1.884910240e-04f, -1.129580416e+00f, -6.332162000e-01f, -1.084223021e-01f,
                         2.521046237e-02f, -4.205328380e-03f, 4.414810962e-04f,  -2.169829994e-05f};
  const vf small = x * polynomial(x * x, c);
  const vf t = vabs(x);
  const vf large = 1.0f - exp(polynomial(t > 4.0f ? splat(4.0f) : t, d));
  return t < 1.0f ? small : copysign(large, x);
}

// ---- sine and cosine ----------------------------------------------------------------------------

// Sine and cosine of r + quadrant * pi/2 for |r| <= pi/4.
static inline void sincos(vf r, vi quadrant, vf& sine, vf& cosine) {
  constexpr float s[] = {-1.666665423e-01f, 8.332131488e-03f, -1.951083813e-04f};
  constexpr float c[] = {4.166665156e-02f, -1.388754283e-03f, 2.445421811e-05f};
  const vf square = r * r;
  const vf sin_r = fma(square * r, polynomial(square, s), r);
  const vf cos_r =
      fma(square * square, polynomial(square, c), fma(square, splat(-0.5f), splat(1.0f)));
  const vi odd = (quadrant & 1) != 0;
  const vf a = odd ? cos_r : sin_r;
  const vf b = odd ? sin_r : cos_r;
  sine = (quadrant & 2) != 0 ? -a : a;
  cosine = ((quadrant + 1) & 2) != 0 ? -b : b;
}

// ---- rounding -----------------------------------------------------------------------------------

// Floats of 2^23 or more, infinities and NaN stay as they are.
static inline vf trunc(vf x) {
  const vi fits = vabs(x) < 8388608.0f;
  const vi whole = __builtin_convertvector(fits ? x : vf{}, vi);
  return fits ? copysign(__builtin_convertvector(whole, vf), x) : x;
}
static inline vf floor(vf x) {
  const vf t = trunc(x);
  return t > x ? t - 1.0f : t;
}
static inline vf ceil(vf x) {
  const vf t = trunc(x);
  return copysign(t < x ? t + 1.0f : t, x);
}
// Rounds to the nearest integer, halves away from zero.
static inline vf round(vf x) {
  const vf t = trunc(x);
  return vabs(x - t) >= 0.5f ? t + copysign(splat(1.0f), x) : t;
}

}  // namespace weft::WEFT_TARGET
