// The codes of a tile of activation columns, as products of panels take them.
#pragma once

#include "quants/lane_dots.h"

namespace weft::WEFT_TARGET {

// Where the codes of the columns of a tile are: chunk by chunk, kStride bytes apart or, for
// matrices, in pairs as they are wanted (quant_kernels.h); a word of all takes kWordBytes.
template <typename F, int kColumns>
struct TileCodes {
  static constexpr int kStride = 32, kWordBytes = kMatrixDots ? 4 * kColumns : 4;

  TileCodes(const ActivationTile<kColumns>*, int64_t) {}
  const char* chunk(const ActivationTile<kColumns>* x, int64_t i) const {
    return reinterpret_cast<const char*>(x[i].q);
  }
};

// Panels of 16-bit codes are multiplied with activations of 16 bits.
template <typename F, int kColumns>
  requires(kPairedDots && kSigned<F>)
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
          spread[i][c][0] = first_halves(even, odd);
          spread[i][c][1] = second_halves(even, odd);
        }
      }
    }
  }
  const char* chunk(const ActivationTile<kColumns>*, int64_t i) const {
    return reinterpret_cast<const char*>(spread[i]);
  }
};

// For matrices a column alone is one of a pair.
template <typename F>
  requires(kMatrixDots && F::kTop > 0)
struct TileCodes<F, 1> {
  typedef int64_t Eights __attribute__((vector_size(16)));
  static constexpr int kStride = 0, kWordBytes = 8;
  Eights words[kChunksDeep][4];

  TileCodes(const ActivationTile<1>* x, int64_t n_chunks) {
    for (int64_t i = 0; i < n_chunks; ++i) {
      for (int half = 0; half < 2; ++half) {
        const auto codes = load_as<Eights>(x[i].q[0] + 16 * half);
        words[i][2 * half] = __builtin_shufflevector(codes, Eights{}, 0, 2);
        words[i][2 * half + 1] = __builtin_shufflevector(codes, Eights{}, 1, 3);
      }
    }
  }
  const char* chunk(const ActivationTile<1>*, int64_t i) const {
    return reinterpret_cast<const char*>(words[i]);
  }
};

}  // namespace weft::WEFT_TARGET
