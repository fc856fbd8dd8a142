// Panels of weight rows, and their product with tiles of activation rows (AVX2 and up, NEON).
//
// Two vectors of rows at a time, so that each load of activations feeds two products and each load
// of weights one a column. With AVX-512 and six columns, 12 integer and 12 float sums stay in
// registers.
#pragma once

#include "quants/lane_dots.h"

#if defined(WEFT_PANELS)

namespace weft::WEFT_TARGET {

#if defined(WEFT_NEON)
// Pairs of words of four rows: see kMatrices.
static inline void put_pairs(const vi (&words)[8], uint8_t* q) {
#pragma GCC unroll 4
  for (int j = 0; j < 8; j += 2) {
    store_as(q + j * kWordStep, vzip1q_s32(words[j], words[j + 1]));
    store_as(q + j * kWordStep + 16, vzip2q_s32(words[j], words[j + 1]));
  }
}
static inline void put_pairs(const i32x8 (&words)[8], uint8_t* q) {
  vi part[2][8];
  for (int j = 0; j < 8; ++j) {
    part[0][j] = load_as<vi>(&words[j]);
    part[1][j] = load_as<vi>(reinterpret_cast<const char*>(&words[j]) + sizeof(vi));
  }
  for (int i = 0; i < 2; ++i) put_pairs(part[i], q + i * 32);
}
#endif

// Eight words of a chunk to a panel at `q`, for some of its rows, from `row` on; signed where they
// are wide.
template <typename F, typename V>
static inline void put_words(const V (&words)[8], uint8_t* q, int row) {
  q += panel_place(row);
#if defined(WEFT_NEON)
  if constexpr (kMatrices) return put_pairs(words, q);
#endif
  constexpr int kGroup = 8 / kGroupsPerChunk<F>;  // words
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    if constexpr (kPanelWords<F> == 8) {
      store_as(q + j * kWordStep, words[j]);
    } else {
      const int even = j + j / kGroup * kGroup;
      store_as(q + even * kWordStep, even_codes(words[j]));
      store_as(q + (even + kGroup) * kWordStep, odd_codes(words[j]));
    }
  }
}

// A number as a panel has it, which sums are multiplied with: twice, where those are pairs.
template <typename F>
static inline int32_t panel_step(int32_t step) {
  if (kVnni || kSigned<F>) return step;
  return static_cast<int32_t>(static_cast<uint32_t>(step) << 16) | (step & 0xffff);
}

// The scales of row `r` of block `b` of a panel, as whole numbers.
template <typename F>
static inline void pack_steps(const typename F::Block& block, int64_t b, int r, const Panel& out) {
  out.d[b * kPanelRows + r] = F::d(block);
  if constexpr (F::kHasMin) out.low_d[b * kPanelRows + r] = F::low_d(block);
  for (int half = 0; half < F::kGroups / 8; ++half) {
    const i32x8 steps = F::step8(block, half);
    for (int g = 0; g < 8; ++g) {
      const int32_t step = panel_step<F>(steps[g]);
      std::memcpy(out.scale + (b * F::kGroups + 8 * half + g) * kPanelRows + r, &step, 4);
    }
    if constexpr (F::kHasMin) {
      const i32x8 lows = F::low8(block, half);
#if defined(WEFT_NEON)
      for (int g = 0; g < 8; g += 4) {
        const int32_t four = lows[g + 3] << 24 | lows[g + 2] << 16 | lows[g + 1] << 8 | lows[g];
        std::memcpy(out.min + (b * F::kGroups + 8 * half + g) / 4 * kPanelRows + r, &four, 4);
      }
#else
      for (int g = 0; g < 8; g += 2) {
        const int32_t two = lows[g + 1] << 16 | lows[g];
        std::memcpy(out.min + (b * F::kGroups + 8 * half + g) / 2 * kPanelRows + r, &two, 4);
      }
#endif
    }
  }
}

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
      if constexpr (kWholeSums<F>) {
        pack_steps<F>(row[r][b], b, r, out);
        continue;
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
      uint8_t* q = out.q + (b * F::kChunks + c) * kPanelWords<F> * 4 * kPanelRows;
      for (int part = 0; part < kPanelRows; part += 8) {
        i32x8 v[8];
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) {
          u8x32 codes = F::codes(row[part + r][b], c);
          if constexpr (kSigned<F>) codes ^= splat8(128);
          v[r] = reinterpret_cast<i32x8>(codes);
        }
        transpose8(v);
        put_words<F>(v, q, part);
      }
    }
  }
}

