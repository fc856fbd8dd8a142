// Dot products of a few rows with a few columns, decoding the rows on the way.
//
// They add up as tiles do (float_tile.h). Decoding a token is reading memory: kFewRows rows are
// taken at a time, and the next ones are asked for line after line meanwhile. The hardware alone
// follows each row only to the end of its page.
#pragma once

#include "kernels/matmul/float_tile.h"
#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

// sums[column][row] = row . column, over n elements of each: at most a slab.
inline constexpr int kFewRows = 4;
inline constexpr int kFewColumns = 8;
inline constexpr int kColumnsAtOnce = kLanes == 16 ? 4 : 2;

struct FewRows {
  const char* w;
  int64_t stride;
  int64_t rows;       // at most kFewRows
  const char* ahead;  // what is asked for meanwhile: as many bytes, in the order of addresses
};
using DotKernel = void (*)(const FewRows& rows, const char* const* columns, int64_t n_columns,
                           int64_t n, float (*sums)[kFewRows]);

// Rows of a float type times columns of f32. A policy says how many elements a vector has, and how
// one is loaded and multiplied.
template <DType kType>
struct FloatRow {
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

// Pages are found before their lines are asked for, because a processor that looks for a page does
// not go on asking: weights of a mapped file are in pages of 4096 bytes, and were read at two
// thirds of the speed.
inline constexpr int64_t kPageBytes = 4096;
inline constexpr int64_t kPagesAhead = 4 * kPageBytes;

static inline void touch_pages(const char* at, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += kPageBytes) __builtin_prefetch(at + kPagesAhead + i, 0, 2);
}

// Lines to fetch per step of `bytes` bytes; `at` walks over what lies ahead.
template <int64_t kBytes>
static inline void fetch_lines(const char*& at) {
  for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(at + i, 0, 0);
  at += kBytes;
}

// One vector more of each: the last n elements of a row and a column, and zeros.
template <class Row>
static inline vf add_tail(vf acc, const char* w, const char* x, int64_t n) {
  constexpr int64_t kColumnSize = Row::kColumns == DType::kF32 ? 4 : 2;
  char row[Row::kElements * Row::kSize] = {};
  char column[Row::kElements * kColumnSize] = {};
  std::memcpy(row, w, static_cast<size_t>(n * Row::kSize));
  std::memcpy(column, x, static_cast<size_t>(n * kColumnSize));
  return Row::add(acc, Row::weights(row), Row::column(column));
}

// kFetch: bytes to ask for in each step of two vectors, from `ahead` on.
template <class Row, int kRows, int kColumns, int64_t kFetch>
static inline void dot_some(const char* w, int64_t stride, const char* const* x, int64_t n,
                            const char* ahead, float (*sums)[kFewRows]) {
  constexpr int64_t kColumnSize = Row::kColumns == DType::kF32 ? 4 : 2;
  vf acc[kColumns][kRows] = {};
  const auto add_vector = [&](int64_t at) {
    vf rows[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) rows[r] = Row::weights(w + r * stride + at * Row::kSize);
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const vf column = Row::column(x[c] + at * kColumnSize);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) acc[c][r] = Row::add(acc[c][r], rows[r], column);
    }
  };
  int64_t i = 0;
  for (; i + 2 * Row::kElements <= n; i += 2 * Row::kElements) {
    fetch_lines<kFetch>(ahead);
    add_vector(i);
    add_vector(i + Row::kElements);
  }
  for (; i + Row::kElements <= n; i += Row::kElements) add_vector(i);
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      if (i < n) {
        acc[c][r] = add_tail<Row>(acc[c][r], w + r * stride + i * Row::kSize,
                                  x[c] + i * kColumnSize, n - i);
      }
      sums[c][r] = add_lanes(acc[c][r]);
    }
  }
}

// kPasses over the rows share the fetching of the rows after them.
template <class Row, int kRows, int kPasses>
static inline void dot_columns(const FewRows& rows, const char* const* x, int64_t n_columns,
                               int64_t n, const char* ahead, float (*sums)[kFewRows]) {
  constexpr int64_t kBytes = 2 * Row::kElements * Row::kSize * kRows / kPasses;
  if (n_columns == 1) {
    dot_some<Row, kRows, 1, kBytes>(rows.w, rows.stride, x, n, ahead, sums);
  } else if (n_columns == 2 || kColumnsAtOnce == 2) {
    dot_some<Row, kRows, 2, kBytes>(rows.w, rows.stride, x, n, ahead, sums);
  } else if (n_columns == 3) {
    dot_some<Row, kRows, 3, kBytes>(rows.w, rows.stride, x, n, ahead, sums);
  } else {
    dot_some<Row, kRows, kColumnsAtOnce, kBytes>(rows.w, rows.stride, x, n, ahead, sums);
  }
}

template <class Row>
static void dot_rows(const FewRows& rows, const char* const* columns, int64_t n_columns, int64_t n,
                     float (*sums)[kFewRows]) {
  const char* ahead = rows.ahead;
  const int64_t bytes = n * Row::kSize * kFewRows;
  if (rows.rows == kFewRows) touch_pages(ahead, bytes);
  for (int64_t c = 0; c < n_columns; c += kColumnsAtOnce) {
    const int64_t left = min64(kColumnsAtOnce, n_columns - c);
    if (rows.rows < kFewRows) {
      for (int64_t r = 0; r < rows.rows; ++r) {
        const FewRows one = {rows.w + r * rows.stride, rows.stride, 1, nullptr};
        float some[kColumnsAtOnce][kFewRows];
        dot_columns<Row, 1, 1>(one, columns + c, left, n, one.w, some);
        for (int64_t i = 0; i < left; ++i) sums[c + i][r] = some[i][0];
      }
    } else if (n_columns <= kColumnsAtOnce) {
      dot_columns<Row, kFewRows, 1>(rows, columns + c, left, n, ahead, sums + c);
    } else {
      dot_columns<Row, kFewRows, 2>(rows, columns + c, left, n, ahead, sums + c);
      ahead += bytes / 2;
    }
  }
}

}  // namespace weft::WEFT_TARGET
