// Sums of the lanes of vectors as a tree: the upper half of the lanes is added to the lower one,
// until one is left.
#pragma once

#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

// The sum of all lanes.
static inline float add_lanes(vf v) {
#if defined(__AVX512F__)
  const auto all = reinterpret_cast<__m512>(v);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
#elif defined(__AVX2__)
  const auto eight = reinterpret_cast<__m256>(v);
#endif
#if defined(__AVX2__)
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

#if defined(__AVX512F__)
// Unpacks pairs of floats.
static inline __m512 unpack_low(__m512 x, __m512 y) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
}
static inline __m512 unpack_high(__m512 x, __m512 y) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
}
#endif

inline constexpr int kSumRows = kRegisters == 32 ? 8 : 4;

// add_lanes of kSumRows vectors.
static inline void add_lanes(const vf* v, float* sums) {
#if defined(__AVX512F__)
  const auto at = [&](int i) { return reinterpret_cast<__m512>(v[i]); };
  // 128-bit lanes: halves of one vector and of another
  __m512 halves[4];
  for (int i = 0; i < 4; ++i) {
    halves[i] = _mm512_add_ps(_mm512_shuffle_f32x4(at(2 * i), at(2 * i + 1), 0x44),
                              _mm512_shuffle_f32x4(at(2 * i), at(2 * i + 1), 0xee));
  }
  __m512 quarters[2];
  for (int i = 0; i < 2; ++i) {
    quarters[i] = _mm512_add_ps(_mm512_shuffle_f32x4(halves[2 * i], halves[2 * i + 1], 0x88),
                                _mm512_shuffle_f32x4(halves[2 * i], halves[2 * i + 1], 0xdd));
  }
  // 128-bit lane i: two lanes of vector i, two of vector i + 4
  const __m512 pairs =
      _mm512_add_ps(unpack_low(quarters[0], quarters[1]), unpack_high(quarters[0], quarters[1]));
  const __m512 all = _mm512_add_ps(pairs, _mm512_movehdup_ps(pairs));
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm256_storeu_ps(sums, _mm512_castps512_ps256(_mm512_permutexvar_ps(order, all)));
#elif defined(WEFT_NEON)
  const auto halves = [&](int i) {
    const auto a = vreinterpretq_f64_f32(v[i]), b = vreinterpretq_f64_f32(v[i + 1]);
    return vreinterpretq_f32_f64(vzip1q_f64(a, b)) + vreinterpretq_f32_f64(vzip2q_f64(a, b));
  };
  for (int r = 0; r < kSumRows; r += 4) store(sums + r, vpaddq_f32(halves(r), halves(r + 2)));
#else
  for (int r = 0; r < kSumRows; ++r) sums[r] = add_lanes(v[r]);
#endif
}

}  // namespace weft::WEFT_TARGET
