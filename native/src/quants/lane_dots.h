// Words of weights times activations, in vectors whose lanes are rows (AVX2 and up, NEON).
//
// A word is four codes of each row; they meet the same four activations, so that no sum ever
// crosses lanes. With VNNI, and with dot products on ARM, that is one instruction, and sums have 32
// bits. ARM multiplies signed bytes, which codes of up to seven bits are as well.
//
// AVX2 multiplies bytes to pairs of products and keeps those in 16 bits. Sums of pairs stay there
// for a whole group, or a block that has one scale: they begin with -kZero times the activations'
// sums, so that only the sum of (code - kZero) * x has to fit; what overflows on the way wraps
// back. Where a group's sum does not fit they are widened more often, and what is due to kZero is
// added in the end. Codes of more than seven bits do not fit at all: panels have them as 16-bit
// numbers (even_codes), whose products are 32 bits wide. Activations are -127..127, as every
// quantizer here writes them.
#pragma once

#include <type_traits>

#include "kernels/simd/byte_dots.h"
#include "kernels/simd/stream.h"
#include "quants/formats.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

inline constexpr int kTileVectors = 2;  // of rows, multiplied at a time

static inline int32_t four_codes(const void* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return four;
}

static inline vi splat_codes(const void* x) { return vi{} + four_codes(x); }

// Signed bytes 0 and 2 of each lane as 16-bit numbers, and bytes 1 and 3.
template <typename V>
static inline V even_codes(V words) {
  typedef int16_t numbers __attribute__((vector_size(sizeof(V))));
  return reinterpret_cast<V>(reinterpret_cast<numbers>(words) << 8 >> 8);
}
template <typename V>
static inline V odd_codes(V words) {
  typedef int16_t numbers __attribute__((vector_size(sizeof(V))));
  return reinterpret_cast<V>(reinterpret_cast<numbers>(words) >> 8);
}

// See QuantKernels. With 16 registers, more columns of blocks of many chunks lose their sums to
// memory, and digits of base 3 are better taken apart once.
template <typename F>
inline constexpr int kFewColumns = kLanes != 8 || F::kChunks == 1   ? kMostFewColumns
                                   : std::is_same_v<F, FormatTQ1_0> ? 1
                                                                    : 2;

// Whether the codes of panels are signed.
template <typename F>
inline constexpr bool kSigned = (kLaneDots || kPairedDots) && F::kTop > 127;

template <typename F>
inline constexpr int kPanelWords = kPairedDots && kSigned<F> ? 16 : 8;  // of a chunk

template <typename F>
inline constexpr int kGroupWords = kOneScale<F> ? 64 : 8 / kGroupsPerChunk<F>;

template <typename F>
inline constexpr int kFurthest = F::kTop - F::kZero > F::kZero ? F::kTop - F::kZero : F::kZero;

// The number of words whose sums may be added up.
template <typename F>
inline constexpr int kWordRun =
    kWholeDots || kSigned<F> || kFurthest<F> * 254 * kGroupWords<F> <= 32767
        ? 64
        : 32767 / (F::kTop * 254);

// The number of sums that the words of a chunk are shared out to.
template <typename F>
inline constexpr int kSumRuns = kWordRun<F> < 8 ? 8 / kWordRun<F> : 1;

// Whether what is due to kZero is added in the end.
template <typename F>
inline constexpr bool kWideZero =
    kPairedDots && F::kZero != 0 && !kSigned<F> && kWordRun<F> < kGroupWords<F>;

// acc + the sums of a word of a panel.
template <typename F>
static inline vi add_word(vi acc, vi w, vi x) {
  return kPairedDots && kSigned<F> ? acc + dot_pairs(w, x) : add_bytes(acc, w, x);
}

// The sums of add_word as 32-bit numbers.
template <typename F>
static inline vi widen_sums(vi sums) {
  return kSigned<F> ? sums : widen_pairs(sums);
}

// acc + the products of a word of codes, signed ones as bytes, and four activations.
template <typename F>
static inline vi add_codes(vi acc, vi codes, vi four) {
  if constexpr (kPairedDots && kSigned<F>) return keep(dot_signed_words(acc, codes, four));
  if constexpr (kWordRun<F> == 1) return keep(dot_words(acc, codes, four));
  const vi sum = add_word<F>(acc, codes, four);
  return kLanes == 8 ? keep(sum) : sum;
}

// Prompts multiply matrices of bytes: two rows by two columns, eight codes deep. A panel has words
// in pairs, a pair of each row side by side, and a tile of columns has those of two columns so.
template <int kColumns>
inline constexpr int kColumnPairs = (kColumns + 1) / 2;

// Sums of kVectors vectors of rows, as products of matrices have them: of each two rows and two
// columns the four sums side by side.
template <int kVectors, int kColumns>
using Matrices = vi[kVectors][2][kColumnPairs<kColumns>];

