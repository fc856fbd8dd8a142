// The sums of a group, a chunk or a block of a panel times a tile of columns.
//
// Integer sums start here, are added up by lane_dots.h, and end here as floats.
#pragma once

#include "quants/lane_steps.h"
#include "quants/tile_codes.h"

namespace weft::WEFT_TARGET {

// Sets the sums of a group of kVectors vectors of rows to the value that they start with.
template <typename F, int kVectors, int kColumns>
static inline void start_sums(const ActivationTile<kColumns>& x, int group,
                              vi (&s)[kVectors][kColumns]) {
  // Each is made where it stays: the compiler would make one and copy it.
  if constexpr (kLaneDots && kColumns == kLanes) {
    constexpr bool kZeros = F::kZero == 0 || kSigned<F>;
    vi all = kZeros ? vi{} : load_as<vi>(x.correction[group]);
    for (int v = 0; v < kVectors; ++v) {
      all = keep(all);
      for (int c = 0; c < kColumns; ++c) s[v][c] = kZeros ? zeros() : keep(vi{} + all[c]);
    }
    return;
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) s[v][c] = start_sum<F>(x, group, c);
  }
}

template <typename F, int kVectors, int kColumns>
static inline void start_matrices(const ActivationTile<kColumns>& x, int group,
                                  Matrices<kVectors, kColumns>& sums) {
  typedef int64_t Pairs __attribute__((vector_size(sizeof(vi))));
  constexpr bool kZeros = F::kZero == 0 || kSigned<F>;
  int32_t of[2 * kColumnPairs<kColumns>] = {};
  if (!kZeros) std::memcpy(of, x.correction[group], sizeof x.correction[group]);
#pragma GCC unroll 2
  for (int p = 0; p < kColumnPairs<kColumns>; ++p) {
    const auto two = load_as<int64_t>(of + 2 * p);
    const auto both = reinterpret_cast<vi>(two - Pairs{});
    for (auto& vector : sums) {
      for (auto& half : vector) half[p] = kZeros ? zeros() : both;
    }
  }
}

// The sums of group `g` of a chunk: kWords words at `q` and activations at `codes`.
template <typename F, int kVectors, int kColumns, int kWords>
static inline void sum_group(const uint8_t* q, const char* codes, const ActivationTile<kColumns>& x,
                             int g, vi (&s)[kVectors][kColumns]) {
  if constexpr (kMatrixDots) {
    Matrices<kVectors, kColumns> sums;
    start_matrices<F, kVectors>(x, g, sums);
    add_matrices<kVectors, kColumns, kWords>(q, codes, sums);
    split_matrices<kVectors>(sums, s);
  } else {
    start_sums<F>(x, g, s);
    sum_words<F, kVectors, kColumns, TileCodes<F, kColumns>::kStride, kWords>(q, codes, s);
  }
}

// The sums of one chunk times whole scales, added to `whole`.
template <typename F, int kVectors, int kColumns>
static inline void add_chunk_steps(const uint8_t* q, const float* steps, const char* codes,
                                   const ActivationTile<kColumns>& x,
                                   vi (&whole)[kVectors][kColumns]) {
  using Codes = TileCodes<F, kColumns>;
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int kWords = kPanelWords<F> / kPer;  // of a group
  constexpr int kRun = kWords < kWordRun<F> ? kWords : kWordRun<F>;
#pragma GCC unroll 4
  for (int run = 0; run < kPer * kWords; run += kRun) {
    vi s[kVectors][kColumns];
    if constexpr (kLaneDots) {
      sum_group<F, kVectors, kColumns, kWords>(q + run * kWordStep, codes + run * Codes::kWordBytes,
                                               x, run / kWords, s);
    } else {
      for (int c = 0; c < kColumns; ++c) {
        const vi start = run % kWords == 0 ? start_sum<F>(x, run / kWords, c) : vi{};
        for (int v = 0; v < kVectors; ++v) s[v][c] = start;
      }
      add_words<F, kVectors, kColumns, Codes::kStride, kRun>(q + run * 4 * kPanelRows,
                                                             codes + run * 4, s);
    }
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const vi step = load_as<vi>(steps + run / kWords * kPanelRows + v * kLanes);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) whole[v][c] += times_step<F>(s[v][c], step);
    }
  }
}

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
      if constexpr (F::kHasMin) {
        vi low = {};
        if constexpr (kLaneDots) {
          const float* lows = panel.min + (at - first) * F::kGroups / 4 + first + v * kLanes;
          low = times_lows<F, kPanelRows>(lows, x, c);
        } else {
          const float* two = panel.min + (at - first) * F::kGroups / 2 + first + v * kLanes;
          for (int g = 0; g < F::kGroups; g += 2, two += kPanelRows) {
            low += dot_pairs(load_as<vi>(two), vi{} + x[g / kGroupsPerChunk<F>].correction[0][c]);
          }
        }
        sum = fma(__builtin_convertvector(low, vf), load(panel.low_d + at + v * kLanes) * d, sum);
      }
      store(to, sum);
    }
  }
}

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
    vf d[kColumns] = {};
    vf factors[kVectors] = {};
    static_assert(kVectors == 2);
    if constexpr (kLaneDots) {
      if constexpr (!kBlockActivations<F>) tile_scales(x, d);
      for (int v = 0; v < kVectors; ++v) factors[v] = load(scale + g * kPanelRows + v * kLanes);
      keep_both(factors[0], factors[1]);
    }
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        vf w = kLaneDots ? factors[v] : load(scale + g * kPanelRows + v * kLanes);
        if constexpr (!kBlockActivations<F>) w = w * (kLaneDots ? d[c] : splat(x.d[c]));
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
  if constexpr (kMatrixDots) {
    Matrices<kVectors, kColumns> sums;
    start_matrices<F, kVectors>(*x, 0, sums);
    for (int chunk = 0; chunk < 8; ++chunk) {
      add_matrices<kVectors, kColumns, 8>(q + chunk * 32 * kPanelRows,
                                          codes.chunk(x - first, first + chunk), sums);
    }
    split_matrices<kVectors>(sums, s);
  } else {
    start_sums<F>(*x, 0, s);
    for (int chunk = 0; chunk < 8; ++chunk) {
      add_words<F, kVectors, kColumns, 32, 8>(q + chunk * 32 * kPanelRows,
                                              codes.chunk(x - first, first + chunk), s);
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      acc[v][c] = __builtin_convertvector(widen_sums<F>(s[v][c]), vf);
    }
  }
}

}  // namespace weft::WEFT_TARGET
