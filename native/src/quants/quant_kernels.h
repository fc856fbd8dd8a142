// The functions that a quantized weight type provides for the matrix kernels.
//
// They compute the same sums in three ways:
// - `dot`: some rows times one activation column, for few columns; both are read in place;
// - `columns`: an interleaved panel (or one of levels), read in place, times a few columns;
// - `pack` or `unpack`, then `tile`: a panel is unpacked into bytes and floats whose lanes are
// rows,
//   and multiplied with one run of columns after another, for prompts.
//
// All of them give the same bits on a target, so that a column does not depend on how many other
// columns there are. They add up the products of codes as integers over a group (or over a block
// that has one scale), which is exact in any order. Then they add, in the order of the groups and
// rounding once per operation,
//
//   sum += group * (scale * d)     and, with minima, sum += min * s
//
// with s from ActivationTile::sum. Where a block of 256 activations has one scale d, these sums
// start from 0 for each block and leave out d, and
//
//   sum += block * d
//
// On NEON and with vectors of 8 floats the K-quants and iq4_xs, whose scales and minima are whole
// numbers times one factor for the block, are added up as whole numbers over such a block:
//
//   sum += block * (factor * d)     and, with minima, sum += minima * (their factor * d)
//
// where the block is the sum of groups times whole scales. The scale of a whole tensor (i2_s) is
// multiplied last.
#pragma once

#include "kernels/kernel.h"
#include "quants/panel.h"

namespace weft::WEFT_TARGET {

inline constexpr int kMostFewColumns = 4;  // see QuantKernels::few_columns

struct QuantKernels {
  DType activation = DType::kF32;
  int groups = 1;  // groups per chunk
  int zero = 0;    // kZero of the format
  bool has_min = false;
  bool one_scale = false;   // a block of weights has one scale
  bool whole_sums = false;  // blocks are added up as whole numbers
  // The maximum number of columns for which panels are read as they are stored; more columns are
  // worth unpacking them.
  int few_columns = kMostFewColumns;
  bool wide_zero = false;  // ActivationTile::correction is one number on every target
  // out[r] = scale * (row r . x), for `rows` rows of n elements that are `stride` bytes apart.
  void (*dot)(const char* w, int64_t stride, int64_t rows, const void* x, int64_t n, float scale,
              float* out) = nullptr;

  // The functions below are nullptr where the target has no panels.

  // Unpacks n_chunks chunks, from first_chunk on, of `rows` rows at `w`; further rows of the panel
  // repeat the last one. `next` is the distance in bytes from each row to the bytes that will be
  // packed next, which are prefetched.
  void (*pack)(const char* w, int64_t stride, int64_t rows, int64_t first_chunk, int64_t n_chunks,
               int64_t next, const Panel& out) = nullptr;
  // The same for the panel at `w`, interleaved or of levels (levels.h), whichever the format has;
  // nullptr where it has neither.
  void (*unpack)(const char* w, int64_t first_chunk, int64_t n_chunks, const Panel& out) = nullptr;
  // out[column][row] = scale * the product of a panel with kTileSizes[variant] columns, for all
  // rows; with `add`, the sum so far in `out` is included. `x` is an array of ActivationTile of
  // that many columns, one per chunk.
  void (*tile[kTileVariants])(const Panel& w, const void* x, int64_t n_chunks, bool add,
                              float scale, float* const* out) = {};
  // out[column][row] = scale * that panel times kTileSizes[variant] columns; for few_columns.
  void (*columns[kTileVariants])(const char* w, const void* x, int64_t n_chunks, float scale,
                                 float* const* out) = {};
};

// The kernels of a weight type; `dot` is nullptr for types that have none.
QuantKernels& quant_kernels(DType type);

}  // namespace weft::WEFT_TARGET
