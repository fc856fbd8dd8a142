// Matrix products by panels: a panel is kPanel columns side by side, as many as stay in registers.
#pragma once

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

// Vectors across a panel, and rows multiplied at a time: their products fill the registers.
inline constexpr int kPanelVectors = kLanes == 16 ? 4 : 2;
inline constexpr int kPanel = kPanelVectors * kLanes;
inline constexpr int kPanelRows = 4;
// Depth of a panel that stays in the first-level cache beside the weights.
inline constexpr int64_t kPanelDepth = 256;

static inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// out[r][c] += sum over k of weights[r][k] * panel[k][c], for kPanelRows rows and kPanel columns.
// Rows of `weights` are `stride` floats apart, rows of `panel` and `out` kPanel. Sums go by
// ascending k, so that the result does not depend on how a caller cuts the depth.
static inline void multiply_panel(const float* weights, int64_t stride, const float* panel,
                                  int64_t depth, float* out) {
  vf sum[kPanelRows][kPanelVectors];
  for (int r = 0; r < kPanelRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = load(out + r * kPanel + v * kLanes);
  }
  for (int64_t k = 0; k < depth; ++k) {
    vf x[kPanelVectors];
    for (int v = 0; v < kPanelVectors; ++v) x[v] = load(panel + k * kPanel + v * kLanes);
    for (int r = 0; r < kPanelRows; ++r) {
      const vf w = splat(weights[r * stride + k]);
      for (int v = 0; v < kPanelVectors; ++v) sum[r][v] = fma(w, x[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kPanelRows; ++r) {
    for (int v = 0; v < kPanelVectors; ++v) store(out + r * kPanel + v * kLanes, sum[r][v]);
  }
}

static inline void fill_zeros(float* p, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = 0;
}

// Items of `work` multiply-adds each that are worth a thread.
static inline int64_t work_grain(int64_t work) { return row_grain(work / 8); }

}  // namespace weft::WEFT_TARGET
