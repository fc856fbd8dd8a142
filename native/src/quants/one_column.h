// Interleaved panels times one column with AVX-512: reading memory.
//
// Both vectors of rows are taken together, so that words come in the order of their addresses and a
// word of the column is loaded once. Codes are multiplied where they stand in their bytes, where
// that saves an instruction: then it is the sum that is shifted. All sums of a block are as in
// interleaved.h.
#pragma once

#include "quants/lane_dots.h"
#include "quants/lanes_k.h"

namespace weft::WEFT_TARGET {

inline constexpr int kRowVectors = kPanelRows / kLanes;

// How a processor is asked for the memory of blocks: in bursts, by chunks far ahead (Zen 5, which
// is told from its forerunners as in takes_bursts), or as its forerunners are.
enum class Asking { kBursts, kShares, kParts };

static inline Asking asking() {
  static const Asking how = !takes_bursts()      ? Asking::kParts
                            : processor().is_amd ? Asking::kShares
                                                 : Asking::kBursts;
  return how;
}

// The memory of F's blocks is asked for in bursts. Small blocks, which are read sooner, are asked
// for further ahead and in halves; the big ones lost by that.
template <typename F>
struct Ahead {
  static constexpr int64_t kFurther = 8192;
  static constexpr int64_t kBytes = kPanelRows * kStoredBytes<F>;
  static constexpr int64_t kPart = (kBytes / F::kChunks + 63) / 64 * 64;  // of a chunk
  static constexpr bool kHalves = F::kChunks > 1 && kBytes < 4096;
  static constexpr int64_t kBurst = kHalves ? (kBytes / 2 + 63) / 64 * 64 : kBytes;

  // Before chunk `c` of the block. `how` is asked for before the loop: the question is a call, over
  // which no vector stays in a register.
  static inline void fetch(const char* block, int c, Asking how) {
    if constexpr (F::kChunks > 1 && kBytes >= 4096 && kBytes < 6144) {
      if (how == Asking::kShares) {
        return prefetch_lines<kPart>(block + kFurther + c * kPart);
      }
    }
    if constexpr (F::kChunks > 1 && kBytes >= 3072) {
      if (how == Asking::kParts) {
        if constexpr (kBytes < 5120) prefetch_lines<kPart>(block + kAhead + c * kPart);
        return;
      }
    }
    if (c == 0) prefetch_lines<kBurst>(block + (kHalves ? kFurther : kAhead));
    if (kHalves && c == F::kChunks / 2) {
      prefetch_lines<kBytes - kBurst>(block + kFurther + kBurst);
    }
  }
};

// The scales of a block for the rows of a vector, as they are wanted: formats without a Scales of
// their own have few.
template <typename F>
struct BlockScales {
  float scales[F::kGroups * kPanelRows];
  float mins[F::kGroups * kPanelRows];

