// Interleaved panels times one or two columns with vectors of eight rows (AVX2).
//
// Several vectors of rows are taken together, as many as the registers have sums for, so that words
// come in the order of their addresses and a word of the column is loaded once for all of them. The
// sums of a block whose scales are whole numbers stay integers (quant_kernels.h): scaling those of
// a group takes the instruction that widens them, and the factor of the block is applied once.
#pragma once

#include "quants/lanes_k.h"

#if defined(__AVX2__) && !defined(__AVX512F__)

namespace weft::WEFT_TARGET {

// Word j of the codes of chunk `c`; what else codes() would compute is not used.
template <typename F>
static inline vi lane_code(const char* block, int c, int j, int v) {
  vi w[8];
  Lanes<F>::codes(block, c, v, w);
  return kSigned<F> ? w[j] ^ splat_bytes(128) : w[j];
}

// acc + the products of a word of codes and four activations.
template <typename F>
static inline vi add_codes(vi acc, vi codes, vi four) {
  if constexpr (kSigned<F>) return add_signed(acc, codes, four);
  if constexpr (kWordRun<F> == 1) return add_widened(acc, codes, four);
  return keep(add_word<F>(acc, codes, four));
}

template <typename F>
inline constexpr int kGroupSteps = 8 / kGroupsPerChunk<F>;  // words of a group

// Adds the scaled sums of group `g` of chunk `c` to `whole`.
template <typename F, int kTake, int kColumns>
static inline void add_step_group(const char* block, int c, int g, int first,
                                  const typename Lanes<F>::Scales* scales,
                                  const ActivationTile<kColumns>& x,
                                  vi (&whole)[kTake][kColumns]) {
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

// The vectors first..first+kTake of a block times the columns, added to `acc`.
template <typename F, int kTake, int kColumns>
static inline void add_step_block(const char* block, int first, const ActivationTile<kColumns>* x,
                                  vf (*acc)[kColumns]) {
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
      add_step_group<F, kTake, kColumns>(block, c, g, first, scales, x[c], whole);
    }
  }
  for (int i = 0; i < kTake; ++i) {
    for (int k = 0; k < kColumns; ++k) {
      acc[i][k] = fma(__builtin_convertvector(whole[i][k], vf), scales[i].d * splat(x->d[k]),
                      acc[i][k]);
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
        acc[i][k] = fma(__builtin_convertvector(low[k], vf), scales[i].low_d * splat(x->d[k]),
                        acc[i][k]);
      }
    }
  }
}

template <typename F, int kColumns>
static inline void multiply_steps(const char* panel, const ActivationTile<kColumns>* x,
                                  int64_t n_chunks, float scale, float* const* out) {
  constexpr int kVectors = kPanelRows / kLanes;
  constexpr int kTake = kColumns == 1 ? 4 : 2;
  vf acc[kVectors][kColumns] = {};
  for (int64_t b = 0; b < n_chunks / 8; ++b) {
    const char* block = panel + b * kPanelRows * kStoredBytes<F>;
#pragma GCC unroll 1
    for (int v = 0; v < kVectors; v += kTake) {
      add_step_block<F, kTake, kColumns>(block, v, x + b * 8, acc + v);
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) store(out[c] + v * kLanes, acc[v][c] * splat(scale));
  }
}

}  // namespace weft::WEFT_TARGET

#endif  // __AVX2__
