// Products of quantized weights with activations of their companion type. `multiply`
// (matmul_engine.h) comes here when the types agree.
#pragma once

#include "kernels/matmul_engine.h"

namespace weft::WEFT_TARGET {

// Whether there is an integer product of these types.
bool is_integer_product(DType weights, DType columns);

// As multiply; k > 0.
void multiply_integers(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                       char* scratch);

// Scratch that multiply_integers needs for up to `columns.n` columns.
size_t multiply_integers_scratch(const Columns& columns, int64_t k);

}  // namespace weft::WEFT_TARGET