  BlockScales(const char* block, int v) { Lanes<F>::scales(block, v, scales, mins); }
  vf scale(int g) const { return load(scales + g * kPanelRows); }
  vf min(int g) const { return load(mins + g * kPanelRows); }
};
template <typename F>
  requires requires { typename Lanes<F>::Scales; }
struct BlockScales<F> : Lanes<F>::Scales {
  using Lanes<F>::Scales::Scales;
};

// The codes of a chunk, and by how many bits they are shifted to the left.
template <typename F>
static inline int standing_codes(const char* block, int c, int v, vi (&w)[8]) {
  if constexpr (requires { Lanes<F>::codes_in_place; }) {
    Lanes<F>::codes_in_place(block, c, v, w);
    return Lanes<F>::place(c);
  } else {
    Lanes<F>::codes(block, c, v, w);
    return 0;
  }
}

// Chunk `c` of a block times the column, added to `acc`.
template <typename F>
static inline void add_chunk_of(const char* block, int c, const BlockScales<F>* scales,
                                const ActivationTile<1>& x, vf (&acc)[kRowVectors]) {
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int kSteps = 8 / kPer;
  vi w[kRowVectors][8];
  int shift = 0;
  for (int v = 0; v < kRowVectors; ++v) shift = standing_codes<F>(block, c, v, w[v]);
#pragma GCC unroll 2
  for (int g = 0; g < kPer; ++g) {
    const vi start = start_sum<F>(x, g, 0);
    vi sum[kRowVectors];
    for (int v = 0; v < kRowVectors; ++v) sum[v] = shift == 0 ? start : vi{};
#pragma GCC unroll 8
    for (int j = g * kSteps; j < (g + 1) * kSteps; ++j) {
      const vi four = splat_codes(x.q[0] + 4 * j);
      for (int v = 0; v < kRowVectors; ++v) sum[v] = dot_words(sum[v], w[v][j], four);
    }
    for (int v = 0; v < kRowVectors; ++v) {
      if (shift != 0) sum[v] = (sum[v] >> shift) + start;
      vf factor = scales[v].scale(c * kPer + g);
      if constexpr (!kBlockActivations<F>) factor = factor * splat(x.d[0]);
      acc[v] = fma(__builtin_convertvector(sum[v], vf), factor, acc[v]);
      if constexpr (F::kHasMin) {
        acc[v] = fma(scales[v].min(c * kPer + g), splat(x.sum[g][0]), acc[v]);
      }
    }
  }
}

// A block whose groups have scales of their own.
template <typename F>
static inline void add_block_of(const char* block, const ActivationTile<1>* x, Asking how,
                                vf (&acc)[kRowVectors]) {
  static_assert(kRowVectors == 2);
  const BlockScales<F> scales[kRowVectors] = {{block, 0}, {block, 1}};
  vf part[kRowVectors] = {};
  vf(&sums)[kRowVectors] = kBlockActivations<F> ? part : acc;
#pragma GCC unroll 8
  for (int c = 0; c < F::kChunks; ++c) {
    // words that chunks share are loaded again: kept, they would push others out of the registers
    __asm__("" : "+r"(block));
    Ahead<F>::fetch(block, c, how);
    add_chunk_of<F>(block, c, scales, x[c], sums);
  }
  if constexpr (kBlockActivations<F>) {
    for (int v = 0; v < kRowVectors; ++v) acc[v] = fma(part[v], splat(x->d[0]), acc[v]);
  }
}

// A block of two-bit codes with one scale.
template <typename F>
static inline void add_pairs_of(const char* block, const ActivationTile<1>* x, Asking how,
                                vf (&acc)[kRowVectors]) {
  vi s[kRowVectors][4] = {};
#pragma GCC unroll 16
  for (int word = 0; word < Lanes<F>::kPairWords; ++word) {
    if (word % 2 == 0) Ahead<F>::fetch(block, word / 2, how);
    vi codes[kRowVectors];
    for (int v = 0; v < kRowVectors; ++v) {
      codes[v] = lane_word(block, Lanes<F>::kHeader, word, v);
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const vi four = splat_codes(x[word / 8 * 4 + pair].q[0] + word % 8 * 4);
      for (int v = 0; v < kRowVectors; ++v) {
        s[v][pair] = dot_words(s[v][pair], codes[v] & splat_bytes(3 << 2 * pair), four);
      }
    }
  }
  for (int v = 0; v < kRowVectors; ++v) {
    const vi sum =
        start_sum<F>(*x, 0, 0) + s[v][0] + (s[v][1] >> 2) + (s[v][2] >> 4) + (s[v][3] >> 6);
    float scale[F::kGroups * kPanelRows];
    Lanes<F>::scales(block, v, scale, nullptr);
    acc[v] = fma(__builtin_convertvector(sum, vf), load(scale) * splat(x->d[0]), acc[v]);
  }
}

// Whether panels times so many columns are multiplied here, and their product.
template <typename F, int kColumns>
inline constexpr bool kHasOwn =
    kColumns == 1 && (!kOneScale<F> || requires { Lanes<F>::kPairWords; });

template <typename F, int kColumns>
static inline void multiply_own(const char* panel, const ActivationTile<kColumns>* x,
                                int64_t n_chunks, float scale, float* const* out) {
  const Asking how = asking();
  vf acc[kRowVectors] = {};
  for (int64_t b = 0; b < n_chunks / F::kChunks; ++b, x += F::kChunks) {
    const char* block = lane_block<F>(panel, b);
    if constexpr (requires { Lanes<F>::kPairWords; }) {
      add_pairs_of<F>(block, x, how, acc);
    } else {
      add_block_of<F>(block, x, how, acc);
    }
  }
  for (int v = 0; v < kRowVectors; ++v) store(out[0] + v * kLanes, acc[v] * splat(scale));
}

}  // namespace weft::WEFT_TARGET
