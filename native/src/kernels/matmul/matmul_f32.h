// The float kernel of OUT_PROD: a panel of rows times a tile of columns.
//
// The lanes of a vector are weight rows, which are the innermost dimension of the result. A panel
// holds kPanelFloats rows, element by element: [k][kPanelFloats]; a tile holds columns as they are,
// kDepth elements each, padded so that they do not share cache sets.
#pragma once

#include "kernels/copy/copy_rows.h"
#include "kernels/simd/bytes.h"

namespace weft::WEFT_TARGET {

inline constexpr int kPanelFloats = 2 * kLanes;
inline constexpr int kTileFloats = kRegisters == 32 ? 12 : 6;  // columns; two sums each
inline constexpr int64_t kDepth = 256;                         // a multiple of every block
inline constexpr int64_t kTileStride = kDepth + 16;

// out[column][row] = panel . tile, for `depth` elements.
template <int kColumns>
static void multiply_tile_f32(const float* panel, const float* x, int64_t depth, float* out) {
  vf acc[kColumns][2] = {};
  for (int64_t k = 0; k < depth; ++k, panel += kPanelFloats) {
    const vf w0 = load(panel);
    const vf w1 = load(panel + kLanes);
#pragma GCC unroll 12
    for (int c = 0; c < kColumns; ++c) {
      const vf v = splat(x[c * kTileStride + k]);
      acc[c][0] = fma(w0, v, acc[c][0]);
      acc[c][1] = fma(w1, v, acc[c][1]);
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    store(out + c * kPanelFloats, acc[c][0]);
    store(out + c * kPanelFloats + kLanes, acc[c][1]);
  }
}

// The narrowest kernel for `columns` columns (at most kTileFloats); it may compute a few more.
static inline void multiply_columns_f32(const float* panel, const float* x, int64_t depth,
                                        int64_t columns, float* out) {
  if (columns > kTileFloats * 2 / 3) {
    multiply_tile_f32<kTileFloats>(panel, x, depth, out);
  } else if (columns > kTileFloats / 3) {
    multiply_tile_f32<kTileFloats * 2 / 3>(panel, x, depth, out);
  } else {
    multiply_tile_f32<kTileFloats / 3>(panel, x, depth, out);
  }
}

}  // namespace weft::WEFT_TARGET
