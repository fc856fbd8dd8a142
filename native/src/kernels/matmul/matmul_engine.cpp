// The choice between the ways to compute a product.
//
// A quantized weight with activations of its companion type is multiplied in integers
// (matmul_integers.cpp). Any other pair of types goes through floats, exactly decoded
// (matmul_floats.cpp).
#include "kernels/matmul/matmul_engine.h"

#include "kernels/matmul/matmul_floats.h"
#include "kernels/matmul/matmul_integers.h"
#include "quants/lookup_layout.h"

namespace weft::WEFT_TARGET {

void multiply(const Weights& w, int64_t begin, int64_t end, const Columns& columns, char* scratch) {
  if (columns.n == 0 || begin >= end) return;
  if (w.k == 0) {
    for (int64_t c = 0; c < columns.n; ++c) {
      std::memset(columns.out[c] + begin, 0, static_cast<size_t>(end - begin) * 4);
    }
  } else if (is_integer_product(w.type, columns.type)) {
    multiply_integers(w, begin, end, columns, scratch);
  } else {
    multiply_floats(w, begin, end, columns, scratch);
  }
}

size_t multiply_scratch(DType weights, const Columns& columns, int64_t k, Layout layout) {
  return is_integer_product(weights, columns.type) ? multiply_integers_scratch(columns, k, layout)
                                                   : multiply_floats_scratch(columns, k, layout);
}

const char* check_product(const Tensor& weights, const Tensor& columns, const Tensor& dst) {
  if (table().type(weights.type).to_float == nullptr) return "the weight type has no decoder";
  if (table().type(columns.type).to_float == nullptr || columns.type == DType::kI2_S) {
    return "the second source must be floats or quantized activations";
  }
  if (weights.layout == Layout::kInterleaved) {
    const bool taken = takes_float_panels(weights.type, columns.type) ||
                       is_integer_product(weights.type, columns.type);
    if (!taken || !table().type(weights.type).matmul_interleaved) {
      return "interleaved weights need activations of their companion type";
    }
  }
  if (weights.layout == Layout::kOrdered) {
    if (!takes_float_panels(weights.type, columns.type) ||
        !table().type(weights.type).matmul_interleaved) {
      return "only floats are added up in the order of panels";
    }
    if (weights.ne[1] % kItemRows != 0) return "that order is for whole panels of 32 rows";
  }
  if (weights.layout == Layout::kLevels) {
    if (!table().type(weights.type).matmul_levels ||
        !is_integer_product(weights.type, columns.type)) {
      return "weights in the levels layout need a codebook type and activations of its companion";
    }
    if (weights.ne[1] % 32 != 0) return "the levels layout is for whole panels of 32 rows";
  }
  if (weights.layout == Layout::kLookup) {
    if (lookup_block(weights.type) == 0) return "only ternary weights have the lookup layout";
    if (!is_integer_product(weights.type, columns.type)) {
      return "weights in the lookup layout need activations of their companion type";
    }
    if (weights.ne[2] * weights.ne[3] != 1) return "only one matrix may be in the lookup layout";
  }
  if (weights.ne[0] != columns.ne[0]) return "rows of the two sources differ in length";
  if (dst.type != DType::kF32 || dst.nb[0] != 4) return "the result must be f32 rows";
  if (weights.type == DType::kI2_S && !is_contiguous(weights)) {
    return "i2_s weights must be a whole tensor";
  }
  return nullptr;
}

}  // namespace weft::WEFT_TARGET
