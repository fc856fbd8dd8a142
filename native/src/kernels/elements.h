// Helpers for elementwise kernels. Rows are cut into items that threads share, items into pieces
// that a kernel sees as contiguous floats:
//
//     row     |<----------------------- ne[0] elements ------------------------>|
//     items   |<----- kSmallWork ----->|<----- kSmallWork ----->|<- the rest -->|
//     pieces  |     |     |     |      |     |     |     |      |     |     |   |
//
// A piece has kPiece elements, or as many as are left of its item.
#pragma once

#include "kernels/copy/copy_rows.h"
#include "kernels/simd/math.h"
#include "kernels/simd/part.h"

namespace weft::WEFT_TARGET {

const KernelTable& table();

// Elements that are converted, computed and written back together, few enough to stay in the
// first-level cache. A multiple of every block length.
inline constexpr int64_t kPiece = 1024;

static inline int64_t row_items(const Tensor& t) { return (t.ne[0] + kSmallWork - 1) / kSmallWork; }
static inline int64_t element_items(const Call& call) {
  return n_rows(call.dst) * row_items(call.dst);
}
static inline int64_t element_grain(const Call& call) { return row_grain(call.dst.ne[0]); }

// The elements first..first+n of one row of the result; n is at most kPiece.
struct Piece {
  Index row;
  int64_t first;
  int64_t n;
};

// Calls work(piece) for each piece of the items begin..end.
template <typename F>
static inline void for_pieces(const Tensor& dst, int64_t begin, int64_t end, const F& work) {
  if (begin >= end) return;
  const int64_t per_row = row_items(dst);
  RowCursor row(dst, begin / per_row);
  int64_t first = begin % per_row * kSmallWork;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t last = min64(first + kSmallWork, dst.ne[0]);
    for (int64_t i = first; i < last; i += kPiece) work(Piece{*row, i, min64(kPiece, last - i)});
    first += kSmallWork;
    if (first < dst.ne[0]) continue;
    first = 0;
    row.next();
  }
}

static inline char* element(const Tensor& t, const Piece& p) {
  return row_data(t, p.row) + p.first * t.nb[0];
}

// Whether `type` is a block type whose rows can be decoded; encoded.
static inline bool can_decode(DType type) {
  return is_quantized(type) && table().type(type).to_float != nullptr;
}
static inline bool can_encode(DType type) {
  return is_quantized(type) && table().type(type).from_float != nullptr;
}

static inline bool is_plain(const Tensor& t) { return t.type == DType::kF32 && t.nb[0] == 4; }

// The `n` elements at `p` as contiguous floats: in place where they are that already, otherwise
// converted into `buffer`.
static inline const float* as_floats(const Tensor& t, const char* p, int64_t n, float* buffer) {
  if (is_plain(t)) return reinterpret_cast<const float*>(p);
  load_floats(p, t.type, t.nb[0], n, buffer);
  return buffer;
}

// Where to compute the elements at `p`: in place, or in `buffer`. put_floats then writes the
// buffer to `p`.
static inline float* float_room(const Tensor& t, char* p, float* buffer) {
  return is_plain(t) ? reinterpret_cast<float*>(p) : buffer;
}

static inline void put_floats(const Tensor& t, char* p, int64_t n, const float* buffer) {
  if (!is_plain(t)) store_floats(buffer, n, p, t.type, t.nb[0]);
}

// The bytes of a row of floats; 0 where source and result have plain rows, which need no copy.
static inline size_t row_scratch(const Call& call) {
  if (is_plain(*call.src[0]) && is_plain(call.dst)) return 0;
  return static_cast<size_t>(call.dst.ne[0]) * sizeof(float);
}

// out[i] = f(a[i]) and out[i] = f(a[i], b[i]) for i < n; `out` may be one of the sources.
template <typename F>
static inline void map(const float* a, float* out, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(a + i)));
  if (i < n) store_part(out + i, f(load_part(a + i, n - i)), n - i);
}
template <typename F>
static inline void map(const float* a, const float* b, float* out, int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, f(load(a + i), load(b + i)));
  if (i < n) store_part(out + i, f(load_part(a + i, n - i), load_part(b + i, n - i)), n - i);
}

}  // namespace weft::WEFT_TARGET
