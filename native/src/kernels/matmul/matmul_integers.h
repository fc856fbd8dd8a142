// Products of quantized weights with activations of their companion type. `multiply`
// (matmul_engine.h) comes here when the types agree.
#pragma once

#include "kernels/matmul/matmul_engine.h"

namespace weft::WEFT_TARGET {

// Whether there is an integer product of these types.
bool is_integer_product(DType weights, DType columns);

// As multiply; k > 0.
void multiply_integers(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                       char* scratch);

// Scratch that multiply_integers needs for up to `columns.n` columns.
size_t multiply_integers_scratch(const Columns& columns, int64_t k, Layout layout);

// Whether so many columns are packed for such weights; that can be done once for all rows.
bool is_packed(const Weights& w, DType columns, int64_t n_columns);

// Columns that are packed at a time: whole runs on every target.
inline constexpr int64_t kPackUnit = 48;

// Whether so many columns become tables instead (matmul_lookup.h): also once for all rows.
bool is_looked_up(const Weights& w, int64_t n_columns);

// All columns packed, and where column number `first`, a multiple of kPackUnit, begins in it.
size_t packed_bytes(int64_t n_columns, int64_t k);
char* packed_column(char* packed, int64_t first, int64_t k);

// Packs these columns, at most kPackUnit of them, to `packed`.
void pack_all(const Weights& w, const Columns& columns, char* packed);

}  // namespace weft::WEFT_TARGET
