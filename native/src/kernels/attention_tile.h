// The two products of attention for many rows of queries: keys and values of a block of cells are
// floats in scratch, keys turned so that cells are side by side. Then no sum goes across a vector.
#pragma once

#include "kernels/rows.h"
#include "kernels/simd/bytes.h"

namespace weft::WEFT_TARGET {

// Rows of a tile come in multiples of it.
inline constexpr int kTileRows = 4;

// out[r] = a[r] b (+ fade[r] out[r] when kAdd) for kTileRows rows and kWide vectors of columns.
template <int kWide, bool kAdd>
static inline void multiply_part(const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                                 int64_t depth, const float* fade, float* out, int64_t out_stride) {
  vf s[kTileRows][kWide];
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < kWide; ++c) {
      s[r][c] = kAdd ? load(out + r * out_stride + c * kLanes) * fade[r] : vf{};
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    vf row[kWide];
    for (int c = 0; c < kWide; ++c) row[c] = load(b + k * b_stride + c * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r) {
      const vf x = splat(a[r * a_stride + k]);
      for (int c = 0; c < kWide; ++c) s[r][c] = fma(x, row[c], s[r][c]);
    }
  }
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < kWide; ++c) store(out + r * out_stride + c * kLanes, s[r][c]);
  }
}

// The same for `rows` rows (a multiple of kTileRows) and `width` columns (whole vectors).
template <bool kAdd>
static inline void multiply_block(const float* a, int64_t a_stride, int64_t rows, const float* b,
                                  int64_t b_stride, int64_t depth, int64_t width, const float* fade,
                                  float* out, int64_t out_stride) {
  constexpr int kWide = kLanes == 16 ? 4 : 2;
  int64_t c = 0;
  for (; c + kWide * kLanes <= width; c += kWide * kLanes) {
    for (int64_t r = 0; r < rows; r += kTileRows) {
      multiply_part<kWide, kAdd>(a + r * a_stride, a_stride, b + c, b_stride, depth, fade + r,
                                 out + r * out_stride + c, out_stride);
    }
  }
  for (; c < width; c += kLanes) {
    for (int64_t r = 0; r < rows; r += kTileRows) {
      multiply_part<1, kAdd>(a + r * a_stride, a_stride, b + c, b_stride, depth, fade + r,
                             out + r * out_stride + c, out_stride);
    }
  }
}

// rows[8][stride], of `width` floats (a multiple of 8), to out[width][out_stride]: eight columns.
static inline void turn_eight(const float* rows, int64_t stride, int64_t width, float* out,
                              int64_t out_stride) {
  for (int64_t d = 0; d < width; d += 8) {
#if defined(__AVX2__)
    __m256i v[8];
    for (int r = 0; r < 8; ++r) std::memcpy(&v[r], rows + r * stride + d, sizeof v[r]);
    transpose8(v);
    for (int j = 0; j < 8; ++j) std::memcpy(out + (d + j) * out_stride, &v[j], sizeof v[j]);
#else
    for (int r = 0; r < 8; ++r) {
      for (int j = 0; j < 8; ++j) out[(d + j) * out_stride + r] = rows[r * stride + d + j];
    }
#endif
  }
}

}  // namespace weft::WEFT_TARGET
