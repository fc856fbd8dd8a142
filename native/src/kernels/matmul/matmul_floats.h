// Products of float weights, and of any weights decoded to floats.
#pragma once

#include "kernels/matmul/product.h"

namespace weft::WEFT_TARGET {

// Ways of such products (product.h): rows as they are stored, tiles of rows, panels, and rows that
// are added up in the order of panels.
void multiply_float_dots(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                         char* scratch);
void multiply_float_tiles(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                          char* scratch);
void multiply_panel_column(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                           char* scratch);
void multiply_float_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                           char* scratch);
void multiply_ordered_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                             char* scratch);

// The maximum number of columns of the first way of rows and of panels.
int64_t few_float_dots(DType weights);
int64_t one_column(DType weights);

// Whether weights of this type in panels are multiplied with such columns.
bool takes_float_panels(DType weights, DType columns);

size_t multiply_floats_scratch(const Columns& columns, int64_t k, Layout layout);

// Columns as words of floats or of bf16 pairs, a slab of all after the other.
extern const SharedForm kPackedFloats;

// Columns are packed for the whole depth when they fit in L2 that way.
inline constexpr int64_t kPackedBytes = 1 << 20;

// Depth to which columns are packed: all of `depth`, or `step`.
static inline int64_t packed_depth(int64_t tiles, int64_t tile_bytes, int64_t depth, int64_t step) {
  const int64_t steps = (depth + step - 1) / step;
  return tiles * tile_bytes * steps <= kPackedBytes ? steps * step : step;
}

}  // namespace weft::WEFT_TARGET
