// Products of ternary weights in the lookup layout: a table of partial sums for every three
// elements of a column, and a shuffle instead of three multiplications.
#pragma once

#include "kernels/matmul/product.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

// Up to this many columns are looked up; more are multiplied, from codes that are unpacked.
inline constexpr int64_t kFewLookups = 4;

// The tables of at most kFewLookups columns, in parts of the depth that stay in the cache for the
// rows of a chunk.
extern const SharedForm kLookupTables;

// A way (product.h), for whole panels.
void multiply_lookups(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                      char* scratch);
size_t multiply_lookups_scratch(int64_t n_columns, int64_t k);

// Chunks first..first+n of the panel at `w`, as codes to be multiplied.
void unpack_lookups(DType type, const char* w, int64_t first, int64_t n, const Panel& panel);

}  // namespace weft::WEFT_TARGET
