// Helpers that most kernels share: rows of a tensor, and rows as floats whatever their type.
#pragma once

#include "kernels/kernel.h"
#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

// The number of rows (the product of all sizes but ne[0]) and of elements of a tensor.
static inline int64_t n_rows(const Tensor& t) { return t.ne[1] * t.ne[2] * t.ne[3]; }
static inline int64_t n_elements(const Tensor& t) { return t.ne[0] * n_rows(t); }

struct Index {
  int64_t i1, i2, i3;
};

// The three indices of row number `row` of `t`.
static inline Index row_index(const Tensor& t, int64_t row) {
  const int64_t i3 = row / (t.ne[1] * t.ne[2]);
  const int64_t rest = row - i3 * t.ne[1] * t.ne[2];
  const int64_t i2 = rest / t.ne[1];
  return {rest - i2 * t.ne[1], i2, i3};
}

static inline char* row_data(const Tensor& t, Index i) {
  return t.data + i.i1 * t.nb[1] + i.i2 * t.nb[2] + i.i3 * t.nb[3];
}

// The row of `t` that is used for row `i` of a larger tensor: each index wraps around.
static inline char* broadcast_row(const Tensor& t, Index i) {
  return row_data(t, {i.i1 % t.ne[1], i.i2 % t.ne[2], i.i3 % t.ne[3]});
}

static inline bool same_shape(const Tensor& a, const Tensor& b) {
  return a.ne[0] == b.ne[0] && a.ne[1] == b.ne[1] && a.ne[2] == b.ne[2] && a.ne[3] == b.ne[3];
}

static inline bool is_float(DType t) {
  return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16;
}

static inline bool is_index(DType t) { return t == DType::kI32 || t == DType::kI64; }

static inline int64_t element_size(DType t) { return dtype_info(t).block_size; }

// The element of an index type at `p`.
static inline int64_t read_index(const char* p, DType type) {
  if (type == DType::kI64) {
    int64_t index;
    std::memcpy(&index, p, sizeof index);
    return index;
  }
  int32_t index;
  std::memcpy(&index, p, sizeof index);
  return index;
}

// Reads the element of a float type at `p`; store_element writes one.
static inline float load_element(const char* p, DType type) {
  if (type == DType::kF32) {
    float f;
    std::memcpy(&f, p, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, p, 2);
  return type == DType::kF16 ? half_to_float(h) : bf16_to_float(h);
}

static inline void store_element(char* p, DType type, float x) {
  if (type == DType::kF32) {
    std::memcpy(p, &x, 4);
    return;
  }
  const uint16_t h = type == DType::kF16 ? float_to_half(x) : float_to_bf16(x);
  std::memcpy(p, &h, 2);
}

// Converts `n` elements of a float type, `stride` bytes apart, to contiguous floats.
static inline void load_floats(const char* p, DType type, int64_t stride, int64_t n, float* out) {
  if (stride == element_size(type)) {
    int64_t i = 0;
    if (type == DType::kF32) {
      std::memcpy(out, p, static_cast<size_t>(n) * 4);
      return;
    }
    const auto* h = reinterpret_cast<const uint16_t*>(p);
    if (type == DType::kF16) {
      for (; i + kLanes <= n; i += kLanes) store(out + i, load_half(h + i));
    } else {
      for (; i + kLanes <= n; i += kLanes) store(out + i, load_bf16(h + i));
    }
    for (; i < n; ++i) out[i] = load_element(p + 2 * i, type);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = load_element(p + i * stride, type);
}

// Converts `n` contiguous floats to elements of a float type, `stride` bytes apart.
static inline void store_floats(const float* in, int64_t n, char* p, DType type, int64_t stride) {
  if (type == DType::kF32 && stride == 4) {
    std::memcpy(p, in, static_cast<size_t>(n) * 4);
    return;
  }
  int64_t i = 0;
  if (stride == 2 && type != DType::kF32) {
    auto* h = reinterpret_cast<uint16_t*>(p);
    if (type == DType::kF16) {
      for (; i + kLanes <= n; i += kLanes) store_half(h + i, load(in + i));
    } else {
      for (; i + kLanes <= n; i += kLanes) store_bf16(h + i, load(in + i));
    }
  }
  for (; i < n; ++i) store_element(p + i * stride, type, in[i]);
}

// Steps of fewer elements are not worth a second thread.
inline constexpr int64_t kSmallWork = 4096;

// The number of rows that make a chunk worth a thread.
static inline int64_t row_grain(int64_t row_elements) {
  return max64(1, kSmallWork / max64(1, row_elements));
}

}  // namespace weft::WEFT_TARGET
