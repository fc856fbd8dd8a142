// Panels of weight rows, and their product with tiles of activation rows (AVX2 and up).
//
// Lanes are rows: four codes of each row meet the same four activations, so no sum ever crosses
// lanes. With AVX-512 two vectors of rows and six columns keep 12 integer and 12 float sums in
// registers, and each load of activations or weights feeds two or six dot products.
#pragma once

#include "quants/formats.h"
#include "quants/quant_kernels.h"

#if defined(__AVX2__)

namespace weft::WEFT_TARGET {

template <typename F>
void pack_panel(const char* w, int64_t stride, int64_t rows, int64_t first_chunk, int64_t n_chunks,
                int64_t next, const Panel& out) {
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
        out.scale[at] = scales[g];
        if constexpr (F::kHasMin) out.min[at] = mins[g];
      }
    }
    static_assert(F::kGroups == F::kChunks * kPer);
#pragma GCC unroll 8
    for (int c = 0; c < F::kChunks; ++c) {
      uint8_t* q = out.q + (b * F::kChunks + c) * 32 * kPanelRows;
      for (int part = 0; part < kPanelRows; part += 8) {
        __m256i v[8];
        for (int r = 0; r < 8; ++r) {
          u8x32 codes = F::codes(row[part + r][b], c);
#if !defined(__AVX512VNNI__)
          if constexpr (F::kTop > 127) codes ^= splat8(128);
#endif
          v[r] = reinterpret_cast<__m256i>(codes);
        }
        transpose8(v);
        for (int j = 0; j < 8; ++j) {
          std::memcpy(q + (j * kPanelRows + part) * 4, &v[j], sizeof v[j]);
        }
      }
    }
  }
}

static inline int32_t four_codes(const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return four;
}

#if defined(__AVX512VNNI__)

static inline vi splat_codes(const int8_t* x) { return vi{} + four_codes(x); }

static inline vi dot_words(vi acc, vi w, vi x) {
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(w), reinterpret_cast<__m512i>(x)));
}

// acc + the sums of kSteps words, and activations 4 * step.
template <typename F, int kSteps>
static inline vi dot_group(const vi* w, const int8_t* x, vi acc) {
#pragma GCC unroll 8
  for (int j = 0; j < kSteps; ++j) acc = dot_words(acc, w[j], splat_codes(x + 4 * j));
  return acc;
}

template <typename F>
inline constexpr bool kCorrects = F::kZero != 0;

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
    __m256i codes = reinterpret_cast<__m256i>(w[j]);
    __m256i values = _mm256_set1_epi32(four_codes(x + 4 * j));
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

// wide codes are multiplied as signed ones here
template <typename F>
inline constexpr bool kCorrects = F::kZero != 0 && F::kTop <= 127;

#endif

// What the integer sums of a group start with.
template <typename F, int kColumns>
static inline vi start_sum(const ActivationTile<kColumns>& x, int group, int column) {
  return kCorrects<F> ? vi{} + x.correction[group][column] : vi{};
}

// kVectors vectors of rows, from row `first` on, times the columns of a tile: the integer sums.
template <typename F, int kVectors, int kColumns, int kSteps>
static inline void dot_tile(const uint8_t* q, const int8_t* x, vi (&s)[kVectors][kColumns]) {
#if defined(__AVX512VNNI__)
#pragma GCC unroll 8
  for (int j = 0; j < kSteps; ++j) {
    vi w[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      std::memcpy(&w[v], q + (j * kPanelRows + v * kLanes) * 4, sizeof w[v]);
    }
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const vi four = splat_codes(x + 32 * c + 4 * j);
      for (int v = 0; v < kVectors; ++v) s[v][c] = dot_words(s[v][c], w[v], four);
    }
  }
#else
  for (int v = 0; v < kVectors; ++v) {
    vi w[kSteps];
    for (int j = 0; j < kSteps; ++j) {
      std::memcpy(&w[j], q + (j * kPanelRows + v * kLanes) * 4, sizeof w[j]);
    }
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) s[v][c] = dot_group<F, kSteps>(w, x + 32 * c, s[v][c]);
  }
#endif
}

