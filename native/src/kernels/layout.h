// Predicates on shapes and strides for the checks of kernels.
#pragma once

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

static inline bool has_shape(const Tensor& t, int64_t n0, int64_t n1 = 1, int64_t n2 = 1,
                             int64_t n3 = 1) {
  return t.ne[0] == n0 && t.ne[1] == n1 && t.ne[2] == n2 && t.ne[3] == n3;
}

// Whether the tensor has no gaps between its elements; it may have any type.
static inline bool is_packed(const Tensor& t) {
  int64_t expected = element_size(t.type);
  for (int d = 0; d < 4; ++d) {
    if (t.ne[d] != 1 && t.nb[d] != expected) return false;
    expected *= t.ne[d];
  }
  return true;
}

static inline bool is_packed_f32(const Tensor& t) { return t.type == DType::kF32 && is_packed(t); }

// Whether the tensor is f32 and the elements of a row are adjacent; rows may be anywhere.
static inline bool is_f32_rows(const Tensor& t) {
  return t.type == DType::kF32 && (t.nb[0] == 4 || t.ne[0] <= 1);
}

// nullptr when result and source 0 have float types, otherwise why not.
static inline const char* check_floats(const Call& call) {
  const bool floats = is_float(call.dst.type) && is_float(call.src[0]->type);
  return floats ? nullptr : "needs f32, f16 or bf16 operands";
}

// nullptr when they also have the same shape.
static inline const char* check_float_map(const Call& call) {
  if (const char* why = check_floats(call)) return why;
  return same_shape(call.dst, *call.src[0]) ? nullptr : "result and source differ in shape";
}

// Whether number `d` of a slot is at least `least` and at most 2^31 - 1, so that products with
// sizes do not overflow.
template <typename Slot>
static inline bool is_count(const Call& call, Slot slot, int least, int d = 0) {
  const double n = call.number(slot, d);
  return n >= least && n <= 2147483647.0;
}

}  // namespace weft::WEFT_TARGET
