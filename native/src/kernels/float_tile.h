// The float matrix kernel: a tile of weight rows times a run of columns.
//
// What a lane multiplies in one step is a word: a float, or two neighbouring bf16 where the target
// has their dot product. Lanes are columns: they are packed once per run of rows, as panels
// [word][lane], while the words of the weights are broadcast as they are. So weights need no
// transposing, and bf16 weights no decoding. The sums leave the kernel transposed, since rows are
// the innermost dimension of the result.
#pragma once

#include "kernels/simd/bytes.h"

namespace weft::WEFT_TARGET {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 8;  // times kTileVectors: 24 of 32 registers are sums
inline constexpr int kTileVectors = 3;
#elif defined(__AVX2__)
inline constexpr int kTileRows = 4;  // 12 of 16
inline constexpr int kTileVectors = 3;
#else
inline constexpr int kTileRows = 4;  // 8 of 16; a product needs one more
inline constexpr int kTileVectors = 2;
#endif
inline constexpr int kTileLanes = kTileVectors * kLanes;

// Words of depth that are multiplied at a time: the weights' tile stays in the first-level cache.
inline constexpr int64_t kDeepWords = 512;
// Rows of a weights' tile are padded so that they do not share cache sets.
inline constexpr int64_t kWeightStride = kDeepWords + 16;

// What to fetch from memory while a tile is multiplied: kTileRows rows `stride` bytes apart, `step`
// bytes of each at a time. All at once would fill the queue of outstanding lines and stall.
struct Ahead {
  const char* p;
  int64_t stride;
  int64_t step;
};
inline constexpr int64_t kAheadSteps = kDeepWords / 16;

// sums[lane][kTileRows] (+)= rows of `w`, kWeightStride words apart, times lanes of the panel `x`.
using TileKernel = void (*)(const float* w, const float* x, int64_t words, const Ahead& ahead,
                            bool add, float* sums);

// By number of vectors, less one.
struct TileKernels {
  TileKernel of[kTileVectors];
};

struct MultiplyFloats {
  static inline vf add(vf acc, vf a, vf b) { return fma(a, b, acc); }
};

#if defined(__AVX512F__)
// As unpack of pairs of floats.
static inline __m512 unpack_low(__m512 x, __m512 y) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
}
static inline __m512 unpack_high(__m512 x, __m512 y) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(x), _mm512_castps_pd(y)));
}
#endif

// sums[lane][kTileRows] (+)= kTileRows vectors.
template <bool kAdd>
static inline void store_transposed(const vf* acc, float* sums) {
#if defined(__AVX512F__)
  __m512 a[8];
  __m512 b[8];
  for (int i = 0; i < 8; i += 2) {
    const auto v0 = reinterpret_cast<__m512>(acc[i]);
    const auto v1 = reinterpret_cast<__m512>(acc[i + 1]);
    a[i] = _mm512_unpacklo_ps(v0, v1);
    a[i + 1] = _mm512_unpackhi_ps(v0, v1);
  }
  // b[4 h + j]: rows 4h..4h+3 of lanes j, j + 4, j + 8, j + 12
  for (int h = 0; h < 8; h += 4) {
    b[h] = unpack_low(a[h], a[h + 2]);
    b[h + 1] = unpack_high(a[h], a[h + 2]);
    b[h + 2] = unpack_low(a[h + 1], a[h + 3]);
    b[h + 3] = unpack_high(a[h + 1], a[h + 3]);
  }
  // of a quarter each: lanes 0, 1 (rows 0-3, 4-7 of each), 2, 3 and so on
  const auto put = [&](int lane, __m512 low, __m512 high, int quarter) {
    const __m512i pick = quarter == 0   ? _mm512_setr_epi64(0, 1, 8, 9, 0, 0, 0, 0)
                         : quarter == 1 ? _mm512_setr_epi64(2, 3, 10, 11, 0, 0, 0, 0)
                         : quarter == 2 ? _mm512_setr_epi64(4, 5, 12, 13, 0, 0, 0, 0)
                                        : _mm512_setr_epi64(6, 7, 14, 15, 0, 0, 0, 0);
    __m256 v = _mm512_castps512_ps256(_mm512_castpd_ps(
        _mm512_permutex2var_pd(_mm512_castps_pd(low), pick, _mm512_castps_pd(high))));
    if (kAdd) v = _mm256_add_ps(v, _mm256_loadu_ps(sums + 8 * lane));
    _mm256_storeu_ps(sums + 8 * lane, v);
  };
#pragma GCC unroll 4
  for (int quarter = 0; quarter < 4; ++quarter) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) put(4 * quarter + j, b[j], b[j + 4], quarter);
  }