// Where the codes of the columns of a tile are: chunk by chunk, kStride bytes apart; a word of all
// takes kWordBytes.
template <typename F, int kColumns>
struct TileCodes {
  static constexpr int kStride = 32, kWordBytes = 4;

#if defined(WEFT_NEON)
  TileCodes(const ActivationTile<kColumns>*, int64_t) {}
  const char* chunk(const ActivationTile<kColumns>* x, int64_t i) const {
    return reinterpret_cast<const char*>(x[i].q);
  }
#else
  const ActivationTile<kColumns>* tiles;

  TileCodes(const ActivationTile<kColumns>* x, int64_t) : tiles(x) {}
  const char* chunk(const ActivationTile<kColumns>*, int64_t i) const {
    return reinterpret_cast<const char*>(tiles[i].q);
  }
#endif
};

#if defined(__AVX2__) && !defined(WEFT_VNNI)

// What panels of 16-bit codes are multiplied with is as wide.
template <typename F, int kColumns>
  requires(kSigned<F>)
struct TileCodes<F, kColumns> {
  static constexpr int kStride = 64, kWordBytes = 4;
  vi spread[kChunksDeep][kColumns][2];

  TileCodes(const ActivationTile<kColumns>* x, int64_t n_chunks) {
    for (int64_t i = 0; i < n_chunks; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        const vi codes = load_as<vi>(x[i].q[c]);
        const vi even = even_codes(codes), odd = odd_codes(codes);
        if constexpr (kGroupsPerChunk<F> == 1) {
          spread[i][c][0] = even;
          spread[i][c][1] = odd;
        } else {
          spread[i][c][0] = __builtin_shufflevector(even, odd, 0, 1, 2, 3, 8, 9, 10, 11);
          spread[i][c][1] = __builtin_shufflevector(even, odd, 4, 5, 6, 7, 12, 13, 14, 15);
        }
      }
    }
  }
  const char* chunk(const ActivationTile<kColumns>*, int64_t i) const {
    return reinterpret_cast<const char*>(spread[i]);
  }
};

#endif

#if defined(WEFT_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)

// Pairs of words of two columns side by side.
template <typename F, int kColumns>
  requires(kMatrices && kColumns > 0)
struct TileCodes<F, kColumns> {
  static constexpr int kPairs = kColumnPairs<kColumns>;
  static constexpr int kStride = 0, kWordBytes = 8 * kPairs;
  int64x2_t words[kChunksDeep][4][kPairs];

  TileCodes(const ActivationTile<kColumns>* x, int64_t n_chunks) {
    for (int64_t i = 0; i < n_chunks; ++i) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; c += 2) {
        for (int half = 0; half < 2; ++half) {
          const auto a = load_as<int64x2_t>(x[i].q[c] + 16 * half);
          const auto b =
              c + 1 < kColumns ? load_as<int64x2_t>(x[i].q[c + 1] + 16 * half) : vdupq_n_s64(0);
          words[i][2 * half][c / 2] = vzip1q_s64(a, b);
          words[i][2 * half + 1][c / 2] = vzip2q_s64(a, b);
        }
      }
    }
  }
  const char* chunk(const ActivationTile<kColumns>*, int64_t i) const {
    return reinterpret_cast<const char*>(words[i]);
  }
};

#endif

// What the sums of a group start with, of kVectors vectors of rows.
template <typename F, int kVectors, int kColumns>
static inline void start_sums(const ActivationTile<kColumns>& x, int group,
                              vi (&s)[kVectors][kColumns]) {
#if defined(WEFT_NEON)
  // Each is made where it stays: the compiler would make one and copy it.
  if constexpr (kColumns == kLanes) {
    constexpr bool kZeros = F::kZero == 0 || kSigned<F>;
    vi all = kZeros ? vi{} : load_as<vi>(x.correction[group]);
    for (int v = 0; v < kVectors; ++v) {
      all = keep(all);
      for (int c = 0; c < kColumns; ++c) s[v][c] = kZeros ? zeros() : keep(vi{} + all[c]);
    }
    return;
  }
#endif
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) s[v][c] = start_sum<F>(x, group, c);
  }
}

#if defined(WEFT_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)

