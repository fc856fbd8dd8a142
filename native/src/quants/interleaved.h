// Interleaved panels times columns (AVX2 and up, NEON).
//
// A few columns are multiplied with the panel as it is stored: the words come in the order of their
// addresses, so that decoding reads memory in one stream. For many columns the panel is unpacked
// first (panels.h), which needs no transposition here.
#pragma once

#include "quants/lanes_k.h"
#include "quants/panels.h"

// The columns that vectors of this width have kernels of their own for.
#if defined(WEFT_NEON)
#include "quants/neon_columns.h"
#elif defined(__AVX512F__)
#include "quants/one_column.h"
#else
#include "quants/few_columns.h"
#endif

namespace weft::WEFT_TARGET {

// The codes of chunk `c` of the rows of vector `v`, in the form that panels have.
template <typename F>
static inline void lane_codes(const char* block, int c, int v, vi (&w)[8]) {
  if constexpr (kLaneDots && kSigned<F> && requires { &Lanes<F>::nibbles; }) {
    for (int j = 0; j < 8; ++j) w[j] = look_up_levels(Lanes<F>::nibbles(block, c, j, v));
    return;
  }
  if constexpr (requires { &Lanes<F>::word; }) {
    for (int j = 0; j < 8; ++j) w[j] = Lanes<F>::word(block, c, j, v);
    return;
  }
  Lanes<F>::codes(block, c, v, w);
  if constexpr (kSigned<F>) {
    for (vi& words : w) words ^= splat_bytes(128);
  }
}

// The scales of vector `v` of block `b` of a panel, as whole numbers.
template <typename F>
static inline void unpack_steps(const char* block, int64_t b, int v, const Panel& out) {
  const typename Lanes<F>::Scales scales(block, v);
  const int64_t at = b * F::kGroups * kPanelRows + v * kLanes;
  store(out.d + b * kPanelRows + v * kLanes, scales.d);
  for (int g = 0; g < F::kGroups; ++g) {
    store_as(out.scale + at + g * kPanelRows, step_of<F>(scales, g));
  }
  if constexpr (F::kHasMin) {
    store(out.low_d + b * kPanelRows + v * kLanes, scales.low_d);
    if constexpr (kLaneDots) {
      for (int i = 0; i < F::kGroups / 4; ++i) {
        const int64_t word = b * F::kGroups / 4 + i;
        store_as(out.min + word * kPanelRows + v * kLanes, scales.lows.bytes[i]);
      }
    } else {
      for (int g = 0; g < F::kGroups; g += 2) {
        const int64_t pair = (b * F::kGroups + g) / 2;
        store_as(out.min + pair * kPanelRows + v * kLanes, scales.lows.two(g));
      }
    }
  }
}

template <typename F>
void unpack_panel(const char* w, int64_t first_chunk, int64_t n_chunks, const Panel& out) {
  for (int64_t b = 0; b < n_chunks / F::kChunks; ++b) {
    const char* block = lane_block<F>(w, first_chunk / F::kChunks + b);
    for (int v = 0; v < kPanelRows / kLanes; ++v) {
      if constexpr (kWholeSums<F>) {
        unpack_steps<F>(block, b, v, out);
      } else {
        float* scales = out.scale + b * F::kGroups * kPanelRows + v * kLanes;
        float* mins = out.min + b * F::kGroups * kPanelRows + v * kLanes;
        Lanes<F>::scales(block, v, scales, mins);
      }
#pragma GCC unroll 8
      for (int c = 0; c < F::kChunks; ++c) {
        vi codes[8];
        lane_codes<F>(block, c, v, codes);
        const int64_t words = (b * F::kChunks + c) * kPanelWords<F>;
        put_words<F>(codes, out.q + words * kWordBytes, v * kLanes);
      }
    }
  }
}

// Adds kWords words of codes times the columns of a tile, from byte `at` of the chunk on. Columns
// take turns: the sums of one would wait for each other.
template <typename F, int kWords, int kColumns>
static inline void add_words_of(const vi* w, const ActivationTile<kColumns>& x, int at,
                                vi (&s)[kColumns]) {
  if constexpr (kLaneDots) {
#pragma GCC unroll 2
    for (int j = 0; j < kWords; j += 4) {
      vi four[kColumns];
      for (int c = 0; c < kColumns; ++c) four[c] = load_as<vi>(x.q[c] + at + 4 * j);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) s[c] = dot_lane(s[c], w[j + i], four[c], i);
      }
    }
  } else {
#pragma GCC unroll 8
    for (int j = 0; j < kWords; ++j) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        s[c] = add_codes<F>(s[c], w[j], splat_codes(x.q[c] + at + 4 * j));
      }
    }
  }
}

