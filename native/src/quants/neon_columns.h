// Interleaved panels times a few columns with vectors of four rows (NEON).
//
// Some vectors of rows are taken together, so that an activation is loaded once for them and words
// that lie side by side are loaded in pairs; and chunks whose codes share words. The sums of a
// block whose scales are whole numbers stay integers (quant_kernels.h).
#pragma once

#include "quants/lanes_k.h"
#include "quants/panels.h"

namespace weft::WEFT_TARGET {

// Chunks that are taken together: word j of kWords runs of eight words has word j of the codes of
// kChunks chunks (whole_codes.h). The runs are kHeader bytes and kFirst words behind the beginning
// of a block.
template <typename F>
struct Together {};
template <>
struct Together<FormatQ2_K> {
  static constexpr int kHeader = 4, kFirst = 4, kWords = 1, kChunks = 4;
  static void codes(const vi* w, vi* c) {
    for (int i = 0; i < 4; ++i) c[i] = bits(w[0], 2 * i, 3);
  }
};
template <>
struct Together<FormatQ3_K> {
  static constexpr int kHeader = 2, kFirst = 0, kWords = 3, kChunks = 8;
  static void codes(const vi* w, vi* c) {
    for (int i = 0; i < 6; ++i) c[i] = bits(w[i / 2], i % 2 * 3, 7);
    c[6] = add_bits(bits(w[0], 6, 3), w[2], -4, 4);
    c[7] = add_bits(bits(w[1], 6, 3), w[2], -5, 4);
  }
};
template <>
struct Together<FormatQ4_K> {
  static constexpr int kHeader = 4, kFirst = 3, kWords = 1, kChunks = 2;
  static void codes(const vi* w, vi* c) {
    c[0] = bits(w[0], 0, 15);
    c[1] = bits(w[0], 4, 15);
  }
};
template <>
struct Together<FormatQ5_K> {
  static constexpr int kHeader = 4, kFirst = 3, kWords = 5, kChunks = 8;
  static void codes(const vi* w, vi* c) {
    for (int i = 0; i < 5; ++i) c[i] = bits(w[i], 0, 31);
    c[5] = add_bits(bits(w[0], 5, 7), w[3], -2, 24);
    c[6] = add_bits(add_bits(bits(w[1], 5, 7), w[3], -4, 8), w[4], -3, 16);
    c[7] = add_bits(bits(w[2], 5, 7), w[4], -2, 24);
  }
};
template <>
struct Together<FormatQ6_K> {
  static constexpr int kHeader = 2, kFirst = 4, kWords = 3, kChunks = 4;
  static void codes(const vi* w, vi* c) {
    for (int i = 0; i < 3; ++i) c[i] = bits(w[i], 0, 63);
    c[3] = add_bits(add_bits(bits(w[0], 6, 3), w[1], -4, 12), w[2], -2, 48);
  }
};
template <typename F>
inline constexpr bool kHasTogether = requires { &Together<F>::codes; };
template <typename F>
inline constexpr int kTogether = 1;
template <typename F>
  requires kHasTogether<F>
inline constexpr int kTogether<F> = Together<F>::kChunks;

// Word j of the codes of the chunks that are together, from `chunk` on, for kTake vectors.
template <typename F, int kTake>
static inline void lane_codes_of(const char* block, int chunk, int j,
                                 vi (&codes)[kTake][kTogether<F>]) {
  if constexpr (kHasTogether<F>) {
    using T = Together<F>;
    vi w[kTake][T::kWords];
#pragma GCC unroll 8
    for (int i = 0; i < T::kWords; ++i) {
      const int word = T::kFirst + (chunk / T::kChunks * T::kWords + i) * 8 + j;
      for (int t = 0; t < kTake; ++t) w[t][i] = lane_word(block, T::kHeader, word, t);
    }
    for (int t = 0; t < kTake; ++t) T::codes(w[t], codes[t]);
  } else {
    for (int t = 0; t < kTake; ++t) codes[t][0] = lane_code<F>(block, chunk, j, t);
  }
}

// Adds the scaled sums of group `g` of the chunks that are together, from `chunk` on, to `whole`.
// `block` is the block of the first vector.
template <typename F, int kTake, int kColumns>
static inline void add_step_group(const char* block, int chunk, int g,
                                  const typename Lanes<F>::Scales* scales,
                                  const ActivationTile<kColumns>* x, vi (&whole)[kTake][kColumns]) {
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int kWords = 8 / kPer;
  constexpr int kChunks = kTogether<F>;
  vi s[kChunks][kTake][kColumns];
  for (int c = 0; c < kChunks; ++c) {
    for (int t = 0; t < kTake; ++t) {
      for (int k = 0; k < kColumns; ++k) s[c][t][k] = start_sum<F>(x[chunk + c], g, k);
    }
  }
#pragma GCC unroll 2
  for (int j = g * kWords; j < (g + 1) * kWords; j += 4) {
    vi sixteen[kChunks][kColumns];
    for (int c = 0; c < kChunks; ++c) {
      for (int k = 0; k < kColumns; ++k) sixteen[c][k] = load_as<vi>(x[chunk + c].q[k] + 4 * j);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      // loaded earlier, words would fill the registers
      __asm__ volatile("" ::: "memory");
      vi codes[kTake][kChunks];
      lane_codes_of<F, kTake>(block, chunk, j + i, codes);
#pragma GCC unroll 8
      for (int c = 0; c < kChunks; ++c) {
        for (int t = 0; t < kTake; ++t) {
          for (int k = 0; k < kColumns; ++k) {
            s[c][t][k] = dot_lane(s[c][t][k], codes[t][c], sixteen[c][k], i);
          }
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int c = 0; c < kChunks; ++c) {
#pragma GCC unroll 4
    for (int t = 0; t < kTake; ++t) {
      const vi step = step_of<F>(scales[t], (chunk + c) * kPer + g);
      for (int k = 0; k < kColumns; ++k) whole[t][k] += s[c][t][k] * step;
    }
  }
}

// The vectors first..first+kTake of a block times the columns, added to `acc`.
template <typename F, int kTake, int kColumns>
static inline void add_step_block(const char* block, int first, const ActivationTile<kColumns>* x,
                                  vf (*acc)[kColumns]) {
  using Scales = typename Lanes<F>::Scales;
  Scales scales[kTake];
  for (int t = 0; t < kTake; ++t) scales[t] = Scales(block, first + t);
  vi whole[kTake][kColumns] = {};
  const char* words = block + first * kLaneBytes;
#pragma GCC unroll 8
  for (int c = 0; c < 8; c += kTogether<F>) {
#pragma GCC unroll 2
    for (int g = 0; g < kGroupsPerChunk<F>; ++g) {
      // what these share with others is loaded again: kept, it would fill the registers
      __asm__("" : "+r"(words), "+r"(x));
      add_step_group<F, kTake, kColumns>(words, c, g, scales, x, whole);
    }
  }
  for (int t = 0; t < kTake; ++t) {
    for (int k = 0; k < kColumns; ++k) {
      const vf d = splat(x->d[k]);
      vf sum = fma(__builtin_convertvector(whole[t][k], vf), scales[t].d * d, acc[t][k]);
      if constexpr (F::kHasMin) {
        const vi low = times_lows<F, kLanes>(scales[t].lows.bytes, x, k);
        sum = fma(__builtin_convertvector(low, vf), scales[t].low_d * d, sum);
      }
      acc[t][k] = sum;
    }
  }
}

template <typename F, int kColumns>
static inline void multiply_steps(const char* panel, const ActivationTile<kColumns>* x,
                                  int64_t n_chunks, float scale, float* const* out) {
  constexpr int kVectors = kPanelRows / kLanes;
  constexpr int kTake = kColumns == 1 ? 2 : 1;
  constexpr int64_t kBytes = kPanelRows * kStoredBytes<F>;
  constexpr int64_t kShare = kBytes * kTake / kVectors;
  vf acc[kVectors][kColumns] = {};
  for (int64_t b = 0; b < n_chunks; b += 8, panel += kBytes, x += 8) {
#pragma GCC unroll 1
    for (int v = 0; v < kVectors; v += kTake) {
      prefetch_lines<kShare>(panel + kAhead + v / kTake * kShare);
      add_step_block<F, kTake, kColumns>(panel, v, x, acc + v);
    }
  }
  for (int k = 0; k < kColumns; ++k) {
    for (int v = 0; v < kVectors; ++v) store(out[k] + v * kLanes, acc[v][k] * splat(scale));
  }
}

// Blocks of one chunk: where their words are, and word `half` of the two or the one that word j of
// a row holds (words j and j + 4 of the codes).
template <typename F>
struct OneChunk {};
template <>
struct OneChunk<FormatQ4_0> {
  static constexpr int kHeader = 2, kWords = 4;
  static vi code(vi w, int half) { return bits(w, 4 * half, 15); }
};
template <>
struct OneChunk<FormatQ4_1> {
  static constexpr int kHeader = 4, kWords = 4;
  static vi code(vi w, int half) { return bits(w, 4 * half, 15); }
};
template <>
struct OneChunk<FormatQ8_0> {
  static constexpr int kHeader = 2, kWords = 8;
  static vi code(vi w, int) { return w; }
};
template <>
struct OneChunk<FormatIQ4_NL> {
  static constexpr int kHeader = 2, kWords = 4;
  static vi code(vi w, int half) { return look_up_levels(bits(w, 4 * half, 15)); }
};
template <>
struct OneChunk<FormatMXFP4> {
  static constexpr int kHeader = 1, kWords = 4;
  static vi code(vi w, int half) { return look_up_lanes(kE2M1Codes, bits(w, 4 * half, 15)); }
};
static_assert(kPanelRows / kLanes == 8);
template <typename F>
inline constexpr bool kIsOneChunk = requires { &OneChunk<F>::code; };

// One chunk times one column, all rows at once, added to `acc`.
template <typename F>
static inline void add_one_chunk(const char* block, const ActivationTile<1>& x,
                                 vf (&acc)[kPanelRows / kLanes]) {
  using T = OneChunk<F>;
  constexpr int kVectors = kPanelRows / kLanes;
  constexpr int kHalves = 8 / T::kWords;
  vi s[kVectors];
  for (int v = 0; v < kVectors; ++v) s[v] = start_sum<F>(x, 0, 0);
  const vi sixteen[2] = {load_as<vi>(x.q[0]), load_as<vi>(x.q[0] + 16)};
#pragma GCC unroll 8
  for (int j = 0; j < T::kWords; ++j) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; v += 4) {
      __asm__ volatile("" ::: "memory");  // as in add_step_group
      const char* p = block + T::kHeader * kPanelRows + j * kWordBytes + v * kLaneBytes;
      const FourVectors w = load_four(p);
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
          const vi codes = T::code(w.at[i], half);
          s[v + i] = dot_lane(s[v + i], codes, sixteen[(j + 4 * half) / 4], j % 4);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < kVectors; ++v) {
    float scale[kLanes], min[kLanes];
    Lanes<F>::scales(block, v, scale, min);
    acc[v] = fma(__builtin_convertvector(s[v], vf), load(scale) * splat(x.d[0]), acc[v]);
    if constexpr (F::kHasMin) acc[v] = fma(load(min), splat(x.sum[0][0]), acc[v]);
  }
}

// Memory is read in the order of its addresses, which the hardware follows by itself.
template <typename F>
static inline void multiply_one_chunk(const char* panel, const ActivationTile<1>* x,
                                      int64_t n_chunks, float scale, float* out) {
  constexpr int kVectors = kPanelRows / kLanes;
  vf acc[kVectors] = {};
  for (int64_t b = 0; b < n_chunks; ++b, panel += kPanelRows * kStoredBytes<F>) {
    add_one_chunk<F>(panel, x[b], acc);
  }
  for (int v = 0; v < kVectors; ++v) store(out + v * kLanes, acc[v] * splat(scale));
}

// Whether panels times so many columns are multiplied here, and their product.
template <typename F, int kColumns>
inline constexpr bool kHasOwn = kWholeSums<F> || (kColumns == 1 && kIsOneChunk<F>);

template <typename F, int kColumns>
static inline void multiply_own(const char* panel, const ActivationTile<kColumns>* x,
                                int64_t n_chunks, float scale, float* const* out) {
  if constexpr (kWholeSums<F>) {
    multiply_steps<F>(panel, x, n_chunks, scale, out);
  } else {
    multiply_one_chunk<F>(panel, x, n_chunks, scale, out[0]);
  }
}

}  // namespace weft::WEFT_TARGET