template <typename F, int kVectors, int kColumns>
static inline void start_matrices(const ActivationTile<kColumns>& x, int group,
                                  Matrices<kVectors, kColumns>& sums) {
  constexpr bool kZeros = F::kZero == 0 || kSigned<F>;
  int32_t of[2 * kColumnPairs<kColumns>] = {};
  if (!kZeros) std::memcpy(of, x.correction[group], sizeof x.correction[group]);
#pragma GCC unroll 2
  for (int p = 0; p < kColumnPairs<kColumns>; ++p) {
    vi both = reinterpret_cast<vi>(vdupq_n_s64(load_as<int64_t>(of + 2 * p)));
    for (auto& vector : sums) {
      for (auto& half : vector) half[p] = kZeros ? zeros() : both;
    }
  }
}

// The sums of group `g` of a chunk: kWords words at `q` and activations at `codes`.
template <typename F, int kVectors, int kColumns, int kWords>
static inline void sum_group(const uint8_t* q, const char* codes, const ActivationTile<kColumns>& x,
                             int g, vi (&s)[kVectors][kColumns]) {
  Matrices<kVectors, kColumns> sums;
  start_matrices<F, kVectors>(x, g, sums);
  add_matrices<kVectors, kColumns, kWords>(q, codes, sums);
  split_matrices<kVectors>(sums, s);
}

#else

// The sums of group `g` of a chunk: kWords words at `q` and activations at `codes`.
template <typename F, int kVectors, int kColumns, int kWords>
static inline void sum_group(const uint8_t* q, const char* codes, const ActivationTile<kColumns>& x,
                             int g, vi (&s)[kVectors][kColumns]) {
  start_sums<F>(x, g, s);
  sum_words<F, kVectors, kColumns, TileCodes<F, kColumns>::kStride, kWords>(q, codes, s);
}

#endif

#if defined(WEFT_NEON)

// The sums of one chunk times whole scales, added to `whole`.
template <typename F, int kVectors, int kColumns>
static inline void add_chunk_steps(const uint8_t* q, const float* steps, const char* codes,
                                   const ActivationTile<kColumns>& x,
                                   vi (&whole)[kVectors][kColumns]) {
  using Codes = TileCodes<F, kColumns>;
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int kWords = 8 / kPer;  // of a group
#pragma GCC unroll 2
  for (int g = 0; g < kPer; ++g) {
    vi s[kVectors][kColumns];
    sum_group<F, kVectors, kColumns, kWords>(q + g * kWords * kWordStep,
                                             codes + g * kWords * Codes::kWordBytes, x, g, s);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const vi step = load_as<vi>(steps + g * kPanelRows + v * kLanes);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) whole[v][c] += s[v][c] * step;
    }
  }
}

#endif

#if defined(__AVX2__) && !defined(__AVX512F__)

// The sums of one chunk times whole scales, added to `whole`.
template <typename F, int kVectors, int kColumns>
static inline void add_chunk_steps(const uint8_t* q, const float* steps, const char* codes,
                                   const ActivationTile<kColumns>& x,
                                   vi (&whole)[kVectors][kColumns]) {
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int kWords = kPanelWords<F> / kPer;  // of a group
  constexpr int kRun = kWords < kWordRun<F> ? kWords : kWordRun<F>;
#pragma GCC unroll 4
  for (int run = 0; run < kPer * kWords; run += kRun) {
    vi s[kVectors][kColumns];
    for (int c = 0; c < kColumns; ++c) {
      const vi start = run % kWords == 0 ? start_sum<F>(x, run / kWords, c) : vi{};
      for (int v = 0; v < kVectors; ++v) s[v][c] = start;
    }
    add_words<F, kVectors, kColumns, TileCodes<F, kColumns>::kStride, kRun>(
        q + run * 4 * kPanelRows, codes + run * 4, s);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const vi step = load_as<vi>(steps + run / kWords * kPanelRows + v * kLanes);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        whole[v][c] += kVnni || kSigned<F> ? s[v][c] * step : dot_pairs(s[v][c], step);
      }
    }
  }
}

#endif

#if defined(WEFT_NEON)
// The minima of a block of kRows rows, from `lows` on, times the sums of the groups of column `c`.
template <typename F, int kRows, int kColumns>
static inline vi times_lows(const void* lows, const ActivationTile<kColumns>* x, int c) {
  constexpr int kWords = F::kGroups / 4;
  vi low = {}, high = {};
#pragma GCC unroll 4
  for (int i = 0; i < kWords; ++i) {
    const vi four = load_as<vi>(static_cast<const char*>(lows) + i * kRows * 4);
    low = dot_words(low, four, vi{} + x[i].correction[0][c]);
    high = dot_words(high, four, vi{} + x[kWords + i].correction[0][c]);
  }
  return low + (high << 7);
}
#endif

