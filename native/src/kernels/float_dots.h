// Dot products of a few rows with a few columns, decoding the rows on the way.
//
// Decoding a token is reading memory, so the rows are fetched in the order in which they lie there:
// one column takes row after row; more columns take kFewRows rows at a time, to load each column
// less often, and ask for the next rows line after line meanwhile. The hardware alone follows each
// row only to the end of its page.
#pragma once

#include "kernels/rows.h"
#include "kernels/simd/bytes.h"

namespace weft::WEFT_TARGET {

// sums[column][row] += row . column, over n elements of each.
inline constexpr int kFewRows = kLanes == 16 ? 4 : 2;
inline constexpr int kFewColumns = 8;
inline constexpr int kColumnsAtOnce = 4;

struct FewRows {
  const char* w;
  int64_t stride;
  int64_t rows;  // at most kFewRows
};
using DotKernel = void (*)(const FewRows& rows, const char* const* columns, int64_t n_columns,
                           int64_t n, float (*sums)[kFewRows]);

// Rows of a float type times columns of f32. A policy says how many elements a vector has, and how
// one is loaded and multiplied.
template <DType kType>
struct FloatRow {
  static constexpr DType kWeights = kType;
  static constexpr DType kColumns = DType::kF32;
  static constexpr int64_t kElements = kLanes;
  static constexpr int64_t kSize = kType == DType::kF32 ? 4 : 2;
  static inline vf weights(const char* p) {
    if constexpr (kType == DType::kF16) return load_half(reinterpret_cast<const uint16_t*>(p));
    if constexpr (kType == DType::kBF16) return load_bf16(reinterpret_cast<const uint16_t*>(p));
    return load(reinterpret_cast<const float*>(p));
  }
  static inline vf column(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf add(vf acc, vf w, vf x) { return fma(w, x, acc); }
};

// Lines to fetch per step of `bytes` bytes; `at` walks over what lies ahead.
template <int64_t kBytes>
static inline void fetch_lines(const char*& at) {
  for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(at + i, 0, 0);
  at += kBytes;
}

// kFetch: bytes to ask for in each step, from `ahead` on.
template <class Row, int kRows, int kColumns, int64_t kFetch>
static inline void dot_some(const char* w, int64_t stride, const char* const* x, int64_t n,
                            const char* ahead, float (*sums)[kFewRows]) {
  constexpr int64_t kVectors = kRows * kColumns == 1 ? 4 : 2;  // a step
  constexpr int64_t kStep = kVectors * Row::kElements;
  constexpr int64_t kColumnSize = Row::kColumns == DType::kF32 ? 4 : 2;
  // as many chains as hide the latency of an addition
  constexpr int kChains = kRows * kColumns >= 8 ? 1 : kRows * kColumns == 1 ? 4 : 2;
  vf acc[kRows][kColumns][kChains] = {};
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) {
    if constexpr (kFetch > 0) fetch_lines<kFetch>(ahead);
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      const int64_t at = i + v * Row::kElements;
      vf rows[kRows];
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) rows[r] = Row::weights(w + r * stride + at * Row::kSize);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        const vf column = Row::column(x[c] + at * kColumnSize);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          vf& sum = acc[r][c][v % kChains];
          sum = Row::add(sum, rows[r], column);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      vf total = acc[r][c][0];
#pragma GCC unroll 4
      for (int chain = 1; chain < kChains; ++chain) total = total + acc[r][c][chain];
      float sum = hsum(total);
      for (int64_t k = i; k < n; ++k) {
        sum += load_element(w + r * stride + k * Row::kSize, Row::kWeights) *
               load_element(x[c] + k * kColumnSize, Row::kColumns);
      }
      sums[c][r] += sum;
    }
  }
}

// kPasses over the rows share the fetching of the rows after them.
template <class Row, int kRows, int kPasses>
static inline void dot_columns(const FewRows& rows, const char* const* x, int64_t n_columns,
                               int64_t n, const char* ahead, float (*sums)[kFewRows]) {
  constexpr int64_t kBytes = 2 * Row::kElements * Row::kSize * kRows / kPasses;
  switch (n_columns) {
    case 1:
      return dot_some<Row, kRows, 1, kBytes>(rows.w, rows.stride, x, n, ahead, sums);
    case 2:
      return dot_some<Row, kRows, 2, kBytes>(rows.w, rows.stride, x, n, ahead, sums);
    case 3:
      return dot_some<Row, kRows, 3, kBytes>(rows.w, rows.stride, x, n, ahead, sums);
    default:
      return dot_some<Row, kRows, 4, kBytes>(rows.w, rows.stride, x, n, ahead, sums);
  }
}

template <class Row>
static void dot_rows(const FewRows& rows, const char* const* columns, int64_t n_columns, int64_t n,
                     float (*sums)[kFewRows]) {
  constexpr int64_t kNear = 2048;  // ahead of a single row
  if (n_columns == 1) {
    for (int64_t r = 0; r < rows.rows; ++r) {
      const char* w = rows.w + r * rows.stride;
      float sum[1][kFewRows] = {};
      dot_some<Row, 1, 1, 4 * Row::kElements * Row::kSize>(w, rows.stride, columns, n, w + kNear,
                                                           sum);
      sums[0][r] += sum[0][0];
    }
    return;
  }
  const char* ahead = rows.w + kFewRows * rows.stride;
  for (int64_t c = 0; c < n_columns; c += kColumnsAtOnce) {
    const int64_t left = min64(kColumnsAtOnce, n_columns - c);
    if (rows.rows < kFewRows) {
      for (int64_t r = 0; r < rows.rows; ++r) {
        const FewRows one = {rows.w + r * rows.stride, rows.stride, 1};
        float some[kColumnsAtOnce][kFewRows] = {};
        dot_columns<Row, 1, 1>(one, columns + c, left, n, one.w + kNear, some);
        for (int64_t i = 0; i < left; ++i) sums[c + i][r] += some[i][0];
      }
    } else if (n_columns <= kColumnsAtOnce) {
      dot_columns<Row, kFewRows, 1>(rows, columns + c, left, n, ahead, sums + c);
    } else {
      dot_columns<Row, kFewRows, 2>(rows, columns + c, left, n, ahead, sums + c);
      ahead += kFewRows * rows.stride / 2;
    }
  }
}

}  // namespace weft::WEFT_TARGET
