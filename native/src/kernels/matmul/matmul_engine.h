// What a product is of: weights, columns, and memory to compute it in.
#pragma once

#include "kernels/copy/copy_rows.h"
#include "quants/interleave.h"
#include "quants/levels.h"

namespace weft::WEFT_TARGET {

struct Weights {
  const char* data;    // row 0
  int64_t row_stride;  // of what is stored: a panel has 32 times as many bytes
  int64_t element_stride;
  DType type;
  int64_t k;    // elements of a row
  float scale;  // tensor_scale
  Layout layout = Layout::kRows;
};

// The bytes from row to row of a matrix of `w`, and from matrix to matrix, as it is stored.
static inline int64_t stored_row_stride(const Tensor& w) {
  return w.layout == Layout::kLevels ? level_row_bytes(w.type, w.ne[0]) : w.nb[1];
}
static inline int64_t stored_matrix_stride(const Tensor& w) {
  return w.layout == Layout::kLevels ? w.ne[1] * stored_row_stride(w) : w.nb[2];
}

// What is done to sums before they go to the result: the bias of their row, if there is one, is
// added, and they are limited to low..high; a NaN stays one.
struct Finish {
  const float* bias = nullptr;
  bool limits = false;
  float low = 0;
  float high = 0;
};

struct Columns {
  const char* const* x;  // k elements each
  float* const* out;     // column c of the result, row 0
  int64_t n;
  DType type;
  int64_t element_stride;
  const char* packed = nullptr;  // kPackedCodes or kPackedFloats, if they are made
  int64_t packed_step = 0;       // kPackedFloats: bytes from slab to slab
  const char* tables = nullptr;  // kLookupTables, if they are made
  Finish finish = {};            // only where the way finishes
};

// Weight rows that make one item of work.
inline constexpr int64_t kItemRows = 32;

// out[r] (+)= scale * values[r]
static inline void put_rows(const float* values, int64_t rows, float scale, bool add, float* out) {
  if (add) {
    for (int64_t r = 0; r < rows; ++r) out[r] += scale * values[r];
  } else {
    for (int64_t r = 0; r < rows; ++r) out[r] = scale * values[r];
  }
}

// Hands out a thread's scratch in cache lines; without a base it only counts.
class Arena {
 public:
  explicit Arena(char* base) : base_(base) {}
  template <typename T>
  T* take(int64_t n) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(n) * sizeof(T) + 63) / 64 * 64;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  size_t used() const { return used_; }
  char* rest() const { return base_ + used_; }

 private:
  char* base_;
  size_t used_ = 0;
};

}  // namespace weft::WEFT_TARGET
