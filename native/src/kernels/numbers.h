// Helpers for kernels over plain types of any kind: elements are loaded as float, double or
// int64_t, and operands broadcast.
#pragma once

#include "kernels/elements.h"

namespace weft::WEFT_TARGET {

static inline bool is_whole(DType t) {
  return t == DType::kI8 || t == DType::kI16 || t == DType::kI32 || t == DType::kI64;
}
static inline bool is_number(DType t) { return is_float(t) || is_whole(t); }
static inline bool is_element(DType t) { return is_number(t) || t == DType::kF64; }

// Whether kernels compute with T for elements of this type.
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

// Calls work(T{}), where T is the C++ type of the integer type `t`.
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

// Loads `n` elements that lie `stride` bytes apart (0: one element, repeated). The type of `out` is
// the one that kernels compute with for `type`.
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
  store_floats(in, n, p, type, stride);
}
static inline void store_numbers(const double* in, int64_t n, char* p, DType, int64_t stride) {
  store_cast<double>(in, n, p, stride);
}
// Integers wrap around.
static inline void store_numbers(const int64_t* in, int64_t n, char* p, DType type,
                                 int64_t stride) {
  if (type == DType::kI8) return store_cast<int8_t>(in, n, p, stride);
  if (type == DType::kI16) return store_cast<int16_t>(in, n, p, stride);
  if (type == DType::kI32) return store_cast<int32_t>(in, n, p, stride);
  store_cast<int64_t>(in, n, p, stride);
}

// Whether elements of this type and byte stride are an array of T.
template <typename T>
static inline bool lies_as(DType type, int64_t stride) {
  return computes_with<T>(type) && element_size(type) == static_cast<int64_t>(sizeof(T)) &&
         stride == static_cast<int64_t>(sizeof(T));
}

// The `n` elements at `p` as an array of T: in place where possible, otherwise loaded into
// `buffer`.
template <typename T>
static inline const T* numbers_at(const char* p, DType type, int64_t stride, int64_t n, T* buffer) {
  if (lies_as<T>(type, stride)) return reinterpret_cast<const T*>(p);
  load_numbers(p, type, stride, n, buffer);
  return buffer;
}

// The same for elements whose C++ type is T.
template <typename T>
static inline const T* elements_at(const char* p, int64_t stride, int64_t n, T* buffer) {
  if (stride == static_cast<int64_t>(sizeof(T))) return reinterpret_cast<const T*>(p);
  load_cast<T>(p, stride, n, buffer);
  return buffer;
}

// Where to compute elements whose C++ type is T: in place, or in `buffer`, which put_elements then
// writes to `p`.
template <typename T>
static inline T* element_room(char* p, int64_t stride, T* buffer) {
  return stride == static_cast<int64_t>(sizeof(T)) ? reinterpret_cast<T*>(p) : buffer;
}
template <typename T>
static inline void put_elements(const T* in, int64_t n, char* p, int64_t stride) {
  if (reinterpret_cast<const char*>(in) != p) store_cast<T>(in, n, p, stride);
}

// `t` with the sizes of `dst`: the dimensions in which it has one element get stride 0.
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
  Tensor of[kMost];          // the result, then the sources
  int n;                     // entries of `of`
  bool flat;                 // no operand has gaps; a source of one element counts as flat
  bool joined;               // no operand has gaps between rows with the same i2 and i3
  int64_t flat_step[kMost];  // bytes between elements where `flat`: 0 for a source of one element

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

// Rows of at most kShortRow elements are put together in pieces of at most kShortPiece elements,
// because a call of the work for each row would take longer than the work. What is packed may be
// followed by kPackSlack bytes that are written too.
inline constexpr int64_t kShortRow = 64;
inline constexpr int64_t kShortPiece = 256;
inline constexpr int64_t kPackSlack = 32;

// Copies `rows` rows of `n` elements of type T. Steps are in bytes; a `from_step` of 0 repeats an
// element, for which `to_step` is sizeof(T) and `to` has kPackSlack bytes more.
template <typename T>
static void move_block(const char* from, int64_t from_step, int64_t from_row, char* to,
                       int64_t to_step, int64_t to_row, int64_t n, int64_t rows) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  if (n == 1 && from_row != 0) {  // a column is a row
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(to + r * to_row, from + r * from_row, sizeof(T));
    }
  } else if (from_step == 0) {
    using Copies [[gnu::vector_size(32)]] = T;
    for (int64_t r = 0; r < rows; ++r) {
      T value;
      std::memcpy(&value, from + r * from_row, sizeof value);
      const Copies copies = value - Copies{};
      for (int64_t b = 0; b < n * kSize; b += 32) {
        std::memcpy(to + r * to_row + b, &copies, sizeof copies);
      }
    }
  } else if (from_step == kSize && to_step == kSize) {
    for (int64_t r = 0; r < rows; ++r) move_bytes(from + r * from_row, to + r * to_row, n * kSize);
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(to + r * to_row + i * to_step, from + r * from_row + i * from_step, sizeof(T));
      }
    }
  }
}

