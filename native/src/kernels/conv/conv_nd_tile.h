// The tiles of CONV_ND: output channels by vectors of outputs, summed up in registers.
#pragma once

#include <utility>

#include "kernels/conv/conv_nd.h"

namespace weft::WEFT_TARGET {

// A tile: output channels, and vectors of outputs.
constexpr int kRows = kFused ? 6 : 4, kVectors = kRegisters == 32 ? 4 : 2;
constexpr int kAlone = 8;              // vectors, for one output channel
constexpr int64_t kBlock = 64;         // outputs of an item,
constexpr int64_t kAloneBlock = 512;   // for one output channel
constexpr int64_t kFew = 3;            // outputs that are products of their own
constexpr int64_t kDeep = 128;         // weights of a row that are worked through at a time
constexpr int64_t kPacks = 2 * kRows;  // output channels from which on pieces are brought together
static_assert(kBlock % (kVectors * kLanes) == 0 && kAloneBlock % (kAlone * kLanes) == 0);

static inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Where a tile's sums begin, each row with a number of its own or with what is there, and end.
struct Sums {
  const float* starts;
  const float* from;
  int64_t from_step;
  float* to;
  int64_t to_step;

  Sums at(int64_t r, int64_t c) const {
    return {starts == nullptr ? nullptr : starts + r, from + r * from_step + c, from_step,
            to + r * to_step + c, to_step};
  }
};

// Sums of weight (r, k) * x[places[k] + ...], for `n` weights of kR rows, and kV vectors.
template <int kR, int kV>
static void tile(const float* w, int64_t row_step, const float* x, const int64_t* places, int64_t n,
                 const Sums& sums) {
  vf sum[kR][kV];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      sum[r][v] = sums.starts != nullptr ? splat(sums.starts[r])
                                         : load(sums.from + r * sums.from_step + v * kLanes);
    }
  }
  for (int64_t k = 0; k < n; ++k) {
    const float* p = x + places[k];
    vf value[kV];
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) value[v] = load(p + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const vf factor = splat(w[r * row_step + k]);
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) sum[r][v] = fma(factor, value[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) store(sums.to + r * sums.to_step + v * kLanes, sum[r][v]);
  }
}

using Tile = void (*)(const float*, int64_t, const float*, const int64_t*, int64_t, const Sums&);

// By number of rows, less one: as many vectors as a tile has, and one.
struct Tiles {
  Tile of[kRows];
};
template <int kAloneVectors, int kV, int... kMore>
static constexpr Tiles tiles(std::integer_sequence<int, kMore...>) {
  return {{tile<1, kAloneVectors>, tile<kMore + 2, kV>...}};
}
constexpr Tiles kWide = tiles<kAlone, kVectors>(std::make_integer_sequence<int, kRows - 1>());
constexpr Tiles kNarrow = tiles<1, 1>(std::make_integer_sequence<int, kRows - 1>());

}  // namespace weft::WEFT_TARGET
