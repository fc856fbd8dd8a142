// Words on quads: groups of four lanes, of which a vector has kQuads.
#pragma once

#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

inline constexpr int kQuads = kLanes / 4;

// For each quad of lanes of a and b: a0 + a1, a2 + a3, b0 + b1, b2 + b3.
static inline vf pair_sums(vf a, vf b) {
#if defined(__AVX512F__)
  const auto x = reinterpret_cast<__m512>(a);
  const auto y = reinterpret_cast<__m512>(b);
  return reinterpret_cast<vf>(
      _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd)));
#elif defined(__AVX2__)
  const auto x = reinterpret_cast<__m256>(a);
  const auto y = reinterpret_cast<__m256>(b);
  return reinterpret_cast<vf>(
      _mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xdd)));
#elif defined(__x86_64__)
  const auto x = reinterpret_cast<__m128>(a);
  const auto y = reinterpret_cast<__m128>(b);
  return reinterpret_cast<vf>(_mm_add_ps(_mm_shuffle_ps(x, y, 0x88), _mm_shuffle_ps(x, y, 0xdd)));
#elif defined(WEFT_NEON)
  return vpaddq_f32(a, b);
#else
  return vf{a[0] + a[1], a[2] + a[3], b[0] + b[1], b[2] + b[3]};
#endif
}

// The four numbers at `p`, in each quad of lanes.
static inline vf load_quad(const float* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_broadcast_f32x4(_mm_loadu_ps(p)));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(p)));
#else
  return load(p);
#endif
}

// Transposes kQuads vectors as a matrix of quads: quad i of v[j] becomes quad j of v[i].
static inline void turn_quads(vf (&v)[kQuads]) {
#if defined(__AVX512F__)
  const auto a = reinterpret_cast<__m512>(v[0]);
  const auto b = reinterpret_cast<__m512>(v[1]);
  const auto c = reinterpret_cast<__m512>(v[2]);
  const auto d = reinterpret_cast<__m512>(v[3]);
  const __m512 low = _mm512_shuffle_f32x4(a, b, 0x44);
  const __m512 low2 = _mm512_shuffle_f32x4(c, d, 0x44);
  const __m512 high = _mm512_shuffle_f32x4(a, b, 0xee);
  const __m512 high2 = _mm512_shuffle_f32x4(c, d, 0xee);
  v[0] = reinterpret_cast<vf>(_mm512_shuffle_f32x4(low, low2, 0x88));
  v[1] = reinterpret_cast<vf>(_mm512_shuffle_f32x4(low, low2, 0xdd));
  v[2] = reinterpret_cast<vf>(_mm512_shuffle_f32x4(high, high2, 0x88));
  v[3] = reinterpret_cast<vf>(_mm512_shuffle_f32x4(high, high2, 0xdd));
#elif defined(__AVX2__)
  const auto a = reinterpret_cast<__m256>(v[0]);
  const auto b = reinterpret_cast<__m256>(v[1]);
  v[0] = reinterpret_cast<vf>(_mm256_permute2f128_ps(a, b, 0x20));
  v[1] = reinterpret_cast<vf>(_mm256_permute2f128_ps(a, b, 0x31));
#else
  (void)v;
#endif
}

// The first (second) half of the lanes of `a`, then the same half of `b`.
static inline vi first_halves(vi a, vi b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
#else
  vi out = a;
  for (int i = kLanes / 2; i < kLanes; ++i) out[i] = b[i - kLanes / 2];
  return out;
#endif
}
static inline vi second_halves(vi a, vi b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
#else
  vi out = b;
  for (int i = 0; i < kLanes / 2; ++i) out[i] = a[i + kLanes / 2];
  return out;
#endif
}

// Takes from each quad the even (odd) lanes of `a`, then the same lanes of `b`.
static inline vi even_lanes(vi a, vi b) {
#if defined(WEFT_NEON)
  return vuzp1q_s32(a, b);
#else
  vi out;
  for (int i = 0; i < kLanes; ++i) out[i] = (i % 4 < 2 ? a : b)[i / 4 * 4 + i % 2 * 2];
  return out;
#endif
}
static inline vi odd_lanes(vi a, vi b) {
#if defined(WEFT_NEON)
  return vuzp2q_s32(a, b);
#else
  vi out;
  for (int i = 0; i < kLanes; ++i) out[i] = (i % 4 < 2 ? a : b)[i / 4 * 4 + i % 2 * 2 + 1];
  return out;
#endif
}

// Takes from each quad the first (last) two lanes of `a` and `b`, alternating.
static inline vi low_pairs(vi a, vi b) {
#if defined(WEFT_NEON)
  return vzip1q_s32(a, b);
#else
  vi out;
  for (int i = 0; i < kLanes; ++i) out[i] = (i % 2 == 0 ? a : b)[i / 4 * 4 + i % 4 / 2];
  return out;
#endif
}
static inline vi high_pairs(vi a, vi b) {
#if defined(WEFT_NEON)
  return vzip2q_s32(a, b);
#else
  vi out;
  for (int i = 0; i < kLanes; ++i) out[i] = (i % 2 == 0 ? a : b)[i / 4 * 4 + 2 + i % 4 / 2];
  return out;
#endif
}

}  // namespace weft::WEFT_TARGET
