// The function that CONV_2D_LAST applies to its results: the code of UNARY, on rows that are still
// in the first cache, so that a step of its own would give the same bits.
#pragma once

#include "kernels/elements.h"
#include "kernels/matmul/activations.h"

namespace weft::WEFT_TARGET {

// Applies a function to `width` channels of `n` rows, from `channel` on.
using RowsFunction = void (*)(float* const* rows, int64_t n, int64_t channel, int64_t width);

template <vf (*kFunction)(vf)>
static void on_rows(float* const* rows, int64_t n, int64_t channel, int64_t width) {
  for (int64_t i = 0; i < n; ++i) {
    float* row = rows[i] + channel;
    map(row, row, width, [](vf x) { return kFunction(x); });
  }
}

// Null for CLAMP.
static inline RowsFunction function_of(Activation function) {
  switch (function) {
    case Activation::kRelu:
      return on_rows<relu>;
    case Activation::kTanh:
      return on_rows<tanh>;
    case Activation::kSigmoid:
      return on_rows<sigmoid>;
    case Activation::kSilu:
      return on_rows<silu>;
    case Activation::kGelu:
      return on_rows<gelu>;
    case Activation::kGeluQuick:
      return on_rows<gelu_quick>;
    case Activation::kGeluErf:
      return on_rows<gelu_erf>;
    case Activation::kHardswish:
      return on_rows<hard_swish>;
    case Activation::kHardsigmoid:
      return on_rows<hard_sigmoid>;
    default:
      return nullptr;
  }
}

}  // namespace weft::WEFT_TARGET
