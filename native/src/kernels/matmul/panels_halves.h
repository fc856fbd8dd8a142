// Panels of 16-bit floats times columns of f32: their words are two neighbouring elements of a row,
// which become floats, exactly.
#pragma once

#include "kernels/matmul/panels_floats.h"

namespace weft::WEFT_TARGET {

// The elements of kLanes words: those of even depth and the ones after them.
struct Halves {
  vf even, odd;
};

template <DType kType>
static inline Halves halves_of(vf words) {
  const auto bits = reinterpret_cast<vu>(words);
  if constexpr (kType == DType::kBF16) {
    return {reinterpret_cast<vf>(bits << 16), reinterpret_cast<vf>(bits & 0xffff0000u)};
  } else {
#if defined(__AVX512F__)
    // the lower halves of all words, then the upper ones
    alignas(64) static constexpr int16_t kOrder[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                       22, 24, 26, 28, 30, 1,  3,  5,  7,  9,  11,
                                                       13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
    const __m512i all =
        _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), reinterpret_cast<__m512i>(words));
    return {reinterpret_cast<vf>(_mm512_cvtph_ps(_mm512_castsi512_si256(all))),
            reinterpret_cast<vf>(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(all, 1)))};
#elif defined(__AVX2__)
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i all = _mm256_permute4x64_epi64(
        _mm256_shuffle_epi8(reinterpret_cast<__m256i>(words), order), 0xd8);
    return {reinterpret_cast<vf>(_mm256_cvtph_ps(_mm256_castsi256_si128(all))),
            reinterpret_cast<vf>(_mm256_cvtph_ps(_mm256_extracti128_si256(all, 1)))};
#elif defined(WEFT_NEON)
    return {vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(bits))),
            vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(bits, 16)))};
#else
    Halves halves = {};
    for (int i = 0; i < kLanes; ++i) {
      halves.even[i] = half_to_float(static_cast<uint16_t>(bits[i]));
      halves.odd[i] = half_to_float(static_cast<uint16_t>(bits[i] >> 16));
    }
    return halves;
#endif
  }
}

// A word and two elements of a column of f32.
template <DType kType>
struct HalfWords {
  static constexpr int64_t kColumnWords = 2;
  static inline Halves all(const float* x) { return {splat(x[0]), splat(x[1])}; }
  static inline vf add(vf acc, vf words, const Halves& x) {
    const Halves rows = halves_of<kType>(words);
    return fma(rows.odd, x.odd, fma(rows.even, x.even, acc));
  }
};

// Words of depth that become floats at a time, for so many columns, whose part of the depth stays
// in the second-level cache.
inline constexpr int64_t kStagedWords = 256;
inline constexpr int64_t kStagedColumns = 256;

// `words` words of depth of a panel as floats: a panel of f32 twice as deep.
template <DType kType>
static void stage_panel(const float* panel, int64_t words, float* to) {
  for (const float* end = panel + words * kPanelRows; panel < end; to += kPanelRows) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kPanelRows; r += kLanes, panel += kLanes, to += kLanes) {
      const Halves halves = halves_of<kType>(load(panel));
      store(to, halves.even);
      store(to + kPanelRows, halves.odd);
    }
  }
}

}  // namespace weft::WEFT_TARGET
