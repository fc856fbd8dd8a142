// Vectors of doubles, two for each vector of floats, and base-2 logarithm and exponential on them.
//
// Functions whose intermediate results need more bits than a float has (a power is the exponential
// of a product) are computed in double and rounded once.
#pragma once

#include "kernels/simd/math.h"

namespace weft::WEFT_TARGET {

inline constexpr int kWideLanes = kLanes / 2;
typedef double vd __attribute__((vector_size(kLanes * 4)));
typedef int64_t vl __attribute__((vector_size(kLanes * 4)));
typedef uint64_t vul __attribute__((vector_size(kLanes * 4)));

static inline vd splat_wide(double x) { return x - vd{}; }
static inline vd as_double(vul v) { return reinterpret_cast<vd>(v); }
static inline vul as_bits(vd v) { return reinterpret_cast<vul>(v); }

// a * b + c, fused where the target can.
static inline vd fma(vd a, vd b, vd c) {
#if defined(__AVX512F__)
  return reinterpret_cast<vd>(_mm512_fmadd_pd(
      reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b), reinterpret_cast<__m512d>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<vd>(_mm256_fmadd_pd(
      reinterpret_cast<__m256d>(a), reinterpret_cast<__m256d>(b), reinterpret_cast<__m256d>(c)));
#elif defined(WEFT_NEON)
  return vfmaq_f64(c, a, b);
#else
  return a * b + c;
#endif
}

static inline vd vsqrt(vd x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vd>(_mm512_sqrt_pd(reinterpret_cast<__m512d>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<vd>(_mm256_sqrt_pd(reinterpret_cast<__m256d>(x)));
#elif defined(WEFT_NEON)
  return vsqrtq_f64(x);
#else
  for (int i = 0; i < kWideLanes; ++i) x[i] = __builtin_sqrt(x[i]);
  return x;
#endif
}

// The low and the high half of a vector of floats.
struct Wide {
  vd low, high;
};

static inline Wide widen(vf x) {
#if defined(__AVX512F__)
  const auto v = reinterpret_cast<__m512>(x);
  return {reinterpret_cast<vd>(_mm512_cvtps_pd(_mm512_castps512_ps256(v))),
          reinterpret_cast<vd>(_mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1)))};
#elif defined(__AVX2__)
  const auto v = reinterpret_cast<__m256>(x);
  return {reinterpret_cast<vd>(_mm256_cvtps_pd(_mm256_castps256_ps128(v))),
          reinterpret_cast<vd>(_mm256_cvtps_pd(_mm256_extractf128_ps(v, 1)))};
#elif defined(__SSE2__)
  const auto v = reinterpret_cast<__m128>(x);
  return {reinterpret_cast<vd>(_mm_cvtps_pd(v)),
          reinterpret_cast<vd>(_mm_cvtps_pd(_mm_movehl_ps(v, v)))};
#elif defined(WEFT_NEON)
  return {vcvt_f64_f32(vget_low_f32(x)), vcvt_high_f64_f32(x)};
#else
  Wide w;
  for (int i = 0; i < kWideLanes; ++i) {
    w.low[i] = static_cast<double>(x[i]);
    w.high[i] = static_cast<double>(x[i + kWideLanes]);
  }
  return w;
#endif
}

// Rounds to nearest; numbers that are too large become infinite.
static inline vf narrow(const Wide& w) {
#if defined(__AVX512F__)
  const __m256 low = _mm512_cvtpd_ps(reinterpret_cast<__m512d>(w.low));
  const __m256 high = _mm512_cvtpd_ps(reinterpret_cast<__m512d>(w.high));
  return reinterpret_cast<vf>(_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(_mm256_set_m128(_mm256_cvtpd_ps(reinterpret_cast<__m256d>(w.high)),
                                              _mm256_cvtpd_ps(reinterpret_cast<__m256d>(w.low))));
#elif defined(__SSE2__)
  return reinterpret_cast<vf>(_mm_movelh_ps(_mm_cvtpd_ps(reinterpret_cast<__m128d>(w.low)),
                                            _mm_cvtpd_ps(reinterpret_cast<__m128d>(w.high))));
#elif defined(WEFT_NEON)
  return vcvt_high_f32_f64(vcvt_f32_f64(w.low), w.high);
#else
  vf x;
  for (int i = 0; i < kWideLanes; ++i) {
    x[i] = static_cast<float>(w.low[i]);
    x[i + kWideLanes] = static_cast<float>(w.high[i]);
  }
  return x;
#endif
}

// Applies f to each float in double. The two halves are independent, which hides latency.
template <typename F>
static inline vf in_double(vf x, const F& f) {
  const Wide w = widen(x);
  return narrow({f(w.low), f(w.high)});
}

// c[0] + c[1] x + ... by Horner's rule.
template <int N>
static inline vd polynomial(vd x, const double (&c)[N]) {
  vd y = splat_wide(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) y = fma(y, x, splat_wide(c[i]));
  return y;
}

// log2(x) for positive normal x, with a relative error of 2^-45; meaningless for any other x. With
// x = m 2^e and m from sqrt(1/2) to sqrt(2) it is e plus the series of atanh((m - 1) / (m + 1)).
static inline vd log2_wide(vd x) {
  constexpr double c[] = {2.88539008177785083e+00, 9.61796694113310147e-01,
                          5.77077942372833386e-01, 4.12209251724585057e-01,
                          3.19905718132350414e-01, 2.82899930067961491e-01};
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdu, kBias = uint64_t{1023} << 52;
  const vul shifted = as_bits(x) + (kBias - kRootHalf);
  // Or-ing a small integer into the bits of 2^52 adds it to 2^52.
  const vd e = as_double((shifted >> 52) | 0x4330000000000000u) - (4503599627370496.0 + 1023.0);
  const vd m = as_double((shifted & 0xfffffffffffffu) + kRootHalf);
  const vd s = (m - 1.0) / (m + 1.0);
  return fma(s, polynomial(s * s, c), e);
}

// log2(x) for every x, with the special cases of the C library.
static inline vd log2_any(vd x) {
  constexpr double kInfinity = __builtin_inf();
  vd out = log2_wide(x);
  out = x < kInfinity ? out : x;
  out = x > 0.0 ? out : (x == 0.0 ? splat_wide(-kInfinity) : splat_wide(__builtin_nan("")));
  return x != x ? x : out;
}

// 2^x with a relative error of 2^-34; meaningless for a NaN. x is clamped to -1000..1000, whose
// results round to 0 and infinity in float.
static inline vd exp2_wide(vd x) {
  constexpr double c[] = {9.99999999961682540e-01, 6.93147180728445722e-01, 2.40226511981602053e-01,
                          5.55041035343447411e-02, 9.61802725333633923e-03, 1.33339225800174592e-03,
                          1.54692912413992995e-04, 1.52019170514827717e-05};
  constexpr double kRoundWide = 6755399441055744.0;
  x = x < -1000.0 ? splat_wide(-1000.0) : x;
  x = x > 1000.0 ? splat_wide(1000.0) : x;
  const vd sum = x + kRoundWide;  // the integer is in its low bits
  const vd p = polynomial(x - (sum - kRoundWide), c);
  return as_double(as_bits(p) + (as_bits(sum) << 52));
}

}  // namespace weft::WEFT_TARGET
