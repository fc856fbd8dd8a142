// Questions that checks ask about how a tensor lies in memory.
#pragma once

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

static inline bool has_shape(const Tensor& t, int64_t n0, int64_t n1 = 1, int64_t n2 = 1,
                             int64_t n3 = 1) {
  return t.ne[0] == n0 && t.ne[1] == n1 && t.ne[2] == n2 && t.ne[3] == n3;
}

// No gaps between elements, whatever the type.
static inline bool is_packed(const Tensor& t) {
  int64_t expected = element_size(t.type);
  for (int d = 0; d < 4; ++d) {
    if (t.ne[d] != 1 && t.nb[d] != expected) return false;
    expected *= t.ne[d];
  }
  return true;
}

static inline bool is_packed_f32(const Tensor& t) { return t.type == DType::kF32 && is_packed(t); }

// f32 with the elements of a row side by side; rows may lie anywhere.
static inline bool is_f32_rows(const Tensor& t) {
  return t.type == DType::kF32 && (t.nb[0] == 4 || t.ne[0] <= 1);
}

// Whether the d-th number of a slot is a whole number of at least `least` that sizes can be
// computed with.
template <typename Slot>
static inline bool is_count(const Call& call, Slot slot, int least, int d = 0) {
  const double n = call.number(slot, d);
  return n >= least && n <= 2147483647.0;
}

}  // namespace weft::WEFT_TARGET
