// The tiles of a dense CONV_2D_LAST: positions by vectors of output channels, summed up in
// registers.
#pragma once

#include "kernels/conv/conv_last.h"
#include "kernels/simd/part.h"

namespace weft::WEFT_TARGET {

// The maximum numbers of positions of a tile, and of vectors of output channels of a panel.
constexpr int kTileRows = 6;
constexpr int kPanel = kRegisters == 32 ? 4 : 2;
// Rows of weights of a panel, which stays in the first cache.
constexpr int64_t kPanelDeep = 512 / kPanel;
constexpr int kPerLine = 16 / kLanes;           // vectors in a line of the cache
constexpr int64_t kBlockRows = 14 * kTileRows;  // positions that are worked on together

struct LastTile {
  const float* const* rows;  // [runs][kBlockRows] what positions see,
  int64_t from;              // from this float of a run on
  int64_t runs, run;
  const float* weights;  // of these channels, rows `step` floats apart; null: the panel has them
  int64_t step;
  const float* scale;  // of the channels of `weights`; null: none
  float* panel;        // [runs * run][vectors]: the weights, side by side
  const float* bias;   // null: sums go on from what is there
  float* const* out;   // of each position
  const float* const* residual;
  int64_t channel;  // where in `out` and `residual`
  int64_t lanes;    // of the last vector
  bool last;        // of all weights: the residual is added, the bounds kept, the function applied
  float low, high;
  RowsFunction function;
};

// kR positions by kV vectors. Weights that are fresh are put into the panel on the way: in memory
// they are pages apart, and would push each other out of the cache before the next tile.
template <int kR, int kV, bool kFresh>
static void last_tile(const LastTile& t) {
  const int64_t channel = t.channel, lanes = t.lanes;
  float* const* out = t.out;
  vf sum[kR][kV];
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kV; ++v) {
      const float* there = out[r] + channel + v * kLanes;
      sum[r][v] = t.bias != nullptr ? load(t.bias + v * kLanes)
                  : v < kV - 1      ? load(there)
                                    : load_part(there, lanes);
    }
  }
  const bool adds = t.last && t.residual != nullptr;
  // what is read and written at the end is on its way meanwhile
  if (t.last) {
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kV; v += kPerLine) {
        __builtin_prefetch(out[r] + channel + v * kLanes, 1);
        if (adds) __builtin_prefetch(t.residual[r] + channel + v * kLanes);
      }
    }
  }
  const float* fresh = t.weights;
  float* panel = t.panel;
  const int64_t run = t.run, step = t.step;
  for (int64_t s = 0; s < t.runs; ++s) {
    const float* x[kR];
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) x[r] = t.rows[s * kBlockRows + r] + t.from;
    for (int64_t k = 0; k < run; ++k) {
      vf w[kV];
#pragma GCC unroll 8
      for (int v = 0; v < kV; ++v) {
        w[v] = load((kFresh ? fresh : panel) + v * kLanes);
        if (kFresh && t.scale != nullptr) w[v] *= splat(t.scale[k]);
        if (kFresh) store(panel + v * kLanes, w[v]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < kR; ++r) {
        const vf value = splat(x[r][k]);
#pragma GCC unroll 8
        for (int v = 0; v < kV; ++v) sum[r][v] = fma(value, w[v], sum[r][v]);
      }
      panel += kV * kLanes;
      if (kFresh) fresh += step;
    }
  }
  const vf low = splat(t.last ? t.low : -__builtin_inff());
  const vf high = splat(t.last ? t.high : __builtin_inff());
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
    if (adds) {
      const float* more = t.residual[r] + channel;
#pragma GCC unroll 8
      for (int v = 0; v < kV - 1; ++v) sum[r][v] += load(more + v * kLanes);
      sum[r][kV - 1] += load_part(more + (kV - 1) * kLanes, lanes);
    }
    float* to = out[r] + channel;
#pragma GCC unroll 8
    for (int v = 0; v < kV - 1; ++v) store(to + v * kLanes, clamped(sum[r][v], low, high));
    const vf tail = clamped(sum[r][kV - 1], low, high);
    // a store of some lanes takes many times as long on some processors
    if (lanes == kLanes) {
      store(to + (kV - 1) * kLanes, tail);
    } else {
      store_part(to + (kV - 1) * kLanes, tail, lanes);
    }
  }
  if (t.last && t.function != nullptr) {
    t.function(out, kR, channel, (kV - 1) * kLanes + lanes);
  }
}

using LastTileFunction = void (*)(const LastTile&);

template <int kR, bool kFresh>
static LastTileFunction last_tile_of(int64_t vectors) {
  constexpr int kThree = kPanel >= 3 ? 3 : 2;
  switch (vectors) {
    case 1:
      return last_tile<kR, 1, kFresh>;
    case 3:
      return last_tile<kR, kThree, kFresh>;
    case 4:
      return last_tile<kR, kPanel, kFresh>;
    default:
      return last_tile<kR, 2, kFresh>;
  }
}

template <bool kFresh>
static LastTileFunction last_tile_of(int64_t rows, int64_t vectors) {
  switch (rows) {
    case 1:
      return last_tile_of<1, kFresh>(vectors);
    case 2:
      return last_tile_of<2, kFresh>(vectors);
    case 3:
      return last_tile_of<3, kFresh>(vectors);
    case 4:
      return last_tile_of<4, kFresh>(vectors);
    case 5:
      return last_tile_of<5, kFresh>(vectors);
    default:
      return last_tile_of<6, kFresh>(vectors);
  }
}

}  // namespace weft::WEFT_TARGET
