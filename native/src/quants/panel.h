// An unpacked panel of weights, and tiles of activations that it is multiplied with.
#pragma once

#include "kernels/kernel.h"
#include "kernels/simd/bytes.h"
#include "kernels/simd/quads.h"
#include "kernels/simd/stream.h"
#include "kernels/simd/tiles.h"

namespace weft::WEFT_TARGET {

// The number of weight rows in a panel, interleaved or unpacked.
inline constexpr int kPanelRows = 32;

// The number of columns that are multiplied together: as many as there are registers for their
// sums, or as a tile of the processor has rows. The last columns of a run take the smallest of
// these sizes that holds them.
inline constexpr int kTileColumns = kTiles ? kMostTileRows : kLanes == 16 ? 6 : 4;
inline constexpr int kTileSizes[] = {1, 2, 4, kTiles ? 8 : 6, kMostTileRows};
inline constexpr int kTileVariants = kTiles ? 5 : kLanes == 16 ? 4 : 3;

inline constexpr int64_t kCodeBytes = kWholeDots ? 1 : 2;  // of a code in a panel, at most

// The index in kTileSizes for `n` columns; n is at most kTileColumns.
static inline int tile_variant(int64_t n) {
  int variant = 0;
  while (kTileSizes[variant] < n) ++variant;
  return variant;
}

// 32 elements of kColumns activation rows. With kMatrixDots, tiles of two columns and
// more have eight codes of each column in turns.
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
  TileUse* tiles = nullptr;  // of the thread, on targets that have them
};

// Asks for the `part`th of `n_parts` parts of what is ahead.
static inline void fetch_ahead(const Panel& panel, int64_t part, int64_t n_parts) {
  keep_prefetches();
  const int64_t lines = (panel.ahead_bytes + 63) / 64;
  const int64_t end = lines * (part + 1) / n_parts;
  for (int64_t line = lines * part / n_parts; line < end; ++line) {
    __builtin_prefetch(panel.ahead + line * 64, 0, 2);
  }
}

// From row to row of a word of a panel, in bytes; from word to word; and where a row begins. NEON
// has the words of eight rows behind each other, which it loads four vectors at a time.
inline constexpr int kRowBytes = kMatrixDots ? 8 : 4;
inline constexpr int kWordStep = 4 * (kLaneDots ? 8 : kPanelRows);
static inline int panel_place(int row) {
  return kLaneDots ? row / 8 * 8 * kWordStep + row % 8 * kRowBytes : row * kRowBytes;
}

// Puts eight words of a vector of rows in pairs, as matrices take them: two words of a row, then
// two of the next row.
static inline void put_pairs(const vi (&words)[8], uint8_t* q) {
#pragma GCC unroll 4
  for (int j = 0; j < 8; j += 2) {
    store_as(q + j * kWordStep, low_pairs(words[j], words[j + 1]));
    store_as(q + j * kWordStep + 16, high_pairs(words[j], words[j + 1]));
  }
}

// Puts eight words of a chunk where the panel has them for some of its rows, the first at `q`.
template <typename V>
static inline void put_bytes(const V (&words)[8], uint8_t* q) {
  if constexpr (!kMatrixDots) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) store_as(q + j * kWordStep, words[j]);
  } else if constexpr (sizeof(V) == sizeof(vi)) {
    put_pairs(words, q);
  } else {
    vi part[2][8];
    for (int j = 0; j < 8; ++j) {
      part[0][j] = load_as<vi>(&words[j]);
      part[1][j] = load_as<vi>(reinterpret_cast<const char*>(&words[j]) + sizeof(vi));
    }
    for (int i = 0; i < 2; ++i) put_pairs(part[i], q + i * 32);
  }
}

}  // namespace weft::WEFT_TARGET
