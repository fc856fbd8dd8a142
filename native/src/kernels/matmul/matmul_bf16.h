// Products of bf16 weights with bf16 activations by the processor's own dot product.
#pragma once

#include "kernels/matmul/float_dots.h"
#include "kernels/matmul/panels_floats.h"

namespace weft::WEFT_TARGET {

struct Bf16Kernels {
  DotKernel dot;
  TileKernels tiles;  // a word is two neighbouring elements
  PanelKernels panels;
  PanelKernels half_panels;  // of f16: several columns take panels that were staged
  // `words` words of depth of a panel of f16, each two elements, rounded to pairs of bf16.
  void (*stage_halves)(const float* panel, int64_t words, float* to);
};

// nullptr where the target or this machine has none.
const Bf16Kernels* bf16_kernels();

}  // namespace weft::WEFT_TARGET