// The same as 32-bit sums.
template <typename F, int kWords, int kColumns>
static inline void dot_codes(const vi* w, const ActivationTile<kColumns>& x, int at,
                             vi (&s)[kColumns]) {
  constexpr int kRun = kWords < kWordRun<F> ? kWords : kWordRun<F>;
  if constexpr (kRun == 1) return add_words_of<F, kWords>(w, x, at, s);
  add_words_of<F, kRun>(w, x, at, s);
  for (int c = 0; c < kColumns; ++c) s[c] = widen_sums<F>(s[c]);
#pragma GCC unroll 2
  for (int j = kRun; j < kWords; j += kRun) {
    vi more[kColumns] = {};
    add_words_of<F, kRun>(w + j, x, at + 4 * j, more);
    for (int c = 0; c < kColumns; ++c) s[c] += widen_sums<F>(more[c]);
  }
}

// Adds the sum of a group to `acc`.
template <typename F, int kColumns>
static inline void add_sum(vi sum, const float* scale, const float* min,
                           const ActivationTile<kColumns>& x, int g, int c, vf& acc) {
  const vi s = end_sum<F>(sum, x, g, c);
  vf factor = load(scale);
  if constexpr (!kBlockActivations<F>) factor = factor * splat(x.d[c]);
  acc = fma(__builtin_convertvector(s, vf), factor, acc);
  if constexpr (F::kHasMin) acc = fma(load(min), splat(x.sum[g][c]), acc);
}

// One chunk of one vector of rows times the columns of a tile, added to `acc`.
template <typename F, int kColumns>
static inline void add_lanes(const vi (&w)[8], const float* scale, const float* min,
                             const ActivationTile<kColumns>& x, vf (&acc)[kColumns]) {
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int kSteps = 8 / kPer;
#pragma GCC unroll 2
  for (int g = 0; g < kPer; ++g) {
    vi sums[kColumns];
    for (int c = 0; c < kColumns; ++c) sums[c] = start_sum<F>(x, g, c);
    dot_codes<F, kSteps>(w + g * kSteps, x, g * kSteps * 4, sums);
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      add_sum<F>(sums[c], scale + g * kPanelRows, min + g * kPanelRows, x, g, c, acc[c]);
    }
  }
}

// Whether few columns are multiplied with two vectors of rows at once: each activation is loaded
// once for both. With AVX2 the sums of more than two columns are not all in registers, and with
// AVX-512 a load is no more than its product.
template <typename F, int kColumns>
inline constexpr bool kTwoVectors =
    kLanes == 8 && F::kChunks == 1 && kColumns > 1 && (kColumns == 2 || kWholeDots);

// Two vectors of rows of a block of one chunk, from vector `v` on.
template <typename F, int kColumns>
static inline void add_two(const char* block, int v, const float* scale, const float* min,
                           const ActivationTile<kColumns>& x, vf* acc) {
  static_assert(F::kGroups == 1 && kWordRun<F> > 1);
  constexpr int kRuns = kSumRuns<F>;
  vi s[kRuns][2][kColumns] = {};
  for (int c = 0; c < kColumns; ++c) s[0][0][c] = s[0][1][c] = start_sum<F>(x, 0, c);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    // a word of nibbles is words j and j + 4; the others are not computed here
    vi w[2][8];
    for (int i = 0; i < 2; ++i) lane_codes<F>(block, 0, v + i, w[i]);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const int word = j + 4 * half;
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        const vi four = keep(splat_codes(x.q[c] + 4 * word));
        for (int i = 0; i < 2; ++i) {
          vi& sum = s[word * kRuns / 8][i][c];
          sum = add_codes<F>(sum, w[i][word], four);
        }
      }
    }
  }
  for (int i = 0; i < 2; ++i) {
    for (int c = 0; c < kColumns; ++c) {
      vi sum = widen_sums<F>(s[0][i][c]);
      for (int run = 1; run < kRuns; ++run) sum += widen_sums<F>(s[run][i][c]);
      add_sum<F>(sum, scale + i * kLanes, min + i * kLanes, x, 0, c, acc[i * kColumns + c]);
    }
  }
}

// A block whose groups have scales of their own.
template <typename F, int kColumns>
static inline void add_groups(const char* block, int v, const float* scale, const float* min,
                              const ActivationTile<kColumns>* x, vf (&acc)[kColumns]) {
  constexpr int kStride = kGroupsPerChunk<F> * kPanelRows;
  vf part[kColumns] = {};
  vf(&sums)[kColumns] = kBlockActivations<F> ? part : acc;
#pragma GCC unroll 8
  for (int c = 0; c < F::kChunks; ++c) {
    // what chunks and vectors of rows share is loaded again: kept, it would fill the registers
    __asm__("" : "+r"(block), "+r"(x));
    vi w[8];
    lane_codes<F>(block, c, v, w);
    add_lanes<F>(w, scale + c * kStride, min + c * kStride, x[c], sums);
  }
  if constexpr (kBlockActivations<F>) {
    for (int c = 0; c < kColumns; ++c) acc[c] = fma(part[c], splat(x->d[c]), acc[c]);
  }
}

