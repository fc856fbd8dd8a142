// The float matrix kernel: a tile of weight rows times a few columns.
//
// What a lane multiplies in one step is a word: a float, or two neighbouring bf16 where the target
// has their dot product. Lanes are words of the depth, of rows as of columns, so that neither has
// to be transposed. What a sum is does not depend on how many rows and columns are multiplied
// together; dot products of rows as they are stored (float_dots.h) take the same steps:
//
//   lane l adds up the products of words l, l + kLanes, ... of kSlabWords words, one by one;
//   the upper half of the lanes is added to the lower one, until one is left (add_lanes);
//   the sums of all slabs are added one by one.
#pragma once

#include "kernels/simd/bytes.h"
#include "kernels/simd/sums.h"

namespace weft::WEFT_TARGET {

// Sums fill 24 of 32 registers, 12 of 16, or 8 where a product needs one of its own.
inline constexpr int kTileRows = kSumRows;
inline constexpr int kRunColumns = kFused ? 3 : 2;

inline constexpr int64_t kSlabWords = 2048;
// Words of depth that are multiplied at a time: the weights' tile stays in the first-level cache.
inline constexpr int64_t kDeepWords = 512;
static_assert(kSlabWords % kDeepWords == 0 && kDeepWords % kLanes == 0);
// Rows of a weights' tile are padded so that they do not share cache sets.
inline constexpr int64_t kWeightStride = kDeepWords + 16;

// Rows of sums that are written to the result together: a cache line.
inline constexpr int64_t kGroupRows = 16;

// `vectors` vectors of kTileRows rows at `w` (kWeightStride words apart) and of columns at `x`
// (`stride` words apart). Lanes are kept in `lanes`, [column][kTileRows] vectors, until a slab
// `ends`, after which its sums are in sums[column][kGroupRows].
struct TilePart {
  int64_t vectors;
  bool begins;
  bool ends;
};
using TileKernel = void (*)(const float* w, const float* x, int64_t stride, const TilePart& part,
                            float* lanes, float* sums);

// By number of columns, less one.
struct TileKernels {
  TileKernel of[kRunColumns];
};

struct MultiplyFloats {
  static inline vf add(vf acc, vf a, vf b) { return fma(a, b, acc); }
};

template <class Step, int kColumns>
static void multiply_tile(const float* w, const float* x, int64_t stride, const TilePart& part,
                          float* lanes, float* sums) {
  vf acc[kColumns][kTileRows];
#pragma GCC unroll 3
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      acc[c][r] = part.begins ? vf{} : load(lanes + (c * kTileRows + r) * kLanes);
    }
  }
  for (const float* end = w + part.vectors * kLanes; w < end; w += kLanes, x += kLanes) {
    vf v[kColumns];
#pragma GCC unroll 3
    for (int c = 0; c < kColumns; ++c) v[c] = load(x + c * stride);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const vf row = in_register(load(w + r * kWeightStride));
#pragma GCC unroll 3
      for (int c = 0; c < kColumns; ++c) acc[c][r] = Step::add(acc[c][r], row, v[c]);
    }
  }
#pragma GCC unroll 3
  for (int c = 0; c < kColumns; ++c) {
    if (part.ends) {
      add_lanes(acc[c], sums + c * kGroupRows);
      continue;
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) store(lanes + (c * kTileRows + r) * kLanes, acc[c][r]);
  }
}

template <class Step>
static TileKernels tile_kernels() {
  TileKernels kernels = {{multiply_tile<Step, 1>, multiply_tile<Step, 2>}};
  if constexpr (kRunColumns == 3) kernels.of[2] = multiply_tile<Step, 3>;
  return kernels;
}

}  // namespace weft::WEFT_TARGET
