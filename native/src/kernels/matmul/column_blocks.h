// Matrix products by blocks: a few rows of weights with a block of columns that stays in cache.
#pragma once

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

// A block has kColumns columns, and rows of that many floats. At kBlockDepth rows it fits the
// first-level cache beside the weights.
inline constexpr int64_t kColumns = 64;
inline constexpr int64_t kBlockDepth = 128;

// It is multiplied panel by panel: as many columns, for as many rows of weights, as the registers
// hold sums for.
inline constexpr int kPanelVectors = kLanes == 16 ? 4 : 2;
inline constexpr int kPanel = kPanelVectors * kLanes;
inline constexpr int kPanelRows = 4;
static_assert(kColumns % kPanel == 0);

static inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Weight (r, k) is at data[r * row_step + k * depth_step].
struct Weights {
  const float* data;
  int64_t row_step;
  int64_t depth_step;
};

// out[r][c] += sum over k of weight (r, k) * block[k][c], for kPanelRows rows and the first
// `columns` columns, rounded up to panels. Rows of `out` are kColumns floats apart. Sums go by
// ascending k, so that the result does not depend on how a caller cuts the depth.
static inline void multiply_block(const Weights& weights, const float* block, int64_t depth,
                                  int64_t columns, float* out) {
  for (int64_t c = 0; c < columns; c += kPanel) {
    vf sum[kPanelRows][kPanelVectors];
    for (int r = 0; r < kPanelRows; ++r) {
      for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = load(out + r * kColumns + c + v * kLanes);
    }
    for (int64_t k = 0; k < depth; ++k) {
      const float* w = weights.data + k * weights.depth_step;
      vf x[kPanelVectors];
      for (int v = 0; v < kPanelVectors; ++v) x[v] = load(block + k * kColumns + c + v * kLanes);
      for (int r = 0; r < kPanelRows; ++r) {
        const vf factor = splat(w[r * weights.row_step]);
        for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = fma(factor, x[v], sum[r][v]);
      }
    }
    for (int r = 0; r < kPanelRows; ++r) {
      for (int v = 0; v < kPanelVectors; ++v) store(out + r * kColumns + c + v * kLanes, sum[r][v]);
    }
  }
}

// Items of `work` multiply-adds each that are worth a thread.
static inline int64_t work_grain(int64_t work) { return row_grain(work / 8); }

}  // namespace weft::WEFT_TARGET
