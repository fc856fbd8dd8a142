// What a quantized weight type offers to the matrix kernels.
//
// Two shapes of the same sum:
// - `dot`: some rows times one activation row, reading both as they are stored (decoding);
// - `pack` and `tile`: kPanelRows rows are unpacked into a panel whose vector lanes are rows, which
//   is then multiplied with tiles of kTileColumns activation rows (prompts).
#pragma once

#include "kernels/kernel.h"
#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

inline constexpr int kPanelRows = kLanes;

#if defined(__AVX512VNNI__)
inline constexpr int kTileColumns = 16;
#else
inline constexpr int kTileColumns = 4;
#endif
inline constexpr int kTileVariants = 3;  // tiles of kTileColumns, a half, a quarter

// 32 elements of kTileColumns activation rows.
struct ActivationTile {
  int8_t q[kTileColumns][32];
  float d[kTileColumns];
  // per group of the format (one or two): -kZero * sum(q), or d * sum(q) when there are minima
  union {
    int32_t correction[2][kTileColumns];
    float d_sum[2][kTileColumns];
  };
};

// kPanelRows rows, chunk by chunk.
struct Panel {
  uint8_t* q;    // [chunk][8][kPanelRows][4]: four neighbouring codes of each row
  float* scale;  // [chunk][groups of a chunk][kPanelRows]
  float* min;    // as scale; only when the format has minima
};

struct QuantKernels {
  DType activation = DType::kF32;
  int groups = 1;  // of a chunk
  int zero = 0;    // what ActivationTile.correction multiplies
  bool has_min = false;
  // out[r] = scale * row r . x, for rows `stride` bytes apart
  void (*dot)(const char* w, int64_t stride, int64_t rows, const void* x, int64_t n, float scale,
              float* out) = nullptr;
  // Rows beyond `rows` repeat the last one. `next`: distance in bytes from each row to what will be
  // packed after it. nullptr: this target has no panels.
  void (*pack)(const char* w, int64_t stride, int64_t rows, int64_t first_chunk, int64_t n_chunks,
               float scale, int64_t next, const Panel& out) = nullptr;
  // out[column][row], for kTileColumns >> variant columns
  void (*tile[kTileVariants])(const Panel& w, const ActivationTile* x, int64_t n_chunks,
                              float* out) = {};
};

// The kernels of a weight type; `dot` is nullptr for types without.
QuantKernels& quant_kernels(DType type);

}  // namespace weft::WEFT_TARGET