// The sums of one chunk as floats, added to `acc`.
template <typename F, int kVectors, int kColumns>
static inline void add_chunk(const uint8_t* q, const float* scale, const float* min,
                             const ActivationTile<kColumns>& x, vf (&acc)[kVectors][kColumns]) {
  constexpr int kPer = kGroupsPerChunk<F>;
#pragma GCC unroll 2
  for (int g = 0; g < kPer; ++g) {
    vi s[kVectors][kColumns];
    for (int c = 0; c < kColumns; ++c) {
      for (int v = 0; v < kVectors; ++v) s[v][c] = start_sum<F>(x, g, c);
    }
    constexpr int kSteps = 8 / kPer;
    dot_tile<F, kVectors, kColumns, kSteps>(q + g * kSteps * 4 * kPanelRows,
                                            x.q[0] + g * kSteps * 4, s);
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        vf w = load(scale + g * kPanelRows + v * kLanes);
        if constexpr (!kBlockActivations<F>) w = w * splat(x.d[c]);
        acc[v][c] = fma(__builtin_convertvector(s[v][c], vf), w, acc[v][c]);
        if constexpr (F::kHasMin) {
          const vf m = load(min + g * kPanelRows + v * kLanes);
          acc[v][c] = fma(m, splat(x.sum[g][c]), acc[v][c]);
        }
      }
    }
  }
}

// The integer sums of a block whose weights have one scale.
template <typename F, int kVectors, int kColumns>
static inline void sum_block(const uint8_t* q, const ActivationTile<kColumns>* x,
                             vf (&acc)[kVectors][kColumns]) {
  vi s[kVectors][kColumns];
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) s[v][c] = start_sum<F>(*x, 0, c);
  }
  for (int chunk = 0; chunk < 8; ++chunk) {
    dot_tile<F, kVectors, kColumns, 8>(q + chunk * 32 * kPanelRows, x[chunk].q[0], s);
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) acc[v][c] = __builtin_convertvector(s[v][c], vf);
  }
}

template <int kVectors, int kColumns>
static inline void load_sums(vf (&acc)[kVectors][kColumns], int first, float* const* out) {
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) acc[v][c] = load(out[c] + first + v * kLanes);
  }
}

template <int kVectors, int kColumns>
static inline void put_sums(const vf (&acc)[kVectors][kColumns], int first, float factor,
                            float* const* out) {
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      store(out[c] + first + v * kLanes, acc[v][c] * splat(factor));
    }
  }
}

// Adds the sums of a block, times the activations' scale (and that of the weights, if it is one).
template <typename F, int kVectors, int kColumns>
static inline void put_block(const vf (&acc)[kVectors][kColumns], const float* scale,
                             const float* d, int first, bool add, float* const* out) {
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      float* at = out[c] + first + v * kLanes;
      vf factor = splat(d[c]);
      if constexpr (kOneScale<F>) factor = load(scale + v * kLanes) * factor;
      store(at, fma(acc[v][c], factor, add ? load(at) : vf{}));
    }
  }
}

template <typename F, int kVectors, int kColumns>
static inline void multiply_vectors(const Panel& panel, const ActivationTile<kColumns>* x,
                                    int64_t n_chunks, int first, bool add, float factor,
                                    float* const* out) {
  constexpr int kPer = kGroupsPerChunk<F>;
  const uint8_t* q = panel.q + first * 4;
  const float* scale = panel.scale + first;
  const float* min = panel.min + first;
  if constexpr (!kBlockActivations<F>) {
    vf acc[kVectors][kColumns] = {};
    if (add) load_sums(acc, first, out);
    for (int64_t i = 0; i < n_chunks; ++i) {
      add_chunk<F>(q + i * 32 * kPanelRows, scale + i * kPer * kPanelRows,
                   min + i * kPer * kPanelRows, x[i], acc);
    }
    put_sums(acc, first, factor, out);
  } else {
    for (int64_t b = 0; b < n_chunks; b += 8) {
      vf acc[kVectors][kColumns] = {};
      if constexpr (kOneScale<F>) {
        sum_block<F>(q + b * 32 * kPanelRows, x + b, acc);
      } else {
        for (int64_t i = b; i < b + 8; ++i) {
          add_chunk<F>(q + i * 32 * kPanelRows, scale + i * kPer * kPanelRows,
                       min + i * kPer * kPanelRows, x[i], acc);
        }
      }
      put_block<F>(acc, scale + b * kPanelRows, x[b].d, first, add || b > 0, out);
    }
  }
}

template <typename F, int kColumns>
void multiply_tile(const Panel& panel, const void* x, int64_t n_chunks, bool add, float scale,
                   float* const* out) {
  constexpr int kVectors = kLanes == 16 ? 2 : 1;
  const auto* tiles = static_cast<const ActivationTile<kColumns>*>(x);
  for (int first = 0; first < kPanelRows; first += kVectors * kLanes) {
    multiply_vectors<F, kVectors, kColumns>(panel, tiles, n_chunks, first, add, scale, out);
  }
}

}  // namespace weft::WEFT_TARGET

#endif  // __AVX2__
