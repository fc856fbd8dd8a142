// Elements of any plain type, computed with as float, double or int64_t; operands that broadcast.
#pragma once

#include "kernels/elements.h"

namespace weft::WEFT_TARGET {

static inline bool is_whole(DType t) {
  return t == DType::kI8 || t == DType::kI16 || t == DType::kI32 || t == DType::kI64;
}
static inline bool is_number(DType t) { return is_float(t) || is_whole(t); }
static inline bool is_element(DType t) { return is_number(t) || t == DType::kF64; }
static inline bool is_index(DType t) { return t == DType::kI32 || t == DType::kI64; }

// The type that elements of a type are computed with is T.
template <typename T>
static inline bool computes_with(DType t);
template <>
inline bool computes_with<float>(DType t) {
  return is_float(t);
}
template <>
inline bool computes_with<int64_t>(DType t) {
  return is_whole(t);
}
template <>
inline bool computes_with<double>(DType t) {
  return t == DType::kF64;
}

// Calls work(T{}) with the type T of whole numbers of type `t`.
template <typename F>
static inline void with_whole_type(DType t, const F& work) {
  if (t == DType::kI8) return work(int8_t{});
  if (t == DType::kI16) return work(int16_t{});
  if (t == DType::kI32) return work(int32_t{});
  work(int64_t{});
}

template <typename S, typename T>
static void load_cast(const char* p, int64_t stride, int64_t n, T* out) {
  if (stride == 0) {
    S s;
    std::memcpy(&s, p, sizeof s);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(s);
    return;
  }
  if (stride == static_cast<int64_t>(sizeof(S))) {
    const auto* s = reinterpret_cast<const S*>(p);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(s[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    S s;
    std::memcpy(&s, p + i * stride, sizeof s);
    out[i] = static_cast<T>(s);
  }
}

template <typename S, typename T>
static void store_cast(const T* in, int64_t n, char* p, int64_t stride) {
  if (stride == static_cast<int64_t>(sizeof(S))) {
    auto* s = reinterpret_cast<S*>(p);
    for (int64_t i = 0; i < n; ++i) s[i] = static_cast<S>(in[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const S s = static_cast<S>(in[i]);
    std::memcpy(p + i * stride, &s, sizeof s);
  }
}

// `n` elements `stride` bytes apart (0: one for all) as T, which computes with their type.
static inline void load_numbers(const char* p, DType type, int64_t stride, int64_t n, float* out) {
  if (stride == 0) {
    const float x = load_element(p, type);
    for (int64_t i = 0; i < n; ++i) out[i] = x;
    return;
  }
  load_floats(p, type, stride, n, out);
}
static inline void load_numbers(const char* p, DType, int64_t stride, int64_t n, double* out) {
  load_cast<double>(p, stride, n, out);
}
static inline void load_numbers(const char* p, DType type, int64_t stride, int64_t n,
                                int64_t* out) {
  if (type == DType::kI8) return load_cast<int8_t>(p, stride, n, out);
  if (type == DType::kI16) return load_cast<int16_t>(p, stride, n, out);
  if (type == DType::kI32) return load_cast<int32_t>(p, stride, n, out);
  load_cast<int64_t>(p, stride, n, out);
}

static inline void store_numbers(const float* in, int64_t n, char* p, DType type, int64_t stride) {
  int64_t i = 0;
  if (stride == 2 && type != DType::kF32) {
    auto* h = reinterpret_cast<uint16_t*>(p);
    if (type == DType::kF16) {
      for (; i + kLanes <= n; i += kLanes) store_half(h + i, load(in + i));
    } else {
      for (; i + kLanes <= n; i += kLanes) store_bf16(h + i, load(in + i));
    }
  }
  store_floats(in + i, n - i, p + i * stride, type, stride);
}
static inline void store_numbers(const double* in, int64_t n, char* p, DType, int64_t stride) {
  store_cast<double>(in, n, p, stride);
}
// Whole numbers wrap around.
static inline void store_numbers(const int64_t* in, int64_t n, char* p, DType type,
                                 int64_t stride) {
  if (type == DType::kI8) return store_cast<int8_t>(in, n, p, stride);
  if (type == DType::kI16) return store_cast<int16_t>(in, n, p, stride);
  if (type == DType::kI32) return store_cast<int32_t>(in, n, p, stride);
  store_cast<int64_t>(in, n, p, stride);
}

// Whether elements lie in memory as an array of T.
template <typename T>
static inline bool lies_as(DType type, int64_t stride) {
  return computes_with<T>(type) && element_size(type) == static_cast<int64_t>(sizeof(T)) &&
         stride == static_cast<int64_t>(sizeof(T));
}

// The elements at `p` as an array of T: where they are, or loaded into `buffer`.
template <typename T>
static inline const T* numbers_at(const char* p, DType type, int64_t stride, int64_t n, T* buffer) {
  if (lies_as<T>(type, stride)) return reinterpret_cast<const T*>(p);
  load_numbers(p, type, stride, n, buffer);
  return buffer;
}

// The same for elements that are T.
template <typename T>
static inline const T* elements_at(const char* p, int64_t stride, int64_t n, T* buffer) {
  if (stride == static_cast<int64_t>(sizeof(T))) return reinterpret_cast<const T*>(p);
  load_cast<T>(p, stride, n, buffer);
  return buffer;
}

// Where to compute elements that are T: in place, or in `buffer` for `put_elements` to write.
template <typename T>
static inline T* element_room(char* p, int64_t stride, T* buffer) {
  return stride == static_cast<int64_t>(sizeof(T)) ? reinterpret_cast<T*>(p) : buffer;
}
template <typename T>
static inline void put_elements(const T* in, int64_t n, char* p, int64_t stride) {
  if (reinterpret_cast<const char*>(in) != p) store_cast<T>(in, n, p, stride);
}

// `t` as if it had the sizes of `dst`, whose elements it stands for over and over.
static inline Tensor spread(const Tensor& t, const Tensor& dst) {
  Tensor s = t;
  for (int d = 0; d < 4; ++d) {
    if (t.ne[d] == 1 && dst.ne[d] != 1) s.nb[d] = 0;
    s.ne[d] = dst.ne[d];
  }
  return s;
}

static inline bool broadcasts_to(const Tensor& t, const Tensor& dst) {
  for (int d = 0; d < 4; ++d) {
    if (t.ne[d] != dst.ne[d] && t.ne[d] != 1) return false;
  }
  return true;
}

// The result and the sources of an elementwise step, sources spread to its sizes.
struct Operands {
  static constexpr int kMost = 4;
  Tensor of[kMost];  // the result first
  int n;
  bool flat;                 // rows follow each other without gaps, in all of them
  bool joined;               // those of one i2 and i3 do
  int64_t flat_step[kMost];  // bytes between elements then

  Operands(const Call& call, int sources) : n(sources + 1), flat(true), joined(true) {
    of[0] = call.dst;
    for (int i = 1; i < n; ++i) of[i] = spread(*call.src[i - 1], call.dst);
    for (int i = 0; i < n; ++i) {
      const int64_t size = element_size(of[i].type);
      const bool one = i > 0 && n_elements(*call.src[i - 1]) == 1;
      flat_step[i] = one ? 0 : size;
      int64_t expected = flat_step[i];
      for (int d = 0; d < 4; ++d) {
        if (of[i].ne[d] != 1 && of[i].nb[d] != expected) flat = false;
        expected *= of[i].ne[d];
      }
      if (of[i].nb[1] != of[i].nb[0] * of[i].ne[0]) joined = false;
    }
  }
};

// Calls work(p, steps, n) for pieces of items begin..end: the addresses of at most kPiece elements
// of each operand, and the bytes between them.
template <typename F>
static inline void for_operands(const Operands& o, int64_t begin, int64_t end, const F& work) {
  char* p[Operands::kMost];
  // one copy of the work, whatever finds its pieces
  const auto one = [&](const int64_t* steps, int64_t n)
                       __attribute__((noinline)) { work(p, steps, n); };
  const Tensor& dst = o.of[0];
  if (o.flat && dst.ne[0] <= kSmallWork) {  // an item is a row
    const int64_t last = end * dst.ne[0];
    for (int64_t i = begin * dst.ne[0]; i < last; i += kPiece) {
      for (int k = 0; k < o.n; ++k) p[k] = o.of[k].data + i * o.flat_step[k];
      one(o.flat_step, min64(kPiece, last - i));
    }
    return;
  }
  int64_t steps[Operands::kMost];
  for (int k = 0; k < o.n; ++k) steps[k] = o.of[k].nb[0];
  if (o.joined && dst.ne[0] <= kSmallWork) {
    for (int64_t row = begin; row < end;) {
      const Index at = row_index(dst, row);
      const int64_t rows = min64(end - row, dst.ne[1] - at.i1);
      const int64_t all = rows * dst.ne[0];
      for (int64_t i = 0; i < all; i += kPiece) {
        for (int k = 0; k < o.n; ++k) p[k] = row_data(o.of[k], at) + i * steps[k];
        one(steps, min64(kPiece, all - i));
      }
      row += rows;
    }
    return;
  }
  for_pieces(dst, begin, end, [&](const Piece& piece) {
    for (int k = 0; k < o.n; ++k) p[k] = element(o.of[k], piece);
    one(steps, piece.n);
  });
}

// One index of an index tensor at byte address `p`, from the end where negative; -1 and a fault
// where it is outside 0 .. size-1.
static inline int64_t index_at(const Call& call, const char* p, DType type, int64_t size) {
  int64_t index;
  if (type == DType::kI64) {
    std::memcpy(&index, p, 8);
  } else {
    int32_t narrow;
    std::memcpy(&narrow, p, 4);
    index = narrow;
  }
  if (index >= 0 && index < size) return index;
  if (index < 0 && index >= -size) return index + size;
  call.fail(FaultKind::kIndex, index, size);
  return -1;
}

// `n` indices `stride` bytes apart as numbers from 0; false and a fault where one is outside.
static inline bool indices_at(const Call& call, const char* p, DType type, int64_t stride,
                              int64_t n, int64_t size, int64_t* out) {
  if (type == DType::kI64) {
    load_cast<int64_t>(p, stride, n, out);
  } else {
    load_cast<int32_t>(p, stride, n, out);
  }
  // the sign of either is set outside
  uint64_t outside = 0;
  const auto last = static_cast<uint64_t>(size - 1);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t index = out[i] + (out[i] < 0 ? size : 0);
    const auto bits = static_cast<uint64_t>(index);
    outside |= bits | (last - bits);
    out[i] = index;
  }
  if (outside >> 63 == 0) return true;
  for (int64_t i = 0; i < n; ++i) {
    if (index_at(call, p + i * stride, type, size) < 0) break;
  }
  return false;
}

}  // namespace weft::WEFT_TARGET
