// Helpers for kernels that copy: they move or convert pieces of rows. A unit is an element of a
// plain type or a block of a block type.
#pragma once

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

const KernelTable& table();

static inline int64_t unit_elements(DType t) { return dtype_info(t).block; }
static inline int64_t unit_bytes(DType t) { return dtype_info(t).block_size; }
static inline int64_t row_units(const Tensor& t) { return t.ne[0] / unit_elements(t.type); }

// Whether the tensor has no gaps between its elements.
static inline bool is_contiguous(const Tensor& t) {
  return t.nb[0] == unit_bytes(t.type) && t.nb[1] == row_units(t) * t.nb[0] &&
         t.nb[2] == t.nb[1] * t.ne[1] && t.nb[3] == t.nb[2] * t.ne[2];
}

// The scale of the whole tensor: an i2_s tensor stores one behind its last code; others have 1.
static inline float tensor_scale(const Tensor& t) {
  if (t.type != DType::kI2_S) return 1.0f;
  float scale;
  std::memcpy(&scale, t.data + n_elements(t) / 4, 4);
  return scale;
}

// Whether load_range can read elements of this type; whether store_range can write them.
static inline bool can_load(DType t) {
  return t == DType::kI32 || table().type(t).to_float != nullptr;
}
static inline bool can_store(DType t) {
  return t == DType::kI32 || table().type(t).from_float != nullptr;
}

template <typename T>
static void move_strided(const char* src, int64_t src_stride, char* dst, int64_t dst_stride,
                         int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    T v;
    std::memcpy(&v, src + i * src_stride, sizeof v);
    std::memcpy(dst + i * dst_stride, &v, sizeof v);
  }
}

// Bytes that are moved together.
template <int kBytes>
using Bytes [[gnu::vector_size(kBytes)]] = char;

// Copies `n` bytes between places that do not overlap. Up to 64 bytes are two or four moves that
// may meet in the middle: a call of the library would take longer than they do.
static inline void move_bytes(const char* src, char* dst, int64_t n) {
  const auto ends = [&](auto part) {
    constexpr auto size = static_cast<int64_t>(sizeof part);
    auto last = part;
    std::memcpy(&part, src, sizeof part);
    std::memcpy(&last, src + n - size, sizeof last);
    std::memcpy(dst, &part, sizeof part);
    std::memcpy(dst + n - size, &last, sizeof last);
  };
  if (n > 64 || n < 4) {
    if (n == 1) {
      *dst = *src;
      return;
    }
    if (n != 0) std::memcpy(dst, src, static_cast<size_t>(n));
    return;
  }
  if (n > 32) return ends(Bytes<32>{});
  if (n > 16) return ends(Bytes<16>{});
  if (n > 8) return ends(uint64_t{});
  ends(uint32_t{});
}

// Copies `n` units without converting them. Strides are in bytes.
static inline void move_units(DType type, const char* src, int64_t src_stride, char* dst,
                              int64_t dst_stride, int64_t n) {
  const int64_t size = unit_bytes(type);
  if ((src_stride == size && dst_stride == size) || n == 1) {
    move_bytes(src, dst, n * size);
    return;
  }
  switch (size) {
    case 1:
      return move_strided<uint8_t>(src, src_stride, dst, dst_stride, n);
    case 2:
      return move_strided<uint16_t>(src, src_stride, dst, dst_stride, n);
    case 4:
      return move_strided<uint32_t>(src, src_stride, dst, dst_stride, n);
    case 8:
      return move_strided<uint64_t>(src, src_stride, dst, dst_stride, n);
    default:
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(dst + i * dst_stride, src + i * src_stride, static_cast<size_t>(size));
      }
  }
}

// Reads the elements start..start+n of a row as floats; `scale` is tensor_scale(t).
static inline void load_range(const Tensor& t, const char* row, int64_t start, int64_t n,
                              float scale, float* out) {
  if (is_float(t.type)) {
    load_floats(row + start * t.nb[0], t.type, t.nb[0], n, out);
    return;
  }
  if (t.type == DType::kI32) {
    for (int64_t i = 0; i < n; ++i) {
      int32_t v;
      std::memcpy(&v, row + (start + i) * t.nb[0], 4);
      out[i] = static_cast<float>(v);
    }
    return;
  }
  const auto decode = table().type(t.type).to_float;
  const int64_t block = unit_elements(t.type);
  const char* from = row + start / block * t.nb[0];
  float* to = out;
  int64_t left = n;
  const auto partial = [&](int64_t skip, int64_t count) {
    float values[256];
    decode(from, values, block);
    std::memcpy(to, values + skip, static_cast<size_t>(count) * 4);
    from += t.nb[0];
    to += count;
    left -= count;
  };
  if (start % block != 0) partial(start % block, min64(n, block - start % block));
  const int64_t whole = left / block * block;
  decode(from, to, whole);
  from += whole / block * t.nb[0];
  to += whole;
  left -= whole;
  if (left > 0) partial(0, left);
  if (t.type == DType::kI2_S) {
    for (int64_t i = 0; i < n; ++i) out[i] *= scale;
  }
}

// Writes floats to the elements start..start+n of a row; `start` and `n` are multiples of the block
// length.
static inline void store_range(const float* in, int64_t n, const Tensor& t, char* row,
                               int64_t start) {
  char* p = row + start / unit_elements(t.type) * t.nb[0];
  if (t.type == DType::kI32) {
    for (int64_t i = 0; i < n; ++i) {
      // Numbers out of range become the smallest integer, as on x86.
      const float x = in[i];
      const int32_t v =
          x < 2147483648.0f && x >= -2147483648.0f ? static_cast<int32_t>(x) : INT32_MIN;
      std::memcpy(p + i * t.nb[0], &v, 4);
    }
  } else if (is_float(t.type) && t.nb[0] != unit_bytes(t.type)) {
    store_floats(in, n, p, t.type, t.nb[0]);
  } else {
    table().type(t.type).from_float(in, p, n);
  }
}

// Whether the rows are floats that need no load_range.
static inline bool is_plain_row(const Tensor& t) { return t.type == DType::kF32 && t.nb[0] == 4; }

// The indices of the rows of a tensor, one after another from row number `row` on.
class RowCursor {
 public:
  RowCursor(const Tensor& shape, int64_t row) : shape_(shape), at_(row_index(shape, row)) {}
  Index operator*() const { return at_; }
  void next() {
    if (++at_.i1 < shape_.ne[1]) return;
    at_.i1 = 0;
    if (++at_.i2 < shape_.ne[2]) return;
    at_.i2 = 0;
    ++at_.i3;
  }

 private:
  const Tensor& shape_;
  Index at_;
};

// Divides the rows begin..end into runs along dimension 1, and calls work(index of the first row,
// number of rows) for each.
template <typename F>
static inline void for_runs(const Tensor& shape, int64_t begin, int64_t end, const F& work) {
  while (begin < end) {
    const Index at = row_index(shape, begin);
    const int64_t n = min64(end - begin, shape.ne[1] - at.i1);
    work(at, n);
    begin += n;
  }
}

}  // namespace weft::WEFT_TARGET
