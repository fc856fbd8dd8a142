// The codes of a tile of activation columns, as products of panels take them.
#pragma once

#include "quants/lane_dots.h"

#if defined(WEFT_PANELS)

namespace weft::WEFT_TARGET {

// Where the codes of the columns of a tile are: chunk by chunk, kStride bytes apart or, for
// matrices, in pairs as they are wanted (quant_kernels.h); a word of all takes kWordBytes.
template <typename F, int kColumns>
struct TileCodes {
  static constexpr int kStride = 32, kWordBytes = kMatrices ? 4 * kColumns : 4;

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

// A column alone is one of a pair.
template <typename F>
struct TileCodes<F, 1> {
  static constexpr int kStride = 0, kWordBytes = 8;
  int64x2_t words[kChunksDeep][4];

  TileCodes(const ActivationTile<1>* x, int64_t n_chunks) {
    for (int64_t i = 0; i < n_chunks; ++i) {
      for (int half = 0; half < 2; ++half) {
        const auto codes = load_as<int64x2_t>(x[i].q[0] + 16 * half);
        words[i][2 * half] = vzip1q_s64(codes, vdupq_n_s64(0));
        words[i][2 * half + 1] = vzip2q_s64(codes, vdupq_n_s64(0));
      }
    }
  }
  const char* chunk(const ActivationTile<1>*, int64_t i) const {
    return reinterpret_cast<const char*>(words[i]);
  }
};

#endif

}  // namespace weft::WEFT_TARGET

#endif  // WEFT_PANELS
