// The two products of attention for many rows of queries. The keys and values of a block of cells
// are converted to floats in scratch memory, and the keys are turned into quads (attention.h).
#pragma once

#include "kernels/attention/attention.h"

namespace weft::WEFT_TARGET {

// The rows whose scores, and whose sums, are computed together: as many as there are registers for.
inline constexpr int kScoreRows = kLanes == 8 ? 3 : kLanes == 16 ? 4 : 2;
inline constexpr int kSumRows = kLanes == 8 ? 6 : 4;

// Turns the keys of kLanes cells, rows of `width` floats (a multiple of kLanes) that are `stride`
// floats apart, into the order in which multiply_keys reads them. Vector 4 j + g of the output,
// with g from 0 to 3, is
//
//     numbers 4j..4j+3 of cell g | the same of cell 4 + g | of cell 8 + g | ...  (kQuads cells)
static inline void turn_keys(const float* rows, int64_t stride, int64_t width, float* out) {
  for (int64_t d = 0; d < width; d += kLanes) {
    for (int g = 0; g < 4; ++g) {
      vf key[kQuads];
#pragma GCC unroll 4
      for (int c = 0; c < kQuads; ++c) key[c] = load(rows + (4 * c + g) * stride + d);
      turn_quads(key);
#pragma GCC unroll 4
      for (int j = 0; j < kQuads; ++j) store(out + d * kLanes + (4 * j + g) * kLanes, key[j]);
    }
  }
}

// The dot products of kRows rows of `q` with the turned keys of kLanes cells.
template <int kRows>
static inline void multiply_keys(const float* q, int64_t q_stride, const float* keys, int64_t width,
                                 float* out, int64_t out_stride) {
  vf s[kRows][4];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) s[r][g] = vf{};
  }
  for (int64_t d = 0; d < width; d += 4) {
    vf key[4];
    for (int g = 0; g < 4; ++g) key[g] = load(keys + d * kLanes + g * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const vf x = load_quad(q + r * q_stride + d);
#pragma GCC unroll 4
      for (int g = 0; g < 4; ++g) s[r][g] = fma(x, key[g], s[r][g]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) store(out + r * out_stride, cell_sums(s[r]));
}

// The rows from `r` on, kRows at a time.
template <int kRows>
static inline void multiply_rows(const Matrix& q, int64_t& r, const float* keys, int64_t width,
                                 float* out, int64_t out_stride, Ahead& ahead) {
  for (; r + kRows <= q.rows; r += kRows) {
    ahead.step();
    multiply_keys<kRows>(q.data + r * q.stride, q.stride, keys, width, out + r * out_stride,
                         out_stride);
  }
}

// The steps of `ahead` in multiply_block.
static inline int64_t multiply_steps(int64_t rows, int64_t begin, int64_t end) {
  return (end - begin) / kLanes * (rows / kScoreRows);
}

// out[r][i] = q[r] . k[i] for the cells begin..end (multiples of kLanes). The keys are turned; each
// cell takes k_stride floats.
static inline void multiply_block(const Matrix& q, const float* keys, int64_t begin, int64_t end,
                                  int64_t k_stride, int64_t width, float* out, int64_t out_stride,
                                  Ahead& ahead) {
  for (int64_t cell = begin; cell < end; cell += kLanes) {
    const float* k = keys + cell * k_stride;
    int64_t r = 0;
    multiply_rows<kScoreRows>(q, r, k, width, out + cell, out_stride, ahead);
    multiply_rows<2>(q, r, k, width, out + cell, out_stride, ahead);
    multiply_rows<1>(q, r, k, width, out + cell, out_stride, ahead);
  }
}

// out[r] = fade[r] out[r] + sum over i < depth of w[r][i] v[i], for kRows rows and kWide vectors of
// columns.
template <int kRows, int kWide>
static inline void add_values(const float* w, int64_t w_stride, const float* v, int64_t v_stride,
                              int64_t depth, const float* fade, float* out, int64_t out_stride) {
  vf s[kRows][kWide];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWide; ++c) s[r][c] = load(out + r * out_stride + c * kLanes) * fade[r];
  }
  for (int64_t k = 0; k < depth; ++k) {
    vf row[kWide];
    for (int c = 0; c < kWide; ++c) row[c] = load(v + k * v_stride + c * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const vf x = splat(w[r * w_stride + k]);
      for (int c = 0; c < kWide; ++c) s[r][c] = fma(x, row[c], s[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWide; ++c) store(out + r * out_stride + c * kLanes, s[r][c]);
  }
}

// The rows from `r` on, kRows at a time.
template <int kRows, int kWide>
static inline void add_rows_of(const Matrix& w, int64_t& r, const float* v, int64_t v_stride,
                               int64_t depth, const float* fade, float* out, int64_t out_stride,
                               Ahead& ahead) {
  for (; r + kRows <= w.rows; r += kRows) {
    ahead.step();
    add_values<kRows, kWide>(w.data + r * w.stride, w.stride, v, v_stride, depth, fade + r,
                             out + r * out_stride, out_stride);
  }
}

// The vectors of a row that sums are computed of together, and the rows for fewer vectors: enough
// sums are under way that none is waited for.
inline constexpr int kSumWide = kLanes == 16 ? 4 : 2;
template <int kWide>
inline constexpr int kRowsOf = kWide == kSumWide ? kSumRows : 8;

template <int kWide>
static inline void add_columns(const Matrix& w, const float* v, int64_t v_stride, int64_t depth,
                               const float* fade, float* out, int64_t out_stride, Ahead& ahead) {
  int64_t r = 0;
  add_rows_of<kRowsOf<kWide>, kWide>(w, r, v, v_stride, depth, fade, out, out_stride, ahead);
  add_rows_of<2, kWide>(w, r, v, v_stride, depth, fade, out, out_stride, ahead);
  add_rows_of<1, kWide>(w, r, v, v_stride, depth, fade, out, out_stride, ahead);
}

// The steps of `ahead` in add_block.
static inline int64_t add_steps(int64_t rows, int64_t width) {
  const int64_t vectors = width / kLanes;
  return rows / kSumRows * (vectors / kSumWide) + rows / kRowsOf<2> * (vectors % kSumWide / 2);
}

// out[r] = fade[r] out[r] + sum over i < depth of w[r][i] v[i], for all rows of `w`. `width`, the
// length of a row of v in floats, is a multiple of kLanes.
static inline void add_block(const Matrix& w, const float* v, int64_t v_stride, int64_t depth,
                             int64_t width, const float* fade, float* out, int64_t out_stride,
                             Ahead& ahead) {
  int64_t c = 0;
  for (; c + kSumWide * kLanes <= width; c += kSumWide * kLanes) {
    add_columns<kSumWide>(w, v + c, v_stride, depth, fade, out + c, out_stride, ahead);
  }
  for (; c + 2 * kLanes <= width; c += 2 * kLanes) {
    add_columns<2>(w, v + c, v_stride, depth, fade, out + c, out_stride, ahead);
  }
  for (; c < width; c += kLanes) {
    add_columns<1>(w, v + c, v_stride, depth, fade, out + c, out_stride, ahead);
  }
}

}  // namespace weft::WEFT_TARGET
