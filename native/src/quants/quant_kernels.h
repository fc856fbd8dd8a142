// What a quantized weight type offers to the matrix kernels.
//
// Three shapes of the same sum:
// - `dot`: some rows times one activation row, both as they are stored (few columns);
// - `columns`: a panel of interleaved rows times a few columns, read as it is stored;
// - `pack` or `unpack`, then `tile`: a panel becomes bytes and floats whose lanes are rows, which
//   are then multiplied with one run of columns after another (prompts).
//
// All that a target has give the same bits, so that a column does not depend on how many there are
// beside it. Products of codes are added up as integers over a group (a block, where it has one
// scale), which is exact in any order. Then, in the order of the groups and rounding once each:
//
//   sum += group * (scale * d)     and, after each, sum += min * s
//
// where s is what a minimum is multiplied with (ActivationTile). Where activations have one scale d
// for a block of 256 elements, these sums begin anew with each block, without d, and
//
//   sum += block * d
//
// The scale of a whole tensor (i2_s) is multiplied last.
#pragma once

#include "kernels/kernel.h"
#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

// Weight rows of a panel: of an interleaved one as of an unpacked one.
inline constexpr int kPanelRows = 32;

// Columns that are multiplied at a time: as many as the registers hold sums for, or, for the last
// ones of a run, the next of these sizes.
#if defined(__AVX512VNNI__)
inline constexpr int kTileColumns = 6;
inline constexpr int kTileSizes[] = {1, 2, 4, 6};
inline constexpr int64_t kCodeBytes = 1;  // of a code in a panel, at most
#else
inline constexpr int kTileColumns = 4;
inline constexpr int kTileSizes[] = {1, 2, 4};
inline constexpr int64_t kCodeBytes = 2;
#endif
inline constexpr int kTileVariants = sizeof kTileSizes / sizeof kTileSizes[0];

// The variant for `n` columns, at most kTileColumns.
static inline int tile_variant(int64_t n) {
  int variant = 0;
  while (kTileSizes[variant] < n) ++variant;
  return variant;
}

// 32 elements of kColumns activation rows.
template <int kColumns>
struct ActivationTile {
  int8_t q[kColumns][32];
  float d[kColumns];
  // per group of the format (one or two): -kZero * sum(q), with AVX2 as two 16-bit numbers (of the
  // codes at places 0 1, 4 5, ... and of the others: see lane_dots.h); or, when there are minima,
  // sum(q), times d unless d serves a whole block. A format with one scale a block has the block's
  // sum in its first tile.
  union {
    int32_t correction[2][kColumns];
    float sum[2][kColumns];
  };
};
static_assert(sizeof(ActivationTile<4>) == 4 * sizeof(ActivationTile<1>));
inline constexpr int64_t kTileBytes = sizeof(ActivationTile<1>);  // of a column

// Panels are at most this deep.
inline constexpr int64_t kChunksDeep = 16;

// kPanelRows rows, chunk by chunk.
struct Panel {
  // [chunk][8][kPanelRows][4]: four neighbouring codes of each row. With AVX2, codes of more than
  // seven bits as signed 16-bit numbers, [chunk][group][2][8 / groups][kPanelRows][2]: codes 0 and
  // 2 of each four, then 1 and 3.
  uint8_t* q;
  float* scale;  // [chunk][groups of a chunk][kPanelRows]
  float* min;    // as scale; only when the format has minima
};

struct QuantKernels {
  DType activation = DType::kF32;
  int groups = 1;  // of a chunk
  int zero = 0;    // what ActivationTile.correction multiplies
  bool has_min = false;
  bool one_scale = false;  // of a block of weights
  // out[r] = scale * row r . x, for rows `stride` bytes apart
  void (*dot)(const char* w, int64_t stride, int64_t rows, const void* x, int64_t n, float scale,
              float* out) = nullptr;

  // The rest is nullptr where the target has no panels.

  // Rows beyond `rows` repeat the last one. `next`: distance in bytes from each row to what will be
  // packed after it.
  void (*pack)(const char* w, int64_t stride, int64_t rows, int64_t first_chunk, int64_t n_chunks,
               int64_t next, const Panel& out) = nullptr;
  // The same from the interleaved panel at `w`; nullptr: the format has no interleaved kernels.
  void (*unpack)(const char* w, int64_t first_chunk, int64_t n_chunks, const Panel& out) = nullptr;
  // out[column][row] = scale * the product of a panel with kTileSizes[variant] columns, for all
  // rows; what is there is the sum so far when `add`. `x`: ActivationTile of that many columns, one
  // for each chunk.
  void (*tile[kTileVariants])(const Panel& w, const void* x, int64_t n_chunks, bool add,
                              float scale, float* const* out) = {};
  // out[column][row] = scale * the interleaved panel at `w` times kTileSizes[variant] columns.
  void (*columns[kTileVariants])(const char* w, const void* x, int64_t n_chunks, float scale,
                                 float* const* out) = {};
};

// The kernels of a weight type; `dot` is nullptr for types without.
QuantKernels& quant_kernels(DType type);

}  // namespace weft::WEFT_TARGET
