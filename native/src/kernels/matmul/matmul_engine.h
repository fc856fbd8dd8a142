// Some weight rows times some columns, by the kernel that suits the types and the number of
// columns. MUL_MAT and MUL_MAT_ID cut their work into such products.
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
  const char* packed = nullptr;  // as pack_all or pack_floats leaves them, if they are packed
  int64_t packed_step = 0;       // of pack_floats: bytes from slab to slab
  const char* tables = nullptr;  // as make_tables leaves them, if they are looked up
  Finish finish = {};            // only where multiply_finishes
};

// Whether the layout is that of panels, or of rows that are multiplied as these are.
static inline bool is_in_panels(Layout layout) {
  return layout == Layout::kInterleaved || layout == Layout::kOrdered;
}

// Whether multiply finishes the results of such weights (their data does not count).
static inline bool multiply_finishes(const Weights& w) {
  return is_float(w.type) && is_in_panels(w.layout) && w.k > 0;
}

// out[c][r] = row r . column c, for rows begin..end.
void multiply(const Weights& w, int64_t begin, int64_t end, const Columns& columns, char* scratch);

// Scratch that multiply needs for up to `columns.n` columns.
size_t multiply_scratch(DType weights, const Columns& columns, int64_t k,
                        Layout layout = Layout::kRows);

// nullptr when multiply can take operands of these types, else why not.
const char* check_product(const Tensor& weights, const Tensor& columns, const Tensor& dst);

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
