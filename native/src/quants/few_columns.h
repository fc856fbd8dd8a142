// Interleaved panels times one or two columns with vectors of eight rows (AVX2).
//
// Several vectors of rows are taken together, as many as the registers have sums for, so that words
// come in the order of their addresses and a word of the column is loaded once for all of them. The
// sums of a block whose scales are whole numbers stay integers (quant_kernels.h): scaling those of
// a group takes the instruction that widens them, and the factor of the block is applied once.
//
// Levels of eight bits, which nibbles are looked up as, have products that fill 16 bits. Here they
// are 16 * high + low, with two sums that fit.
#pragma once

#include "quants/lanes_k.h"

namespace weft::WEFT_TARGET {

// Asks for the memory of F's blocks ahead of chunk `c`. Zen 4 does so by itself with the smallest
// and the biggest blocks, and lost by being told; of the others it takes a share at a time. (It may
// not take bursts: see lanes.h.)
template <typename F>
static inline void fetch_share(const char* block, int c, bool bursts) {
  constexpr int64_t kBytes = kPanelRows * kStoredBytes<F>;
  constexpr int64_t kShare = kBytes / 8;
  constexpr int64_t kFar = 12288;
  constexpr int64_t kNear = kBytes < 4096 || kBytes > 6144 ? 0 : kBytes < 5120 ? 3072 : 1536;
  const int64_t distance = bursts ? kFar : kNear;
  if (distance != 0) prefetch_lines<kShare>(block + distance + c * kShare);
}

// The same levels in two parts: 16 * (high - 8) + low.
struct SplitTable {
  uint8_t high[16] = {}, low[16] = {};

  // `codes` are levels + 128.
  explicit constexpr SplitTable(const uint8_t (&codes)[16]) {
    for (int i = 0; i < 16; ++i) {
      high[i] = static_cast<uint8_t>(codes[i] >> 4);
      low[i] = static_cast<uint8_t>(codes[i] & 15);
    }
  }
};
inline constexpr SplitTable kSplitIQ4(kIQ4Codes);

// Sums of four activations times both parts of levels.
struct SplitSums {
  vi high, low;

