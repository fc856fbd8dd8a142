// Panels of weight rows, and their product with tiles of activation rows (AVX2 and up).
#pragma once

#include "quants/formats.h"
#include "quants/quant_kernels.h"

#if defined(__AVX2__)

namespace weft::WEFT_TARGET {

template <typename F>
void pack_panel(const char* w, int64_t stride, int64_t rows, int64_t first_chunk, int64_t n_chunks,
                float scale, int64_t next, const Panel& out) {
  constexpr int kPer = kGroupsPerChunk<F>;
  const int64_t first = first_chunk / F::kChunks;
  const int64_t n_blocks = n_chunks / F::kChunks;
  const typename F::Block* row[kPanelRows];
  for (int r = 0; r < kPanelRows; ++r) {
    const int64_t clamped = r < rows ? r : rows - 1;
    row[r] = reinterpret_cast<const typename F::Block*>(w + clamped * stride) + first;
  }
  for (int64_t b = 0; b < n_blocks; ++b) {
    for (int r = 0; r < kPanelRows; ++r) {
      const char* ahead = reinterpret_cast<const char*>(row[r] + b) + next;
      for (size_t line = 0; line < sizeof(typename F::Block); line += 64) {
        __builtin_prefetch(ahead + line, 0, 2);
      }
      float scales[F::kGroups];
      float mins[F::kGroups];
      block_scales<F>(row[r][b], scales, mins);
      for (int g = 0; g < F::kGroups; ++g) {
        const int64_t at = (b * F::kGroups + g) * kPanelRows + r;
        out.scale[at] = scales[g] * scale;
        if constexpr (F::kHasMin) out.min[at] = mins[g] * scale;
      }
    }
    static_assert(F::kGroups == F::kChunks * kPer);
#pragma GCC unroll 8
    for (int c = 0; c < F::kChunks; ++c) {
      uint8_t* q = out.q + (b * F::kChunks + c) * 32 * kPanelRows;
      for (int half = 0; half < kPanelRows; half += 8) {
        __m256i v[8];
        for (int r = 0; r < 8; ++r) {
          u8x32 codes = F::codes(row[half + r][b], c);
#if !defined(__AVX512VNNI__)
          if constexpr (F::kTop > 127) codes ^= splat8(128);
#endif
          v[r] = reinterpret_cast<__m256i>(codes);
        }
        transpose8(v);
        for (int j = 0; j < 8; ++j) {
          std::memcpy(q + (j * kPanelRows + half) * 4, &v[j], sizeof v[j]);
        }
      }
    }
  }
}

#if defined(__AVX512VNNI__)

static inline vi dot_words(vi acc, vi w, const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(w), _mm512_set1_epi32(four)));
}

template <typename F, int kSteps>
static inline vi dot_group(const vi* w, const int8_t* x, vi acc) {
#pragma GCC unroll 8
  for (int j = 0; j < kSteps; ++j) acc = dot_words(acc, w[j], x + 4 * j);
  return acc;
}

#else

// 16-bit pair sums are added up while they cannot overflow, then widened.
template <typename F, int kSteps>
static inline vi dot_group(const vi* w, const int8_t* x, vi acc) {
  constexpr int kRun = F::kTop > 127                 ? 1
                       : 32767 / (F::kTop * 254) < 8 ? 32767 / (F::kTop * 254)
                                                     : 8;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int j = 0; j < kSteps; ++j) {
    int32_t four;
    std::memcpy(&four, x + 4 * j, 4);
    __m256i codes = reinterpret_cast<__m256i>(w[j]);
    __m256i values = _mm256_set1_epi32(four);
    if constexpr (F::kTop > 127) {
      values = _mm256_sign_epi8(values, codes);
      codes = _mm256_abs_epi8(codes);
    }
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, values));
    if (j % kRun == kRun - 1 || j == kSteps - 1) {
      acc += reinterpret_cast<vi>(_mm256_madd_epi16(sum, ones));
      sum = _mm256_setzero_si256();
    }
  }
  return acc;
}

#endif

template <typename F, int kColumns>
void multiply_tile(const Panel& panel, const ActivationTile* x, int64_t n_chunks, float* out) {
  constexpr int kPer = kGroupsPerChunk<F>;
#if defined(__AVX512VNNI__)
  constexpr bool kCorrect = F::kZero != 0;
#else
  constexpr bool kCorrect = F::kZero != 0 && F::kTop <= 127;
#endif
  vf acc[kColumns] = {};
  const uint8_t* q = panel.q;
  const float* scale = panel.scale;
  const float* min = panel.min;
  for (int64_t chunk = 0; chunk < n_chunks; ++chunk, ++x) {
    vi w[8];
    vf s[kPer];
    vf m[kPer];
    for (int j = 0; j < 8; ++j) std::memcpy(&w[j], q + j * 4 * kPanelRows, sizeof w[j]);
    q += 32 * kPanelRows;
    for (int g = 0; g < kPer; ++g) {
      s[g] = load(scale + g * kPanelRows);
      if constexpr (F::kHasMin) m[g] = load(min + g * kPanelRows);
    }
    scale += kPer * kPanelRows;
    min += F::kHasMin ? kPer * kPanelRows : 0;
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const vf d = splat(x->d[c]);
#pragma GCC unroll 2
      for (int g = 0; g < kPer; ++g) {
        const vi start = kCorrect ? vi{} + x->correction[g][c] : vi{};
        const vi sum = dot_group<F, 8 / kPer>(w + g * 8 / kPer, x->q[c] + g * 32 / kPer, start);
        acc[c] = fma(__builtin_convertvector(sum, vf), s[g] * d, acc[c]);
        if constexpr (F::kHasMin) acc[c] = fma(m[g], splat(x->d_sum[g][c]), acc[c]);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) store(out + c * kPanelRows, acc[c]);
}

}  // namespace weft::WEFT_TARGET

#endif  // __AVX2__
