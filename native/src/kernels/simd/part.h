// Loads and stores of the first lanes of a vector, for rows that end inside one.
#pragma once

#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

// Loads the first `n` lanes (0 <= n <= kLanes) from `p`; the others become 0. Reads nothing behind
// them.
static inline vf load_part(const float* p, int64_t n) {
#if defined(__AVX512F__)
  const auto lanes = static_cast<__mmask16>((1u << n) - 1u);
  return reinterpret_cast<vf>(_mm512_maskz_loadu_ps(lanes, p));
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), order);
  return reinterpret_cast<vf>(_mm256_maskload_ps(p, lanes));
#else
  vf v = {};
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

// The same; the other lanes become `fill`.
static inline vf load_part(const float* p, int64_t n, float fill) {
#if defined(__AVX512F__)
  const auto lanes = static_cast<__mmask16>((1u << n) - 1u);
  return reinterpret_cast<vf>(
      _mm512_mask_loadu_ps(reinterpret_cast<__m512>(splat(fill)), lanes, p));
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), order);
  return reinterpret_cast<vf>(_mm256_blendv_ps(reinterpret_cast<__m256>(splat(fill)),
                                               _mm256_maskload_ps(p, lanes),
                                               _mm256_castsi256_ps(lanes)));
#else
  vf v = splat(fill);
  for (int64_t i = 0; i < n; ++i) v[i] = p[i];
  return v;
#endif
}

static inline void store_part(float* p, vf v, int64_t n) {
#if defined(__AVX512F__)
  const auto lanes = static_cast<__mmask16>((1u << n) - 1u);
  _mm512_mask_storeu_ps(p, lanes, reinterpret_cast<__m512>(v));
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i lanes = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), order);
  _mm256_maskstore_ps(p, lanes, reinterpret_cast<__m256>(v));
#else
  for (int64_t i = 0; i < n; ++i) p[i] = v[i];
#endif
}

// Copies the first `n` lanes from `from`.
static inline void copy_part(const float* from, int64_t n, float* to) {
#if defined(__AVX2__)
  store_part(to, load_part(from, n), n);
#else
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
#endif
}

}  // namespace weft::WEFT_TARGET
