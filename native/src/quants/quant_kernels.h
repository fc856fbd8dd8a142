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
#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

// The number of weight rows in a panel, interleaved or unpacked.
inline constexpr int kPanelRows = 32;

// The number of columns that are multiplied together: as many as there are registers for their
// sums. The last columns of a run take the smallest of these sizes that holds them.
#if defined(__AVX512VNNI__)
inline constexpr int kTileColumns = 6;
inline constexpr int kTileSizes[] = {1, 2, 4, 6};
#else
inline constexpr int kTileColumns = 4;
inline constexpr int kTileSizes[] = {1, 2, 4};
#endif
#if defined(WEFT_VNNI) || defined(WEFT_NEON)
inline constexpr int64_t kCodeBytes = 1;  // of a code in a panel, at most
#else
inline constexpr int64_t kCodeBytes = 2;
#endif
inline constexpr int kTileVariants = sizeof kTileSizes / sizeof kTileSizes[0];

// The index in kTileSizes for `n` columns; n is at most kTileColumns.
static inline int tile_variant(int64_t n) {
  int variant = 0;
  while (kTileSizes[variant] < n) ++variant;
  return variant;
}

inline constexpr int kMostFewColumns = 4;  // see QuantKernels::few_columns

// Whether panels are multiplied as matrices, of two rows and two columns.
#if defined(WEFT_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
inline constexpr bool kMatrices = true;
#else
inline constexpr bool kMatrices = false;
#endif

// 32 elements of kColumns activation rows. Where panels are multiplied as matrices, their tiles of
// two columns and more have eight codes of each column in turns.
template <int kColumns>
struct ActivationTile {
  int8_t q[kColumns][32];
  float d[kColumns];
  // For each of the one or two groups of the format: `correction` is -kZero * sum(q), with AVX2 as
  // two 16-bit numbers (the sum over the codes at places 0 1, 4 5, ... and over the others: see
  // lane_dots.h) where sums of codes fit them. With minima it is `sum`: sum(q) * d, or just sum(q)
  // where d belongs to a block of 256. Where blocks are added up as whole numbers, correction[0]
  // has sum(q) of two groups as 16-bit numbers: those of this chunk or, with one group per chunk,
  // of this chunk and the next, in every other chunk. On NEON it has bytes of sum(q) of four groups
  // instead: chunk after chunk their low seven bits, then what is above these. For a format with
  // one scale per block, the first tile of a block has the correction of the whole block.
  union {
    int32_t correction[2][kColumns];
    float sum[2][kColumns];
  };
};
static_assert(sizeof(ActivationTile<4>) == 4 * sizeof(ActivationTile<1>));
inline constexpr int64_t kTileBytes = sizeof(ActivationTile<1>);  // bytes per column

// A panel has at most this many chunks.
inline constexpr int64_t kChunksDeep = 16;

// An unpacked panel of kPanelRows rows, chunk by chunk. For each chunk, q holds
//
//     elements 0..3 of row 0 | of row 1 | ... of row 31
//     elements 4..7 of row 0 | of row 1 | ... of row 31
//     ...
//     elements 28..31 of row 0 | ... of row 31
//
// With AVX2, codes of more than seven bits are signed 16-bit numbers: for each group first the
// elements 0 and 2 of each four, then 1 and 3.
struct Panel {
  // [chunk][8][kPanelRows][4]; 16-bit codes: [chunk][group][2][8 / groups][kPanelRows][2]
  uint8_t* q;
  float* scale;  // [chunk][groups per chunk][kPanelRows]
  float* min;    // the same shape; only for formats with minima
  // Where blocks are added up as whole numbers, `scale` has whole scales instead, as lane_steps.h
  // gives them, `min` two minima of 16 bits for each two groups (on NEON four bytes for each four),
  // and these are their factors:
  float* d = nullptr;      // [block][kPanelRows]
  float* low_d = nullptr;  // the same
  // Memory that is asked for while the panel is multiplied: what will be unpacked next. Asked for
  // while it is unpacked, it would not come in the meantime.
  const char* ahead = nullptr;
  int64_t ahead_bytes = 0;
};

struct QuantKernels {
  DType activation = DType::kF32;
  int groups = 1;  // groups per chunk
  int zero = 0;    // kZero of the format
  bool has_min = false;
  bool one_scale = false;   // a block of weights has one scale
  bool whole_sums = false;  // blocks are added up as whole numbers
  // Up to so many columns panels are read as they are stored; more are worth unpacking them.
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