// kWords words at `q` and activations `x`, added to the sums: see add_words.
template <int kVectors, int kColumns, int kWords>
static inline void add_matrices(const uint8_t* q, const char* x,
                                Matrices<kVectors, kColumns>& sums) {
  constexpr int kPairs = kColumnPairs<kColumns>;
  static_assert(kVectors == 2);
#pragma GCC unroll 4
  for (int j = 0; j < kWords / 2; ++j) {
    vi two[kPairs];
    for (int p = 0; p < kPairs; ++p) two[p] = load_as<vi>(x + (j * kPairs + p) * 16);
    if constexpr (kPairs == 2) keep_both(two[0], two[1]);
    const FourVectors rows = load_four(q);
    q = anew(q + 2 * kWordStep);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const vi w = rows.at[2 * v + half];
#pragma GCC unroll 4
        for (int p = 0; p < kPairs; ++p) {
          sums[v][half][p] = dot_matrices(sums[v][half][p], w, two[p]);
        }
      }
    }
  }
}

// The same sums, each column in a vector of its own.
template <int kVectors, int kColumns>
static inline void split_matrices(const Matrices<kVectors, kColumns>& sums,
                                  vi (&s)[kVectors][kColumns]) {
  for (int v = 0; v < kVectors; ++v) {
    for (int c = 0; c < kColumns; ++c) {
      const vi a = sums[v][0][c / 2], b = sums[v][1][c / 2];
      s[v][c] = c % 2 == 0 ? even_lanes(a, b) : odd_lanes(a, b);
    }
  }
}

// The value that the sums of a group start with.
template <typename F, int kColumns>
static inline vi start_sum(const ActivationTile<kColumns>& x, int group, int column) {
  const bool has = F::kZero != 0 && !kSigned<F> && !kWideZero<F>;
  return has ? vi{} + x.correction[group][column] : vi{};
}

// The sum of a group, with what start_sum left out.
template <typename F, int kColumns>
static inline vi end_sum(vi sum, const ActivationTile<kColumns>& x, int group, int column) {
  return kWideZero<F> ? sum + x.correction[group][column] : sum;
}

// kWords words at `q` (a word of kPanelRows rows each), and activations `x`, added to the sums of
// kVectors vectors of rows and kColumns columns; columns are kStride bytes apart.
template <typename F, int kVectors, int kColumns, int kStride, int kWords>
static inline void add_words(const uint8_t* q, const char* x, vi (&s)[kVectors][kColumns]) {
  if constexpr (kLaneDots) {
    // Products take any lane of their second factor: a vector of activations is loaded for four
    // words.
    static_assert(kWords % 4 == 0 && kVectors == 2);
    vi codes[kColumns][kWords / 4];
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
      for (int i = 0; i < kWords / 4; ++i) codes[c][i] = load_as<vi>(x + kStride * c + 16 * i);
      if constexpr (kWords == 8) keep_both(codes[c][0], codes[c][1]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kWords; j += 2) {
      const FourVectors w = load_four(q);
      q = anew(q + 2 * kWordStep);
#pragma GCC unroll 4
      for (int part = 0; part < 4; ++part) {
        vi(&sums)[kColumns] = s[part % 2];
#pragma GCC unroll 4
        for (int c = 0; c < kColumns; ++c) {
          sums[c] = dot_lane(sums[c], w.at[part], codes[c][j / 4], j % 4 + part / 2);
        }
      }
    }
  } else {
#pragma GCC unroll 16
    for (int j = 0; j < kWords; ++j) {
      vi w[kVectors];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        w[v] = keep(load_as<vi>(q + (j * kPanelRows + v * kLanes) * 4));
      }
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) {
        const vi four = keep(splat_codes(x + kStride * c + 4 * j));
#pragma GCC unroll 2
        for (int v = 0; v < kVectors; ++v) s[v][c] = keep(add_word<F>(s[v][c], w[v], four));
      }
    }
  }
}

// The same of codes whose sums have to be widened word by word.
template <int kVectors, int kColumns, int kStride, int kWords>
static inline void widen_words(const uint8_t* q, const char* x, vi (&s)[kVectors][kColumns]) {
#pragma GCC unroll 16
  for (int j = 0; j < kWords; ++j) {
    vi w[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      w[v] = keep(load_as<vi>(q + (j * kPanelRows + v * kLanes) * 4));
    }
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const vi four = keep(splat_codes(x + kStride * c + 4 * j));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) s[v][c] = keep(dot_words(s[v][c], w[v], four));
    }
  }
}

// The same, widened as often as it must be: 32-bit sums of kWords words.
template <typename F, int kVectors, int kColumns, int kStride, int kWords>
static inline void sum_words(const uint8_t* q, const char* x, vi (&s)[kVectors][kColumns]) {
  constexpr int kRun = kWords < kWordRun<F> ? kWords : kWordRun<F>;
  static_assert(kWords % kRun == 0);
  if constexpr (kRun == 1) {
    return widen_words<kVectors, kColumns, kStride, kWords>(q, x, s);
  }
#pragma GCC unroll 2
  for (int run = 0; run < kWords / kRun; ++run) {
    vi part[kVectors][kColumns];
    for (int v = 0; v < kVectors; ++v) {
      for (int c = 0; c < kColumns; ++c) part[v][c] = run == 0 ? s[v][c] : vi{};
    }
    add_words<F, kVectors, kColumns, kStride, kRun>(q + run * kRun * 4 * kPanelRows,
                                                    x + run * kRun * 4, part);
    for (int v = 0; v < kVectors; ++v) {
      for (int c = 0; c < kColumns; ++c) {
        const vi sum = widen_sums<F>(part[v][c]);
        s[v][c] = run == 0 ? sum : s[v][c] + sum;
      }
    }
  }
}

}  // namespace weft::WEFT_TARGET
