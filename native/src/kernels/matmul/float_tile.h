// The float matrix kernel: a tile of weight rows times a few columns.
//
// What a lane multiplies in one step is a word: a float, or two neighbouring bf16 where the target
// has their dot product. Lanes are words of the depth, of rows as of columns, so that neither has
// to be transposed. What a sum is does not depend on how many rows and columns are multiplied
// together; dot products of rows as they are stored (float_dots.h) take the same steps:
//
//   lane l adds up the products of words l, l + kLanes, ... of kSlabWords words, one by one;
//   the upper half of the lanes is added to the lower one, until one is left (add_lanes);
//   the sums of all slabs are added one by one.
#pragma once

#include "kernels/simd/bytes.h"

namespace weft::WEFT_TARGET {

#if defined(__AVX512F__) || defined(WEFT_NEON)
inline constexpr int kTileRows = 8;  // times kRunColumns: 24 of 32 registers are sums
inline constexpr int kRunColumns = 3;
#elif defined(__AVX2__)
inline constexpr int kTileRows = 4;  // 12 of 16
inline constexpr int kRunColumns = 3;
#else
inline constexpr int kTileRows = 4;  // 8 of 16; a product needs one more
inline constexpr int kRunColumns = 2;
#endif

inline constexpr int64_t kSlabWords = 2048;
// Words of depth that are multiplied at a time: the weights' tile stays in the first-level cache.
inline constexpr int64_t kDeepWords = 512;
static_assert(kSlabWords % kDeepWords == 0 && kDeepWords % kLanes == 0);
// Rows of a weights' tile are padded so that they do not share cache sets.
inline constexpr int64_t kWeightStride = kDeepWords + 16;

// Rows of sums that are written to the result together: a cache line.
inline constexpr int64_t kGroupRows = 16;

// `vectors` vectors of kTileRows rows at `w` (kWeightStride words apart) and of columns at `x`
// (`stride` words apart). Lanes are kept in `lanes`, [column][kTileRows] vectors, until a slab
// `ends`, after which its sums are in sums[column][kGroupRows].
struct TilePart {
  int64_t vectors;
  bool begins;
  bool ends;
};
using TileKernel = void (*)(const float* w, const float* x, int64_t stride, const TilePart& part,
                            float* lanes, float* sums);

// By number of columns, less one.
struct TileKernels {
  TileKernel of[kRunColumns];
};

// Keeps the compiler from loading a vector again for each of its uses.
static inline vf in_register(vf v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v));
#elif defined(__x86_64__)
  __asm__("" : "+x"(v));
#elif defined(WEFT_NEON)
  __asm__("" : "+w"(v));
#endif
  return v;
}

struct MultiplyFloats {
  static inline vf add(vf acc, vf a, vf b) { return fma(a, b, acc); }
};

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
// As unpack of pairs of floats.
static inline __m512 unpack_low(__m512 x, __m512 y) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
}
static inline __m512 unpack_high(__m512 x, __m512 y) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
}
#endif

// add_lanes of kTileRows vectors.
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
  for (int r = 0; r < kTileRows; r += 4) store(sums + r, vpaddq_f32(halves(r), halves(r + 2)));
#else
  for (int r = 0; r < kTileRows; ++r) sums[r] = add_lanes(v[r]);
#endif
}

template <class Step, int kColumns>
static void multiply_tile(const float* w, const float* x, int64_t stride, const TilePart& part,
                          float* lanes, float* sums) {
  vf acc[kColumns][kTileRows];
#pragma GCC unroll 3
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      acc[c][r] = part.begins ? vf{} : load(lanes + (c * kTileRows + r) * kLanes);
    }
  }
  for (const float* end = w + part.vectors * kLanes; w < end; w += kLanes, x += kLanes) {
    vf v[kColumns];
#pragma GCC unroll 3
    for (int c = 0; c < kColumns; ++c) v[c] = load(x + c * stride);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const vf row = in_register(load(w + r * kWeightStride));
#pragma GCC unroll 3
      for (int c = 0; c < kColumns; ++c) acc[c][r] = Step::add(acc[c][r], row, v[c]);
    }
  }
#pragma GCC unroll 3
  for (int c = 0; c < kColumns; ++c) {
    if (part.ends) {
      add_lanes(acc[c], sums + c * kGroupRows);
      continue;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) store(lanes + (c * kTileRows + r) * kLanes, acc[c][r]);
  }
}

template <class Step>
static TileKernels tile_kernels() {
  TileKernels kernels = {{multiply_tile<Step, 1>, multiply_tile<Step, 2>}};
  if constexpr (kRunColumns == 3) kernels.of[2] = multiply_tile<Step, 3>;
  return kernels;
}

}  // namespace weft::WEFT_TARGET
