// A common view of ExecuTorch's tensors and weft's, and copies between them.
#pragma once

#include <executorch/runtime/core/exec_aten/exec_aten.h>

#include <cstdint>

#include "kernels/kernel.h"

namespace weft::et {

enum class Element : int8_t { kF32, kF16, kBF16, kF64, kI8, kI16, kI32, kI64, kU8, kBool, kNone };

Element element_of(executorch::aten::ScalarType type);
Element element_of(DType type);
int64_t bytes_of(Element element);

// Elements in memory; the outermost size comes first.
struct View {
  static constexpr int kMaxDims = 16;

  char* data = nullptr;
  Element element = Element::kNone;
  int n = 0;
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];  // bytes

  int64_t count() const;
  // Whether the elements are in order and without gaps.
  bool is_dense() const;
};

// The view of a tensor, which has at most View::kMaxDims sizes.
View view_of(const executorch::aten::Tensor& tensor);
View view_of(const Tensor& tensor);

// Copies elements in order and converts them; integers saturate. Both views have the same number of
// elements.
void copy(const View& from, const View& to);

}  // namespace weft::et