// A block whose weights have one scale. A few sums side by side, so that no dot product
// has to wait for the one before it.
template <typename F, int kColumns>
static inline void add_lane_block(const char* block, int v, const float* scale,
                                  const ActivationTile<kColumns>* x, vf (&acc)[kColumns]) {
  constexpr int kSums = kColumns == 1 ? 4 : kColumns == 2 ? 2 : 1;
  vi s[kSums][kColumns] = {};
  for (int c = 0; c < kColumns; ++c) s[0][c] = start_sum<F>(*x, 0, c);
#pragma GCC unroll 8
  for (int chunk = 0; chunk < 8; ++chunk) {
    __asm__("" : "+r"(block), "+r"(x));  // as in add_groups
    vi w[8];
    lane_codes<F>(block, chunk, v, w);
    vi(&sums)[kColumns] = s[chunk % kSums];
    add_words_of<F, 8>(w, x[chunk], 0, sums);
  }
  for (int c = 0; c < kColumns; ++c) {
    vi sum = {};
    for (int i = 0; i < kSums; ++i) sum += widen_sums<F>(s[i][c]);
    acc[c] = fma(__builtin_convertvector(sum, vf), load(scale) * splat(x->d[c]), acc[c]);
  }
}

template <typename F, int kColumns>
void multiply_columns(const char* panel, const void* tiles, int64_t n_chunks, float scale,
                      float* const* out) {
  // A block is taken at once, so that memory is asked for all the time and in order, though the
  // sums of several columns are not all in registers. Four vectors ask for a share of what is ahead
  // each: with AVX2 all of a block at once is more than can be under way. Blocks of many chunks,
  // whose words are not read in the order of their addresses, are asked for several blocks ahead;
  // the small ones, which the hardware follows, lose by that. Where bursts do not pay, big blocks
  // are asked for within the block or the next, and small ones not at all.
  constexpr int kVectors = kPanelRows / kLanes;
  constexpr int kShares = kVectors == 4 ? 4 : 1;
  constexpr int64_t kBytes = kPanelRows * kStoredBytes<F>;
  constexpr int64_t kFar = kShares > 1 && F::kChunks > 1 ? 12288 : kAhead;
  constexpr int64_t kNear = F::kChunks == 1 ? 0 : kBytes < 6144 ? 3072 : 2048;
  const int64_t distance = takes_bursts() ? kFar : kNear;
  const auto* x = static_cast<const ActivationTile<kColumns>*>(tiles);
  if constexpr (kHasOwn<F, kColumns>) return multiply_own<F>(panel, x, n_chunks, scale, out);
  vf acc[kVectors][kColumns] = {};
  for (int64_t b = 0; b < n_chunks / F::kChunks; ++b) {
    const char* block = lane_block<F>(panel, b);
    float scales[F::kGroups * kPanelRows];
    float mins[F::kGroups * kPanelRows];
    if (kShares == 1) prefetch_lines<kBytes>(block + kAhead);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      if (kShares > 1 && distance > 0) {
        prefetch_lines<kBytes / kShares>(block + distance + v * (kBytes / kShares));
      }
      Lanes<F>::scales(block, v, scales + v * kLanes, mins + v * kLanes);
      if constexpr (kTwoVectors<F, kColumns>) {
        if (v % 2 == 0) continue;  // its scales are ready
        const float* scale = scales + (v - 1) * kLanes;
        add_two<F>(block, v - 1, scale, mins + (v - 1) * kLanes, x[b], acc[v - 1]);
      } else if constexpr (kOneScale<F>) {
        add_lane_block<F>(block, v, scales + v * kLanes, x + b * 8, acc[v]);
      } else {
        add_groups<F>(block, v, scales + v * kLanes, mins + v * kLanes, x + b * F::kChunks, acc[v]);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      store(out[c] + v * kLanes, acc[v][c] * splat(scale));
    }
  }
}

// Sets the kernels for kTileSizes[kVariant] columns, and those for fewer.
template <typename F, int kVariant>
void set_variants(QuantKernels& k) {
  k.tile[kVariant] = multiply_tile<typename PanelsOf<F>::Format, kTileSizes[kVariant]>;
  if constexpr (kHasLanes<F>) {
    constexpr int kFewer = kVariant > 0 ? kTileSizes[kVariant > 0 ? kVariant - 1 : 0] : 0;
    if constexpr (kFewer < kFewColumns<F>) {
      k.columns[kVariant] = multiply_columns<F, kTileSizes[kVariant]>;
    }
  }
  if constexpr (kVariant > 0) set_variants<F, kVariant - 1>(k);
}

// Enters the kernels of panels.
template <typename F>
static void set_panels(QuantKernels& k) {
  k.wide_zero = kWideZero<F>;
  if constexpr (kSplit<F>) k.zero = kSplitZero;
  k.few_columns = kFewColumns<F>;
  k.pack = pack_panel<F>;
  if constexpr (kHasLanes<F>) k.unpack = unpack_panel<F>;
  set_variants<F, kTileVariants - 1>(k);
}

}  // namespace weft::WEFT_TARGET
