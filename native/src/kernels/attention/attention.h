// The two products of attention, q k^T and weights v, for a few rows of queries; keys and values
// are read in place. attention_tile.h has the products for many rows, which add the same terms in
// the same order.
#pragma once

#include "kernels/simd/lanes.h"
#include "kernels/simd/quads.h"
#include "kernels/simd/rows_ahead.h"

namespace weft::WEFT_TARGET {

// A matrix of floats: `rows` rows that are `stride` floats apart.
struct Matrix {
  const float* data;
  int64_t stride;
  int64_t rows;
};

// The rows (keys or values) of a block of cells. The row of cell i is at data + i * stride.
struct Rows {
  const char* data;
  int64_t stride;  // bytes
  int64_t n;       // rows that exist
  int64_t bytes;   // the length of a row
  int64_t ahead;   // bytes from a row to the one that is prefetched with it; 0: none is

  // The row of cell i, or the last row for cells behind it.
  const char* row(int64_t i) const { return data + min64(i, n - 1) * stride; }
  // Prefetches kBytes bytes of a later row from byte `at` on: the rows of a head are too far apart
  // for the processor to foresee. The calls are spread between products, because a burst of
  // requests fills the queue of outstanding lines, and the products after it would ask for none.
  template <int64_t kBytes>
  void prefetch(const char* row, int64_t at) const {
    if (ahead == 0) return;
#pragma GCC unroll 8
    for (int64_t b = 0; b < kBytes; b += 64) __builtin_prefetch(row + ahead + at + b, 0, 2);
  }
  void prefetch(const char* row) const {
    for (int64_t b = 0; b < bytes; b += 64) prefetch<1>(row, b);
  }
};

// Where the rows of kLanes cells are, in bytes behind the row of the first one.
struct LaneRows {
  int64_t at[kLanes];