#else
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int r = 0; r < kTileRows; ++r) {
      float& sum = sums[lane * kTileRows + r];
      sum = (kAdd ? sum : 0.0f) + acc[r][lane];
    }
  }
#endif
}

template <class Step, int kVectors>
static void multiply_tile(const float* w, const float* x, int64_t words, const Ahead& ahead,
                          bool add, float* sums) {
  vf acc[kVectors][kTileRows] = {};
  const char* fetch = ahead.p;
  const int64_t stride = ahead.stride;
  while (words > 0) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) __builtin_prefetch(fetch + r * stride, 0, 2);
    fetch += ahead.step;
    const int64_t n = words < 16 ? words : 16;
    words -= n;
    for (const float* end = w + n; w < end; ++w, x += kVectors * kLanes) {
      vf v[kVectors];
#pragma GCC unroll 3
      for (int i = 0; i < kVectors; ++i) v[i] = load(x + i * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const vf word = splat(w[r * kWeightStride]);
#pragma GCC unroll 3
        for (int i = 0; i < kVectors; ++i) acc[i][r] = Step::add(acc[i][r], v[i], word);
      }
    }
  }
#pragma GCC unroll 3
  for (int i = 0; i < kVectors; ++i, sums += kLanes * kTileRows) {
    add ? store_transposed<true>(acc[i], sums) : store_transposed<false>(acc[i], sums);
  }
}

template <class Step>
static TileKernels tile_kernels() {
  TileKernels kernels = {{multiply_tile<Step, 1>, multiply_tile<Step, 2>}};
  if constexpr (kTileVectors == 3) kernels.of[2] = multiply_tile<Step, 3>;
  return kernels;
}

#if defined(__AVX512F__)
// Sixteen rows of sixteen words become sixteen columns.
static inline void transpose16(__m512 v[16]) {
  __m512 a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
  }
  // b[4 h + j]: rows 4h..4h+3 of columns j, j + 4, j + 8, j + 12
  __m512 b[16];
  for (int h = 0; h < 16; h += 4) {
    b[h] = unpack_low(a[h], a[h + 2]);
    b[h + 1] = unpack_high(a[h], a[h + 2]);
    b[h + 2] = unpack_low(a[h + 1], a[h + 3]);
    b[h + 3] = unpack_high(a[h + 1], a[h + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 p = _mm512_shuffle_f32x4(b[j], b[j + 4], 0x44);
    const __m512 q = _mm512_shuffle_f32x4(b[j], b[j + 4], 0xee);
    const __m512 r = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0x44);
    const __m512 s = _mm512_shuffle_f32x4(b[j + 8], b[j + 12], 0xee);
    v[j] = _mm512_shuffle_f32x4(p, r, 0x88);
    v[j + 4] = _mm512_shuffle_f32x4(p, r, 0xdd);
    v[j + 8] = _mm512_shuffle_f32x4(q, s, 0x88);
    v[j + 12] = _mm512_shuffle_f32x4(q, s, 0xdd);
  }
}
#endif

// Columns to lanes: panel[k * stride + lane] = columns[lane][k], for kLanes columns and `words`
// words.
static inline void pack_lanes(const float* const* columns, int64_t words, int64_t stride,
                              float* panel) {
  int64_t k = 0;
#if defined(__AVX512F__)
  constexpr int64_t kAhead = 96;  // too many streams for the hardware to follow
  for (; k + 16 <= words; k += 16) {
    __m512 v[16];
    for (int c = 0; c < 16; ++c) {
      __builtin_prefetch(columns[c] + k + kAhead);
      v[c] = _mm512_loadu_ps(columns[c] + k);
    }
    transpose16(v);
    for (int j = 0; j < 16; ++j) _mm512_storeu_ps(panel + (k + j) * stride, v[j]);
  }
#elif defined(__AVX2__)
  for (; k + 8 <= words; k += 8) {
    __m256i v[8];
    for (int c = 0; c < 8; ++c) std::memcpy(&v[c], columns[c] + k, sizeof v[c]);
    transpose8(v);
    for (int j = 0; j < 8; ++j) std::memcpy(panel + (k + j) * stride, &v[j], sizeof v[j]);
  }
#endif
  for (; k < words; ++k) {
    for (int c = 0; c < kLanes; ++c) {
      std::memcpy(panel + k * stride + c, columns[c] + k, sizeof(float));
    }
  }
}

}  // namespace weft::WEFT_TARGET