// Copies rows of a tensor, from the row at `at` on, to `packed` without gaps; kBack: from there.
template <bool kBack>
static void pack_rows(const Tensor& t, Index at, int64_t rows, char* packed) {
  const int64_t size = element_size(t.type);
  const int64_t row_bytes = t.ne[0] * size;
  while (rows > 0) {
    const int64_t n = min64(rows, t.ne[1] - at.i1);
    char* stored = row_data(t, at);
    const auto move = [&](auto one) {
      using T = decltype(one);
      if (kBack) {
        move_block<T>(packed, size, row_bytes, stored, t.nb[0], t.nb[1], t.ne[0], n);
      } else {
        move_block<T>(stored, t.nb[0], t.nb[1], packed, size, row_bytes, t.ne[0], n);
      }
    };
    size == 1   ? move(uint8_t{})
    : size == 2 ? move(uint16_t{})
    : size == 4 ? move(uint32_t{})
                : move(uint64_t{});
    packed += n * row_bytes;
    rows -= n;
    at.i1 = 0;
    if (++at.i2 == t.ne[2]) {
      at.i2 = 0;
      ++at.i3;
    }
  }
}

// for_operands for short rows: operands with gaps between rows, or whose rows repeat, are packed.
template <typename F>
static inline void for_short_rows(const Operands& o, int64_t begin, int64_t end, const F& one) {
  const Tensor& dst = o.of[0];
  alignas(64) char packed[Operands::kMost][kShortPiece * 8 + kPackSlack];
  int64_t steps[Operands::kMost];
  bool packs[Operands::kMost], repeats[Operands::kMost];
  for (int k = 0; k < o.n; ++k) {
    const Tensor& t = o.of[k];
    int64_t expected = t.nb[0] * t.ne[0];
    packs[k] = repeats[k] = false;
    bool same = true;
    for (int d = 1; d < 4; ++d) {
      if (t.ne[d] != 1 && t.nb[d] != expected) packs[k] = true;
      if (t.ne[d] != 1 && t.nb[d] != 0) same = false;
      expected *= t.ne[d];
    }
    repeats[k] = packs[k] && same;
    steps[k] = packs[k] ? element_size(t.type) : t.nb[0];
  }
  const int64_t most = kShortPiece / dst.ne[0];
  for (int64_t row = begin; row < end; row += most) {
    const int64_t rows = min64(most, end - row);
    const Index at = row_index(dst, row);
    char* p[Operands::kMost];
    for (int k = 0; k < o.n; ++k) {
      p[k] = packs[k] ? packed[k] : row_data(o.of[k], at);
      // What repeats is packed once.
      if (k > 0 && packs[k] && !(repeats[k] && row > begin)) {
        pack_rows<false>(o.of[k], at, rows, p[k]);
      }
    }
    one(p, steps, rows * dst.ne[0]);
    if (packs[0]) pack_rows<true>(dst, at, rows, p[0]);
  }
}

// Calls work(p, steps, n) for each piece of the items begin..end. Operand k has n elements, at most
// kPiece, from address p[k] on, steps[k] bytes apart.
template <typename F>
static inline void for_operands(const Operands& o, int64_t begin, int64_t end, const F& work) {
  char* p[Operands::kMost];
  // Not inlined: the loops below share one copy of the work.
  const auto one = [&](char* const* at, const int64_t* steps, int64_t n)
                       __attribute__((noinline)) { work(at, steps, n); };
  const Tensor& dst = o.of[0];
  if (o.flat && dst.ne[0] <= kSmallWork) {  // here an item is one row
    const int64_t last = end * dst.ne[0];
    for (int64_t i = begin * dst.ne[0]; i < last; i += kPiece) {
      for (int k = 0; k < o.n; ++k) p[k] = o.of[k].data + i * o.flat_step[k];
      one(p, o.flat_step, min64(kPiece, last - i));
    }
    return;
  }
  int64_t steps[Operands::kMost];
  for (int k = 0; k < o.n; ++k) steps[k] = o.of[k].nb[0];
  const bool short_runs = dst.ne[0] * (o.joined ? dst.ne[1] : 1) <= kShortRow;
  if (short_runs && end - begin > 1) return for_short_rows(o, begin, end, one);
  if (o.joined && dst.ne[0] <= kSmallWork) {
    for (int64_t row = begin; row < end;) {
      const Index at = row_index(dst, row);
      const int64_t rows = min64(end - row, dst.ne[1] - at.i1);
      const int64_t all = rows * dst.ne[0];
      for (int64_t i = 0; i < all; i += kPiece) {
        for (int k = 0; k < o.n; ++k) p[k] = row_data(o.of[k], at) + i * steps[k];
        one(p, steps, min64(kPiece, all - i));
      }
      row += rows;
    }
    return;
  }
  for_pieces(dst, begin, end, [&](const Piece& piece) {
    for (int k = 0; k < o.n; ++k) p[k] = element(o.of[k], piece);
    one(p, steps, piece.n);
  });
}

// Reads the index at address `p`; a negative one counts from the end. An index outside
// -size .. size-1 sets a fault and gives -1.
static inline int64_t index_at(const Call& call, const char* p, DType type, int64_t size) {
  const int64_t index = read_index(p, type);
  if (index >= 0 && index < size) return index;
  if (index < 0 && index >= -size) return index + size;
  call.fail(FaultKind::kIndex, index, size);
  return -1;
}

// Reads `n` indices that lie `stride` bytes apart as numbers 0 .. size-1. Returns false and sets a
// fault when one is outside -size .. size-1.
static inline bool indices_at(const Call& call, const char* p, DType type, int64_t stride,
                              int64_t n, int64_t size, int64_t* out) {
  if (type == DType::kI64) {
    load_cast<int64_t>(p, stride, n, out);
  } else {
    load_cast<int32_t>(p, stride, n, out);
  }
  // `index` or `size - 1 - index` is negative, in bit 63, when the index is outside.
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
