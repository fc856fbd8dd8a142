// Panels of 16-bit floats times columns of f32: their words are two neighbouring elements of a row,
// which become floats, exactly.
#pragma once

#include "kernels/matmul/panels_floats.h"
#include "kernels/simd/lanes.h"

namespace weft::WEFT_TARGET {

// The elements of kLanes words: those of even depth and the ones after them.
template <DType kType>
static inline Halves halves_of(vf words) {
  if constexpr (kType == DType::kBF16) {
    const auto bits = reinterpret_cast<vu>(words);
    return {reinterpret_cast<vf>(bits << 16), reinterpret_cast<vf>(bits & 0xffff0000u)};
  }
  return split_halves(words);
}

// A word and two elements of a column of f32.
template <DType kType>
struct HalfWords {
  static constexpr int64_t kColumnWords = 2;
  static inline Halves all(const float* x) { return {splat(x[0]), splat(x[1])}; }
  static inline vf add(vf acc, vf words, const Halves& x) {
    const Halves rows = halves_of<kType>(words);
    return fma(rows.odd, x.odd, fma(rows.even, x.even, acc));
  }
};

// Words of depth that become floats at a time, for so many columns, whose part of the depth stays
// in the second-level cache.
inline constexpr int64_t kStagedWords = 256;
inline constexpr int64_t kStagedColumns = 256;

// `words` words of depth of a panel as floats: a panel of f32 twice as deep.
template <DType kType>
static void stage_panel(const float* panel, int64_t words, float* to) {
  for (const float* end = panel + words * kPanelRows; panel < end; to += kPanelRows) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kPanelRows; r += kLanes, panel += kLanes, to += kLanes) {
      const Halves halves = halves_of<kType>(load(panel));
      store(to, halves.even);
      store(to + kPanelRows, halves.odd);
    }
  }
}

}  // namespace weft::WEFT_TARGET