#if defined(WEFT_NEON) || defined(__AVX2__) && !defined(__AVX512F__)

// Adds a block's sums, times their factors, to those so far.
template <typename F, int kVectors, int kColumns>
static inline void put_steps(const vi (&whole)[kVectors][kColumns], const Panel& panel, int64_t b,
                             const ActivationTile<kColumns>* x, int first, bool add,
                             float* const* out) {
  const int64_t at = b * kPanelRows + first;
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      float* to = out[c] + first + v * kLanes;
      const vf d = splat(x->d[c]);
      vf sum = fma(__builtin_convertvector(whole[v][c], vf), load(panel.d + at + v * kLanes) * d,
                   add ? load(to) : vf{});
#if defined(WEFT_NEON)
      if constexpr (F::kHasMin) {
        const float* lows = panel.min + (at - first) * F::kGroups / 4 + first + v * kLanes;
        const vi low = times_lows<F, kPanelRows>(lows, x, c);
        sum = fma(__builtin_convertvector(low, vf), load(panel.low_d + at + v * kLanes) * d, sum);
      }
#else
      if constexpr (F::kHasMin) {
        const float* two = panel.min + (at - first) * F::kGroups / 2 + first + v * kLanes;
        vi low = {};
        for (int g = 0; g < F::kGroups; g += 2, two += kPanelRows) {
          low += dot_pairs(load_as<vi>(two), vi{} + x[g / kGroupsPerChunk<F>].correction[0][c]);
        }
        sum = fma(__builtin_convertvector(low, vf), load(panel.low_d + at + v * kLanes) * d, sum);
      }
#endif
      store(to, sum);
    }
  }
}

#endif

#if defined(WEFT_NEON)

// The scales of a tile's columns.
template <int kColumns>
static inline void tile_scales(const ActivationTile<kColumns>& x, vf (&d)[kColumns]) {
  if constexpr (kColumns == kLanes) {
    const vf all = reinterpret_cast<vf>(keep(load_as<vi>(x.d)));
    for (int c = 0; c < kColumns; ++c) d[c] = splat(all[c]);
    return;
  }
  for (int c = 0; c < kColumns; ++c) d[c] = splat(x.d[c]);
}

#endif

// The sums of one chunk as floats, added to `acc`.
template <typename F, int kVectors, int kColumns>
static inline void add_chunk(const uint8_t* q, const float* scale, const float* min,
                             const char* codes, const ActivationTile<kColumns>& x,
                             vf (&acc)[kVectors][kColumns]) {
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int kWords = kPanelWords<F> / kPer;  // of a group
#pragma GCC unroll 2
  for (int g = 0; g < kPer; ++g) {
    vi s[kVectors][kColumns];
    sum_group<F, kVectors, kColumns, kWords>(
        q + g * kWords * kWordStep, codes + g * kWords * TileCodes<F, kColumns>::kWordBytes, x, g,
        s);
#if defined(WEFT_NEON)
    vf d[kColumns] = {};
    if constexpr (!kBlockActivations<F>) tile_scales(x, d);
    vf factors[kVectors];
    for (int v = 0; v < kVectors; ++v) factors[v] = load(scale + g * kPanelRows + v * kLanes);
    static_assert(kVectors == 2);
    __asm__("" : "+w"(factors[0]), "+w"(factors[1]));  // one load
#endif
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
#if defined(WEFT_NEON)
        vf w = factors[v];
        if constexpr (!kBlockActivations<F>) w = w * d[c];
#else
        vf w = load(scale + g * kPanelRows + v * kLanes);
        if constexpr (!kBlockActivations<F>) w = w * splat(x.d[c]);
#endif
        const vi sum = end_sum<F>(s[v][c], x, g, c);
        acc[v][c] = fma(__builtin_convertvector(sum, vf), w, acc[v][c]);
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
                             const TileCodes<F, kColumns>& codes, int64_t first,
                             vf (&acc)[kVectors][kColumns]) {
  vi s[kVectors][kColumns];
#if defined(WEFT_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
  Matrices<kVectors, kColumns> sums;
  start_matrices<F, kVectors>(*x, 0, sums);
  for (int chunk = 0; chunk < 8; ++chunk) {
    add_matrices<kVectors, kColumns, 8>(q + chunk * 32 * kPanelRows,
                                        codes.chunk(x - first, first + chunk), sums);
  }
  split_matrices<kVectors>(sums, s);
#else
  start_sums<F>(*x, 0, s);
  for (int chunk = 0; chunk < 8; ++chunk) {
    add_words<F, kVectors, kColumns, 32, 8>(q + chunk * 32 * kPanelRows,
                                            codes.chunk(x - first, first + chunk), s);
  }
#endif
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      acc[v][c] = __builtin_convertvector(widen_sums<F>(s[v][c]), vf);
    }
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
#if defined(WEFT_NEON)
  float* to[kColumns];  // all before the first store, which might change them
  for (int c = 0; c < kColumns; ++c) to[c] = out[c] + first;
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(to[c] + v * kLanes, acc[v][c] * splat(factor));
  }
