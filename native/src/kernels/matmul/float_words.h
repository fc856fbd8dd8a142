// Rows of any type as floats, or as the words that float kernels multiply.
#pragma once

#include "kernels/matmul/matmul_engine.h"
#include "kernels/simd/bytes.h"

namespace weft::WEFT_TARGET {

// Elements start..start+n of a row as floats.
static inline void load_row(DType type, int64_t element_stride, const char* row, int64_t start,
                            int64_t n, float* out) {
  if (is_float(type)) {
    load_floats(row + start * element_stride, type, element_stride, n, out);
  } else {
    table().type(type).to_float(row + start / unit_elements(type) * unit_bytes(type), out, n);
  }
}

static inline bool is_plain(const Columns& columns) {
  return columns.type == DType::kF32 && columns.element_stride == 4;
}

// n elements of 2 or 4 bytes, in vectors: a call of memcpy, or a string instruction, takes longer.
static inline void copy_elements(const char* from, int64_t size, int64_t n, float* to) {
  const int64_t whole = n * size / (4 * kLanes) * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    store(to + i, load_as<vf>(from + 4 * i));
  }
  auto* rest = reinterpret_cast<char*>(to + whole);
  for (int64_t i = 4 * whole; i < n * size; i += size, rest += size) {
    std::memcpy(rest, from + i, static_cast<size_t>(size));
  }
}

// Elements start..start+n of a row as words, and zeros that fill a vector; `decoded` has room for n
// floats.
static inline void load_words(DType type, int64_t element_stride, const char* row, int64_t start,
                              int64_t n, int64_t pair, float* decoded, float* words) {
  const int64_t filled = n / pair;
  for (int64_t i = filled; i < filled / kLanes * kLanes + kLanes; ++i) words[i] = 0.0f;
  const DType in_words = pair == 1 ? DType::kF32 : DType::kBF16;
  const int64_t size = element_size(in_words);
  if (type == in_words && element_stride == size) {
    copy_elements(row + start * size, size, n, words);
  } else if (pair == 1) {
    load_row(type, element_stride, row, start, n, words);
  } else {
    load_row(type, element_stride, row, start, n, decoded);
    table().type(DType::kBF16).from_float(decoded, words, n);
  }
}

}  // namespace weft::WEFT_TARGET
