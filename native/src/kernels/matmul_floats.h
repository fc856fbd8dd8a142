// Products of float weights, and of any weights decoded to floats. `multiply` (matmul_engine.h)
// comes here when the types have no integer product.
#pragma once

#include "kernels/matmul_engine.h"

namespace weft::WEFT_TARGET {

// As multiply; k > 0.
void multiply_floats(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                     char* scratch);

// Scratch that multiply_floats needs for up to `columns.n` columns.
size_t multiply_floats_scratch(const Columns& columns, int64_t k);

// Columns are packed for the whole depth when they fit in L2 that way.
inline constexpr int64_t kPackedBytes = 1 << 20;

// Depth to which columns are packed: all of `depth`, or `step`.
static inline int64_t packed_depth(int64_t tiles, int64_t tile_bytes, int64_t depth, int64_t step) {
  const int64_t steps = (depth + step - 1) / step;
  return tiles * tile_bytes * steps <= kPackedBytes ? steps * step : step;
}

}  // namespace weft::WEFT_TARGET