  LaneRows(const Rows& rows, int64_t cell) {
    for (int64_t i = 0; i < kLanes; ++i) at[i] = rows.row(cell + i) - rows.row(cell);
  }
};

using Ahead = RowsAhead<2>;

// All of `rows`, spread over `steps` steps.
static inline Ahead rows_ahead(const Rows& rows, int64_t steps) {
  return {rows.data, rows.stride, rows.bytes, rows.n, steps};
}

// `n` cells of a block, as ascending indices below kCells.
struct Picked {
  const int32_t* cell;
  int64_t n;
};

// Each type of rows has the byte at which number i, or its block, begins, the scale of that block,
// and a vector of numbers from number i on.
struct NoScale {};
struct LoadF32 {
  static constexpr int64_t byte(int64_t i) { return i * 4; }
  static NoScale scale(const char*, int64_t) { return {}; }
  static vf at(const char* row, int64_t i, NoScale) {
    return load(reinterpret_cast<const float*>(row) + i);
  }
};
struct LoadF16 {
  static constexpr int64_t byte(int64_t i) { return i * 2; }
  static NoScale scale(const char*, int64_t) { return {}; }
  static vf at(const char* row, int64_t i, NoScale) {
    return load_half(reinterpret_cast<const uint16_t*>(row) + i);
  }
};
struct LoadBf16 {
  static constexpr int64_t byte(int64_t i) { return i * 2; }
  static NoScale scale(const char*, int64_t) { return {}; }
  static vf at(const char* row, int64_t i, NoScale) {
    return load_bf16(reinterpret_cast<const uint16_t*>(row) + i);
  }
};

// Blocks of kBlock numbers hold a half-precision scale, then 8 (q8_0) or 4 bits (q4_0) per number
// (quants/blocks.h).
inline constexpr int64_t kBlock = 32;
static inline vf block_scale(const char* block) {
  uint16_t h;
  std::memcpy(&h, block, sizeof h);
  return splat(half_to_float(h));
}
struct LoadQ80 {
  static constexpr int64_t byte(int64_t i) { return i / kBlock * 34; }
  static vf scale(const char* row, int64_t i) { return block_scale(row + byte(i)); }
  static vf at(const char* row, int64_t i, vf scale) {
    return int_floats(widen(row + byte(i) + 2 + i % kBlock)) * scale;
  }
};
struct LoadQ40 {
  static constexpr int64_t byte(int64_t i) { return i / kBlock * 18; }
  static vf scale(const char* row, int64_t i) { return block_scale(row + byte(i)); }
  static vf at(const char* row, int64_t i, vf scale) {
    // The low halves of the 16 bytes hold numbers 0..15, the high halves 16..31.
    const vi bytes = widen(row + byte(i) + 2 + i % 16);
    const vi number = (i % kBlock < 16 ? bytes : bytes >> 4) & 15;
    return int_floats(number - 8) * scale;
  }
};

// Whether `n_rows` rows of queries read a cache of this type in place; otherwise it is converted.
static inline bool reads_in_place(DType type, int64_t n_rows) {
  // Blocks are decoded anew for every four rows, so decoding in place pays for at most four.
  return is_float(type) ||
         (kLanes > 4 && n_rows <= 4 && (type == DType::kQ8_0 || type == DType::kQ4_0));
}

// Scores are summed in quads. A vector holds four consecutive numbers of each of kQuads cells:
//
//     lanes  0 1 2 3 | 4 5 6 7 | ...
//     cells     c    |  c + 4  | ...
//
// Each lane sums every fourth product of a cell, and the four lanes of a cell are added at the end.
// So keys that are read in place and keys that were turned beforehand give the same sum.

// The sums of kLanes cells, one per lane; s[g] has the quads of the cells g, 4 + g, 8 + g and so
// on.
static inline vf cell_sums(const vf (&s)[4]) {
  return pair_sums(pair_sums(s[0], s[1]), pair_sums(s[2], s[3]));
}

// The dot products of kRows rows of `q` with kLanes rows of `k`, which are `lanes` behind `begin`.
// Rows have `width` floats.
template <typename Load, int kRows>
static inline void dot_rows(const float* q, int64_t q_stride, const Rows& k, const char* begin,
                            const LaneRows& lanes, int64_t width, float* out, int64_t out_stride) {
  // As many groups of cells at once as there are registers for: they share the loads of queries.
  constexpr int kGroups = kLanes == 16 || kRows <= 4 ? 2 : 1;
  vf s[kRows][4];
#pragma GCC unroll 4
  for (int first = 0; first < 4; first += kGroups) {
    const char* row[kGroups][kQuads];
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
      for (int c = 0; c < kQuads; ++c) row[g][c] = begin + lanes.at[4 * c + first + g];
    }
    vf sum[kRows][kGroups];
    for (int r = 0; r < kRows; ++r) {
      for (int g = 0; g < kGroups; ++g) sum[r][g] = vf{};
    }
    // Each block, or as many floats, has its scales and its requests for lines.
    for (int64_t block = 0; block < width; block += kBlock) {
      const int64_t end = min64(block + kBlock, width);
      decltype(Load::scale(nullptr, 0)) scale[kGroups][kQuads];
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
        for (int c = 0; c < kQuads; ++c) {
          k.prefetch<Load::byte(kBlock)>(row[g][c], Load::byte(block));
          scale[g][c] = Load::scale(row[g][c], block);
        }
      }
      for (int64_t d = block; d < end; d += kLanes) {
        vf key[kGroups][kQuads];
#pragma GCC unroll 2
        for (int g = 0; g < kGroups; ++g) {
#pragma GCC unroll 4
          for (int c = 0; c < kQuads; ++c) key[g][c] = Load::at(row[g][c], d, scale[g][c]);
          turn_quads(key[g]);
        }
#pragma GCC unroll 4
        for (int j = 0; j < kQuads; ++j) {
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const vf x = load_quad(q + r * q_stride + d + 4 * j);
#pragma GCC unroll 2
            for (int g = 0; g < kGroups; ++g) sum[r][g] = fma(x, key[g][j], sum[r][g]);
          }
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) s[r][first + g] = sum[r][g];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) store(out + r * out_stride, cell_sums(s[r]));
}

template <typename Load, int kRows>
static inline void dot_all(const Matrix& q, int64_t& r, const Rows& k, int64_t begin, int64_t end,
                           int64_t width, float* out, int64_t out_stride) {
  for (; r + kRows <= q.rows; r += kRows) {
    LaneRows lanes(k, begin);
    for (int64_t cell = begin; cell < end; cell += kLanes) {
      if (cell + kLanes > k.n) lanes = LaneRows(k, cell);
      dot_rows<Load, kRows>(q.data + r * q.stride, q.stride, k, k.row(cell), lanes, width,
                            out + r * out_stride + cell, out_stride);
    }
  }
}

template <typename Load>
static inline void scores_of(const Matrix& q, const Rows& k, int64_t begin, int64_t end,
                             int64_t width, float* out, int64_t out_stride) {
  int64_t r = 0;
  dot_all<Load, 8>(q, r, k, begin, end, width, out, out_stride);
  dot_all<Load, 4>(q, r, k, begin, end, width, out, out_stride);
  dot_all<Load, 3>(q, r, k, begin, end, width, out, out_stride);
  dot_all<Load, 2>(q, r, k, begin, end, width, out, out_stride);
  dot_all<Load, 1>(q, r, k, begin, end, width, out, out_stride);
}

