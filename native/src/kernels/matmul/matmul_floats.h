// Products of float weights, and of any weights decoded to floats. `multiply` (matmul_engine.h)
// comes here when the types have no integer product.
#pragma once

#include "kernels/matmul/matmul_engine.h"

namespace weft::WEFT_TARGET {

// As multiply; k > 0.
void multiply_floats(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                     char* scratch);

// Whether weights of this type in panels are multiplied with such columns.
bool takes_float_panels(DType weights, DType columns);

// Scratch that multiply_floats needs for up to `columns.n` columns.
size_t multiply_floats_scratch(const Columns& columns, int64_t k, Layout layout);

// Whether so many columns (only their type and stride count) are packed for such weights; that can
// be done once for all rows.
bool are_floats_packed(const Weights& w, const Columns& columns);

// All columns packed: bytes of one column in a slab, and the slabs of a column, at most.
size_t packed_float_bytes();
int64_t packed_float_slabs(int64_t k);

// Packs these columns to `packed`, and what is deeper than a slab `step` bytes further on.
void pack_floats(const Weights& w, const Columns& columns, int64_t step, char* packed);

// Columns are packed for the whole depth when they fit in L2 that way.
inline constexpr int64_t kPackedBytes = 1 << 20;

// Depth to which columns are packed: all of `depth`, or `step`.
static inline int64_t packed_depth(int64_t tiles, int64_t tile_bytes, int64_t depth, int64_t step) {
  const int64_t steps = (depth + step - 1) / step;
  return tiles * tile_bytes * steps <= kPackedBytes ? steps * step : step;
}

}  // namespace weft::WEFT_TARGET
