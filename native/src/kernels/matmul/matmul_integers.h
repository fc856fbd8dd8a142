// Products of quantized weights with activations of their companion type.
#pragma once

#include "kernels/matmul/product.h"

namespace weft::WEFT_TARGET {

// Whether there is an integer product of these types.
bool is_integer_product(DType weights, DType columns);

// Ways of such products (product.h): rows as they are stored, panels as they are stored, and panels
// of byte codes, which are unpacked or made of rows on the way.
void multiply_dots(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                   char* scratch);
void multiply_stored_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                            char* scratch);
void multiply_tiles(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                    char* scratch);

// The maximum number of columns for rows, panels and tables as they are stored.
int64_t few_dots(DType weights);
int64_t few_panels(DType weights);
int64_t few_lookups(DType weights);

size_t multiply_integers_scratch(const Columns& columns, int64_t k, Layout layout);

// Columns as tiles of codes.
extern const SharedForm kPackedCodes;

// Whether columns are so many elements that threads share them.
bool is_worth_sharing(const Weights& w, const Columns& columns);

}  // namespace weft::WEFT_TARGET