// out[r][i] = q[r] . k[i] for the cells begin..end. Both are multiples of kLanes, and so is
// `width`, the length of a row in floats.
static inline void scores(DType type, const Matrix& q, const Rows& k, int64_t begin, int64_t end,
                          int64_t width, float* out, int64_t out_stride) {
  if (type == DType::kF32) return scores_of<LoadF32>(q, k, begin, end, width, out, out_stride);
  if (type == DType::kF16) return scores_of<LoadF16>(q, k, begin, end, width, out, out_stride);
  if (type == DType::kQ8_0) return scores_of<LoadQ80>(q, k, begin, end, width, out, out_stride);
  if (type == DType::kQ4_0) return scores_of<LoadQ40>(q, k, begin, end, width, out, out_stride);
  scores_of<LoadBf16>(q, k, begin, end, width, out, out_stride);
}

// out[r][c] = fade[r] out[r][c] + sum over `cells` i of w[r][i] v[i][c], for kRows rows r and the
// columns c of kWide vectors from column d on.
template <typename Load, int kRows, int kWide>
static inline void add_part(const float* w, int64_t w_stride, const Rows& v, Picked cells,
                            int64_t d, const float* fade, float* out, int64_t out_stride) {
  vf s[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWide; ++c) s[r][c] = load(out + r * out_stride + d + c * kLanes) * fade[r];
  }
  constexpr int64_t kBytes = Load::byte(kWide * kLanes) > 0 ? Load::byte(kWide * kLanes) : 1;
  for (int64_t i = 0; i < cells.n; ++i) {
    const int64_t cell = cells.cell[i];
    const char* row = v.data + cell * v.stride;
    v.prefetch<kBytes>(row, Load::byte(d));
    vf value[kWide];
    auto scale = Load::scale(row, d);
    for (int c = 0; c < kWide; ++c) {
      const int64_t i = d + c * kLanes;
      if (c != 0 && c * kLanes % kBlock == 0) scale = Load::scale(row, i);
      value[c] = Load::at(row, i, scale);
    }
    for (int r = 0; r < kRows; ++r) {
      const vf weight = splat(w[r * w_stride + cell]);
      for (int c = 0; c < kWide; ++c) s[r][c] = fma(weight, value[c], s[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWide; ++c) store(out + r * out_stride + d + c * kLanes, s[r][c]);
  }
}

template <typename Load, int kRows>
static inline void add_rows(const float* w, int64_t w_stride, const Rows& v, Picked cells,
                            int64_t width, const float* fade, float* out, int64_t out_stride) {
  constexpr int kWide = kRows == 1 || kLanes == 16 ? 4 : 2;
  int64_t d = 0;
  for (; d + kWide * kLanes <= width; d += kWide * kLanes) {
    add_part<Load, kRows, kWide>(w, w_stride, v, cells, d, fade, out, out_stride);
  }
  for (; d < width; d += kLanes) {
    add_part<Load, kRows, 1>(w, w_stride, v, cells, d, fade, out, out_stride);
  }
}

template <typename Load>
static inline void add_all(const Matrix& w, const Rows& v, Picked cells, int64_t width,
                           const float* fade, float* out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + 4 <= w.rows; r += 4) {
    add_rows<Load, 4>(w.data + r * w.stride, w.stride, v, cells, width, fade + r,
                      out + r * out_stride, out_stride);
  }
  const int64_t rest = w.rows - r;  // each count at once: a value is loaded once for its rows
  const float* weights = w.data + r * w.stride;
  float* sums = out + r * out_stride;
  if (rest == 3) {
    add_rows<Load, 3>(weights, w.stride, v, cells, width, fade + r, sums, out_stride);
  } else if (rest == 2) {
    add_rows<Load, 2>(weights, w.stride, v, cells, width, fade + r, sums, out_stride);
  } else if (rest == 1) {
    add_rows<Load, 1>(weights, w.stride, v, cells, width, fade + r, sums, out_stride);
  }
}

// out[r] = fade[r] out[r] + sum over `cells` i of w[r][i] v[i]. `width`, the length of a row in
// floats, is a multiple of kLanes.
static inline void add_weighted(DType type, const Matrix& w, const Rows& v, Picked cells,
                                int64_t width, const float* fade, float* out, int64_t out_stride) {
  if (type == DType::kF32) return add_all<LoadF32>(w, v, cells, width, fade, out, out_stride);
  if (type == DType::kF16) return add_all<LoadF16>(w, v, cells, width, fade, out, out_stride);
  if (type == DType::kQ8_0) return add_all<LoadQ80>(w, v, cells, width, fade, out, out_stride);
  if (type == DType::kQ4_0) return add_all<LoadQ40>(w, v, cells, width, fade, out, out_stride);
  add_all<LoadBf16>(w, v, cells, width, fade, out, out_stride);
}

}  // namespace weft::WEFT_TARGET