#else
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      store(out[c] + first + v * kLanes, acc[v][c] * splat(factor));
    }
  }
#endif
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

// Asks for the `part`th of `n_parts` parts of what is ahead.
static inline void fetch_ahead(const Panel& panel, int64_t part, int64_t n_parts) {
  const int64_t lines = (panel.ahead_bytes + 63) / 64;
  const int64_t end = lines * (part + 1) / n_parts;
  for (int64_t line = lines * part / n_parts; line < end; ++line) {
    __builtin_prefetch(panel.ahead + line * 64, 0, 2);
  }
}

template <typename F, int kVectors, int kColumns>
static inline void multiply_vectors(const Panel& panel, const ActivationTile<kColumns>* x,
                                    const TileCodes<F, kColumns>& codes, int64_t n_chunks,
                                    int first, bool add, float factor, float* const* out) {
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int64_t kBytes = kPanelWords<F> * 4 * kPanelRows;  // of a chunk
  constexpr int64_t kParts = kPanelRows / kLanes / kVectors;
  const int64_t part = first / kLanes / kVectors;  // of the panel
  const uint8_t* q = panel.q + panel_place(first);
  const float* scale = panel.scale + first;
  const float* min = panel.min + first;
  if constexpr (!kBlockActivations<F>) {
    vf acc[kVectors][kColumns] = {};
    if (add) load_sums(acc, first, out);
    for (int64_t i = 0; i < n_chunks; ++i) {
      if (panel.ahead_bytes != 0) fetch_ahead(panel, part * n_chunks + i, kParts * n_chunks);
      add_chunk<F>(q + i * kBytes, scale + i * kPer * kPanelRows, min + i * kPer * kPanelRows,
                   codes.chunk(x, i), x[i], acc);
    }
    put_sums(acc, first, factor, out);
  } else {
    for (int64_t b = 0; b < n_chunks; b += 8) {
      if constexpr (kWholeSums<F>) {
        vi whole[kVectors][kColumns] = {};
        for (int64_t i = b; i < b + 8; ++i) {
          if (panel.ahead_bytes != 0) fetch_ahead(panel, part * n_chunks + i, kParts * n_chunks);
          add_chunk_steps<F>(q + i * kBytes, scale + i * kPer * kPanelRows, codes.chunk(x, i), x[i],
                             whole);
        }
        put_steps<F>(whole, panel, b / 8, x + b, first, add || b > 0, out);
        continue;
      }
      vf acc[kVectors][kColumns] = {};
      if constexpr (kOneScale<F>) {
        if (panel.ahead_bytes != 0) {
          fetch_ahead(panel, (part * n_chunks + b) / 8, kParts * n_chunks / 8);
        }
        sum_block<F>(q + b * kBytes, x + b, codes, b, acc);
      } else {
        for (int64_t i = b; i < b + 8; ++i) {
          if (panel.ahead_bytes != 0) fetch_ahead(panel, part * n_chunks + i, kParts * n_chunks);
          add_chunk<F>(q + i * kBytes, scale + i * kPer * kPanelRows, min + i * kPer * kPanelRows,
                       codes.chunk(x, i), x[i], acc);
        }
      }
      put_block<F>(acc, scale + b * kPanelRows, x[b].d, first, add || b > 0, out);
    }
  }
}

template <typename F, int kColumns>
void multiply_tile(const Panel& panel, const void* x, int64_t n_chunks, bool add, float scale,
                   float* const* out) {
  const auto* tiles = static_cast<const ActivationTile<kColumns>*>(x);
  const TileCodes<F, kColumns> codes(tiles, n_chunks);
  for (int first = 0; first < kPanelRows; first += kTileVectors * kLanes) {
    multiply_vectors<F, kTileVectors>(panel, tiles, codes, n_chunks, first, add, scale, out);
  }
}

}  // namespace weft::WEFT_TARGET

#endif  // WEFT_PANELS
