// kLanes vectors as a square matrix: its transpose, and the sums of its rows.
#pragma once

#include <utility>

#include "kernels/simd/part.h"

namespace weft::WEFT_TARGET {

namespace square {

using Lanes = std::make_index_sequence<kLanes>;

// Takes from every 2 kHalf lanes the first (second) half of `a`, then the same half of `b`.
template <size_t kHalf, bool kSecond, size_t... kLane>
inline vf halves(vf a, vf b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(
      a, b, (kLane + (kLane & kHalf ? kLanes - kHalf : 0) + (kSecond ? kHalf : 0))...);
}

// Takes from every 4 lanes the even (odd) lanes of `a`, then the same lanes of `b`.
template <bool kOdd, size_t... kLane>
inline vf every_other(vf a, vf b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(
      a, b, ((kLane & ~size_t{3}) + (kLane & 2 ? kLanes : 0) + 2 * (kLane & 1) + kOdd)...);
}

// Takes from every 4 lanes the first (second) half of `a` and `b`, alternating.
template <bool kSecond, size_t... kLane>
inline vf alternate(vf a, vf b, std::index_sequence<kLane...>) {
  return __builtin_shufflevector(
      a, b, ((kLane & ~size_t{3}) + (kLane & 1 ? kLanes : 0) + (kLane >> 1 & 1) + 2 * kSecond)...);
}

template <size_t kHalf>
inline vf add_halves(vf a, vf b) {
  return halves<kHalf, false>(a, b, Lanes{}) + halves<kHalf, true>(a, b, Lanes{});
}

template <size_t kHalf>
inline void exchange(vf (&v)[kLanes]) {
  for (size_t i = 0; i < kLanes; ++i) {
    if (i & kHalf) continue;
    const vf a = v[i], b = v[i + kHalf];
    v[i] = halves<kHalf, false>(a, b, Lanes{});
    v[i + kHalf] = halves<kHalf, true>(a, b, Lanes{});
  }
}

}  // namespace square

// Lane r is the sum of the lanes of v[r], r < kLanes, added as a tree: lanes half a vector apart,
// then a quarter, until neighbours are added.
static inline vf row_sums(const vf* v) {
  vf t[kLanes];
  for (int i = 0; i < kLanes; ++i) t[i] = v[i];
  if constexpr (kLanes >= 16) {
    for (int i = 0; i < 8; ++i) t[i] = square::add_halves<8>(t[i], t[i + 8]);
  }
  if constexpr (kLanes >= 8) {
    for (int i = 0; i < 4; ++i) t[i] = square::add_halves<4>(t[i], t[i + 4]);
  }
  const vf a = square::add_halves<2>(t[0], t[1]), b = square::add_halves<2>(t[2], t[3]);
  return square::every_other<false>(a, b, square::Lanes{}) +
         square::every_other<true>(a, b, square::Lanes{});
}

// out[r] = the sum of the lanes of v[r], as row_sums adds them, for r < n. Reads v in kLanes.
static inline void store_sums(const vf* v, int64_t n, float* out) {
  for (int64_t r = 0; r < n; r += kLanes) {
    const vf sums = row_sums(v + r);
    n - r >= kLanes ? store(out + r, sums) : store_part(out + r, sums, n - r);
  }
}

// Lane c of v[r] becomes lane r of v[c].
static inline void transpose(vf (&v)[kLanes]) {
  for (int i = 0; i < kLanes; i += 4) {
    const vf a = square::alternate<false>(v[i], v[i + 1], square::Lanes{});
    const vf b = square::alternate<true>(v[i], v[i + 1], square::Lanes{});
    const vf c = square::alternate<false>(v[i + 2], v[i + 3], square::Lanes{});
    const vf d = square::alternate<true>(v[i + 2], v[i + 3], square::Lanes{});
    v[i] = square::halves<2, false>(a, c, square::Lanes{});
    v[i + 1] = square::halves<2, true>(a, c, square::Lanes{});
    v[i + 2] = square::halves<2, false>(b, d, square::Lanes{});
    v[i + 3] = square::halves<2, true>(b, d, square::Lanes{});
  }
  if constexpr (kLanes >= 8) square::exchange<4>(v);
  if constexpr (kLanes >= 16) square::exchange<8>(v);
}

}  // namespace weft::WEFT_TARGET
