// Products of float weights in panels (quants/interleave.h): a panel has a word of each of its 32
// rows after another, so lanes are rows, and nothing is added up across them. A word is a float, or
// two 16-bit floats, which are multiplied as a pair or become floats first (panels_halves.h).
//
// A result is the sum of its products by ascending depth, one fused multiply-add after the other,
// whatever is multiplied together: sums that a part of the depth leaves in the result are taken up
// from there by the next one.
#pragma once

#include <utility>

#include "kernels/matmul/activations.h"
#include "kernels/matmul/matmul_engine.h"
#include "kernels/simd/rows_ahead.h"
#include "quants/interleave.h"

namespace weft::WEFT_TARGET {

// Sums of a tile, kTileVectors vectors of rows times kPanelColumns columns, fill most registers.
// Whole panels at a time where they can be: lines are read one after the other.
inline constexpr int kTileVectors = kLanes == 8 ? 4 : 2;
// Columns of a panel. A set of the first-level cache bounds their number: columns that lie a page
// apart share a set.
inline constexpr int kPanelColumns = kLanes == 16 ? 8 : kLanes == 8 ? 3 : 4;
static_assert(kPanelRows % (kTileVectors * kLanes) == 0);

// Words of depth that are multiplied at a time: a panel's stay in the second-level cache for all
// columns.
inline constexpr int64_t kPanelDepth = 1024;

// A word of a column in all lanes, and what is added for it and words of rows.
struct FloatWords {
  static constexpr int64_t kColumnWords = 1;
  static inline vf all(const float* x) { return splat(*x); }
  static inline vf add(vf acc, vf rows, vf x) { return fma(rows, x, acc); }
};

// Words of depth between two steps of what is read ahead.
inline constexpr int64_t kAheadWords = 64;

// What is worth reading ahead for: with fewer groups of columns, memory is what all wait for, and
// processors read less of a panel ahead by themselves.
inline constexpr int64_t kAheadGroups = 4;
inline constexpr int64_t kLeastAhead = 4 * kAheadWords;

// Some words of depth of a panel, and of columns `stride` words apart. `begins`: there are no sums
// in the result yet. `finish`: of the last words of depth, else empty. `ahead`: the panel after, or
// nullptr.
struct PanelPart {
  const float* w;
  const float* x;
  int64_t stride;
  int64_t depth;
  bool begins;
  Finish finish;
  RowsAhead<2>* ahead = nullptr;
};

// Sums of rows from `row` on, as they go to the result.
static inline vf finished(const Finish& finish, vf sum, int64_t row) {
  if (finish.bias != nullptr) sum = sum + load(finish.bias + row);
  return finish.limits ? limit(sum, splat(finish.low), splat(finish.high)) : sum;
}

// The same for kColumns columns of kVectors vectors. What is asked for is asked once, not for each.
template <int kColumns, int kVectors>
static inline void finish_sums(const Finish& finish, vf (&acc)[kColumns][kVectors], int64_t row) {
  if (finish.bias != nullptr) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const vf bias = load(finish.bias + row + v * kLanes);
#pragma GCC unroll 12
      for (int c = 0; c < kColumns; ++c) acc[c][v] = acc[c][v] + bias;
    }
  }
  if (!finish.limits) return;
  const vf low = splat(finish.low), high = splat(finish.high);
#pragma GCC unroll 12
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[c][v] = limit(acc[c][v], low, high);
  }
}

// kColumns columns of a result: row 0 of the panel of each.
template <class Words, int kColumns>
static void multiply_panel(const PanelPart& part, float* const* out, int64_t row) {
  constexpr int kVectors = kTileVectors;
  for (int64_t r = 0; r < kPanelRows; r += kVectors * kLanes) {
    vf acc[kColumns][kVectors];
#pragma GCC unroll 12
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        acc[c][v] = part.begins ? vf{} : load(out[c] + row + r + v * kLanes);
      }
    }
    const float* w = part.w + r;
    const float* x = part.x;
    for (const float* end = x + part.depth; x < end;) {
      const float* stop = end;
      if (part.ahead != nullptr) {
        part.ahead->step();
        if (end - x > kAheadWords) stop = x + kAheadWords;
      }
      for (; x < stop; ++x, w += kPanelRows) {
        vf rows[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) rows[v] = load(w + v * kLanes);
#pragma GCC unroll 12
        for (int c = 0; c < kColumns; ++c) {
          const vf factor = Words::all(x + c * part.stride);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) acc[c][v] = Words::add(acc[c][v], rows[v], factor);
        }
      }
    }
    finish_sums(part.finish, acc, row + r);
#pragma GCC unroll 12
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(out[c] + row + r + v * kLanes, acc[c][v]);
    }
  }
}

template <class Words, int... kColumns>
static void multiply_panel(int columns, const PanelPart& part, float* const* out, int64_t row,
                           std::integer_sequence<int, kColumns...>) {
  using Kernel = void (*)(const PanelPart&, float* const*, int64_t);
  static constexpr Kernel kernels[] = {multiply_panel<Words, kColumns + 1>...};
  kernels[columns - 1](part, out, row);
}

static inline int64_t column_groups(int64_t n) { return (n + kPanelColumns - 1) / kPanelColumns; }

// `n` columns, in groups as even as they can be: a single one would wait for its sums.
template <class Words>
static void multiply_panel(PanelPart part, int64_t n, float* const* out, int64_t row) {
  int64_t groups = column_groups(n);
  for (; groups > 0; --groups) {
    const int64_t columns = (n + groups - 1) / groups;
    multiply_panel<Words>(static_cast<int>(columns), part, out, row,
                          std::make_integer_sequence<int, kPanelColumns>());
    part.x += columns * part.stride;
    out += columns;
    n -= columns;
  }
}

// One column: reading memory. kPanels panels, which follow each other, are taken at a time so that
// no sum is waited for; each is read in order, which processors see by themselves.
template <class Words, int kPanels>
static void multiply_column(const float* w, const float* x, int64_t depth, const Finish& finish,
                            float* out, int64_t row) {
  constexpr int kVectors = static_cast<int>(kPanelRows) / kLanes;
  // more sums than registers: the halves of a panel after each other
  constexpr int kAtOnce = kVectors > 4 ? 4 : kVectors;
  for (int first = 0; first < kVectors; first += kAtOnce) {
    vf acc[kPanels][kAtOnce] = {};
    for (int64_t k = 0; k < depth; ++k) {
      const auto factor = Words::all(x + k * Words::kColumnWords);
#pragma GCC unroll 2
      for (int p = 0; p < kPanels; ++p) {
        const float* row = w + (p * depth + k) * kPanelRows;
#pragma GCC unroll 4
        for (int v = 0; v < kAtOnce; ++v) {
          acc[p][v] = Words::add(acc[p][v], load(row + (first + v) * kLanes), factor);
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) {
        const int64_t at = row + p * kPanelRows + (first + v) * kLanes;
        store(out + at, finished(finish, acc[p][v], at));
      }
    }
  }
}

// The kernels of a kind of words. `columns` multiplies any number of them, `column` a single one by
// one panel or two.
struct PanelKernels {
  void (*columns)(PanelPart part, int64_t n, float* const* out, int64_t row);
  void (*column[2])(const float* w, const float* x, int64_t depth, const Finish& finish, float* out,
                    int64_t row);
};

template <class Words, class ColumnWords = Words>
static PanelKernels panel_kernels() {
  return {multiply_panel<Words>,
          {multiply_column<ColumnWords, 1>, multiply_column<ColumnWords, 2>}};
}

}  // namespace weft::WEFT_TARGET