  void add(vi nibbles, vi four) {
    high = add_part(high, kSplitIQ4.high, nibbles, four);
    low = add_part(low, kSplitIQ4.low, nibbles, four);
  }
  static vi add_part(vi sum, const uint8_t* table, vi nibbles, vi four) {
    return keep(add_bytes(sum, look_up_lanes(table, nibbles), four));
  }
  // The sums of whole levels, times pairs of 16-bit numbers.
  vi times(vi pair) const {
    typedef int16_t numbers __attribute__((vector_size(sizeof(vi))));
    const auto sixteen = reinterpret_cast<vi>(reinterpret_cast<numbers>(pair) << 4);
    return dot_pairs(high, sixteen) + dot_pairs(low, pair);
  }
};

template <typename F>
inline constexpr int kGroupSteps = 8 / kGroupsPerChunk<F>;  // words of a group

// Adds the scaled sums of group `g` of chunk `c` to `whole`.
template <typename F, int kTake, int kColumns>
static inline void add_step_group(const char* block, int c, int g, int first,
                                  const typename Lanes<F>::Scales* scales,
                                  const ActivationTile<kColumns>& x, vi (&whole)[kTake][kColumns]) {
  constexpr int kWords = kGroupSteps<F>;
  constexpr int kRun = kWords < kWordRun<F> ? kWords : kWordRun<F>;
#pragma GCC unroll 2
  for (int run = 0; run < kWords; run += kRun) {
    vi s[kTake][kColumns];
    for (int i = 0; i < kTake; ++i) {
      for (int k = 0; k < kColumns; ++k) s[i][k] = run == 0 ? start_sum<F>(x, g, k) : vi{};
    }
#pragma GCC unroll 8
    for (int j = run; j < run + kRun; ++j) {
      const int word = g * kWords + j;
      vi four[kColumns];
      for (int k = 0; k < kColumns; ++k) four[k] = keep(splat_codes(x.q[k] + 4 * word));
#pragma GCC unroll 4
      for (int i = 0; i < kTake; ++i) {
        const vi codes = lane_code<F>(block, c, word, first + i);
        for (int k = 0; k < kColumns; ++k) s[i][k] = add_codes<F>(s[i][k], codes, four[k]);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kTake; ++i) {
      const vi step = step_of<F>(scales[i], c * kGroupsPerChunk<F> + g);
      for (int k = 0; k < kColumns; ++k) {
        whole[i][k] = keep(whole[i][k] + times_step<F>(s[i][k], step));
      }
    }
  }
}

// The same of levels in two parts.
template <typename F, int kTake, int kColumns>
static inline void add_split_group(const char* block, int c, int first,
                                   const typename Lanes<F>::Scales* scales,
                                   const ActivationTile<kColumns>& x,
                                   vi (&whole)[kTake][kColumns]) {
  for (int k = 0; k < kColumns; ++k) {
    SplitSums s[kTake];
    for (int i = 0; i < kTake; ++i) s[i] = {vi{} + x.correction[0][k], vi{}};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int word = j + 4 * half;
        const vi four = keep(splat_codes(x.q[k] + 4 * word));
#pragma GCC unroll 4
        for (int i = 0; i < kTake; ++i) {
          s[i].add(Lanes<F>::nibbles(block, c, word, first + i), four);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kTake; ++i) {
      whole[i][k] = keep(whole[i][k] + s[i].times(scales[i].steps.pair(c)));
    }
  }
}

// The vectors first..first+kTake of a block times the columns, added to `acc`.
template <typename F, int kTake, int kColumns>
static inline void add_step_block(const char* block, int first, const ActivationTile<kColumns>* x,
                                  bool bursts, vf (*acc)[kColumns]) {
  using Scales = typename Lanes<F>::Scales;
  Scales scales[kTake];
  for (int i = 0; i < kTake; ++i) scales[i] = Scales(block, first + i);
  vi whole[kTake][kColumns] = {};
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
#pragma GCC unroll 2
    for (int g = 0; g < kGroupsPerChunk<F>; ++g) {
      // what chunks share is loaded again: kept, it would fill the registers
      __asm__("" : "+r"(block), "+r"(x));
      if (g == 0 && first == 0) fetch_share<F>(block, c, bursts);
      if constexpr (kSplit<F>) {
        add_split_group<F, kTake, kColumns>(block, c, first, scales, x[c], whole);
      } else {
        add_step_group<F, kTake, kColumns>(block, c, g, first, scales, x[c], whole);
      }
    }
  }
  for (int i = 0; i < kTake; ++i) {
    for (int k = 0; k < kColumns; ++k) {
      acc[i][k] =
          fma(__builtin_convertvector(whole[i][k], vf), scales[i].d * splat(x->d[k]), acc[i][k]);
    }
    if constexpr (F::kHasMin) {
      vi low[kColumns] = {};
#pragma GCC unroll 8
      for (int g = 0; g < F::kGroups; g += 2) {
        const vi two = scales[i].lows.two(g);
        for (int k = 0; k < kColumns; ++k) {
          low[k] += dot_pairs(two, vi{} + x[g / kGroupsPerChunk<F>].correction[0][k]);
        }
      }
      for (int k = 0; k < kColumns; ++k) {
        acc[i][k] =
            fma(__builtin_convertvector(low[k], vf), scales[i].low_d * splat(x->d[k]), acc[i][k]);
      }
    }
  }
}

template <typename F, int kColumns>
static inline void multiply_steps(const char* panel, const ActivationTile<kColumns>* x,
                                  int64_t n_chunks, float scale, float* const* out) {
  constexpr int kVectors = kPanelRows / kLanes;
  constexpr int kTake = kColumns == 1 ? 4 : 2;
  const bool bursts = takes_bursts();
  vf acc[kVectors][kColumns] = {};
  for (int64_t b = 0; b < n_chunks / 8; ++b) {
    const char* block = panel + b * kPanelRows * kStoredBytes<F>;
#pragma GCC unroll 1
    for (int v = 0; v < kVectors; v += kTake) {
      add_step_block<F, kTake, kColumns>(block, v, x + b * 8, bursts, acc + v);
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) store(out[c] + v * kLanes, acc[v][c] * splat(scale));
  }
}

// A block of one chunk times one column, added to `acc`.
template <typename F, int kVectors>
static inline void add_small_block(const char* block, const ActivationTile<1>& x,
                                   vf (&acc)[kVectors]) {
  constexpr bool kNibbles = sizeof(typename F::Block) < 32;  // word j has codes of j and j + 4
  constexpr int kRuns = kSumRuns<F>;
  static_assert(F::kGroups == 1 && kWordRun<F> > 1);
  vi sums[kVectors];
  if constexpr (kSplit<F>) {
    SplitSums s[kVectors];
    for (SplitSums& sum : s) sum = {vi{} + x.correction[0][0], vi{}};
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const int word = j / 2 + j % 2 * 4;
      const vi four = keep(splat_codes(x.q[0] + 4 * word));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) s[v].add(Lanes<F>::nibbles(block, 0, word, v), four);
    }
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = s[v].times(vi{} + 0x00010001);
    }
  } else {
    vi s[kRuns][kVectors] = {};
    for (int v = 0; v < kVectors; ++v) s[0][v] = start_sum<F>(x, 0, 0);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const int word = kNibbles ? j / 2 + j % 2 * 4 : j;
      const vi four = keep(splat_codes(x.q[0] + 4 * word));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        vi& sum = s[word * kRuns / 8][v];
        sum = add_codes<F>(sum, lane_code<F>(block, 0, word, v), four);
      }
    }
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = widen_sums<F>(s[0][v]);
      for (int run = 1; run < kRuns; ++run) sums[v] += widen_sums<F>(s[run][v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    float scale[kLanes], min[kLanes];
    Lanes<F>::scales(block, v, scale, min);
    const vi sum = end_sum<F>(sums[v], x, 0, 0);
    acc[v] = fma(__builtin_convertvector(sum, vf), load(scale) * splat(x.d[0]), acc[v]);
    if constexpr (F::kHasMin) acc[v] = fma(load(min), splat(x.sum[0][0]), acc[v]);
  }
}

template <typename F>
static inline void multiply_small(const char* panel, const ActivationTile<1>* x, int64_t n_chunks,
                                  float scale, float* out) {
  constexpr int kVectors = kPanelRows / kLanes;
  constexpr int64_t kBytes = kPanelRows * kStoredBytes<F>;
  // Farther than kAhead: a Zen 5 read nibbles 15% faster so, and bytes as fast.
  constexpr int64_t kFar = 8192;
  const bool bursts = takes_bursts();
  vf acc[kVectors] = {};
  for (int64_t b = 0; b < n_chunks; ++b, panel += kBytes) {
    if (bursts) prefetch_lines<kBytes>(panel + kFar);
    add_small_block<F>(panel, x[b], acc);
  }
  for (int v = 0; v < kVectors; ++v) store(out + v * kLanes, acc[v] * splat(scale));
}

// Whether panels times so many columns are multiplied here, and their product.
template <typename F, int kColumns>
inline constexpr bool kHasOwn = kWholeSums<F> || (kColumns == 1 && F::kChunks == 1);

template <typename F, int kColumns>
static inline void multiply_own(const char* panel, const ActivationTile<kColumns>* x,
                                int64_t n_chunks, float scale, float* const* out) {
  if constexpr (kWholeSums<F>) {
    multiply_steps<F>(panel, x, n_chunks, scale, out);
  } else {
    multiply_small<F>(panel, x, n_chunks, scale, out[0]);
  }
}

}  // namespace weft::WEFT_TARGET
