// CONV_2D_LAST with a kernel a channel: vectors run over channels, and a few neighbouring outputs
// are kept in registers, so that what they see in common is read once.
#pragma once

#include "kernels/conv/conv_last.h"
#include "kernels/simd/part.h"

namespace weft::WEFT_TARGET {

// Outputs of a tile: with the taps of a row and an input they fit into 16 registers.
constexpr int kOutputs = kFused ? 7 : 4;
// Channels of an item: their weights stay in the first cache.
constexpr int64_t kPartChannels = 256;

// Input positions that a row of outputs reaches, those outside with them.
static inline int64_t depthwise_columns(const LastPlan& p) {
  return (p.x.out - 1) * p.x.stride + (p.x.taps - 1) * p.x.dilation + 1;
}

struct DepthwiseTile {
  const float* const* seen;  // [taps along y][columns] positions, from the first output's on
  int64_t columns;
  const float* weights;  // [taps][channels]
  int64_t channels;
  const float* bias;  // null: none
  char* out;
  int64_t out_step;      // bytes between outputs
  const char* residual;  // null: none
  int64_t residual_step;
  int64_t stride, dilation, taps_x, taps_y;
  float low, high;
};

// kN outputs of channels `at` on, `n` of them where kPart is set. With kTaps and kStride the kernel
// is square and its sizes are known.
template <int kN, int kTaps, int kStride, bool kPart>
static inline void depthwise_vector(const DepthwiseTile& tile, int64_t at, int64_t n) {
  const DepthwiseTile t = tile;  // of its own: results are stored to who knows where
  const auto get = [n](const float* p) { return kPart ? load_part(p, n) : load(p); };
  vf sum[kN];
  const vf start = t.bias == nullptr ? vf{} : get(t.bias + at);
#pragma GCC unroll 8
  for (int i = 0; i < kN; ++i) sum[i] = start;
  const float* w = t.weights + at;
  if constexpr (kTaps > 0) {
    constexpr int kSeen = (kN - 1) * kStride + kTaps;
#pragma GCC unroll 8
    for (int y = 0; y < kTaps; ++y) {
      const float* const* seen = t.seen + y * t.columns;
      vf taps[kTaps];
#pragma GCC unroll 8
      for (int k = 0; k < kTaps; ++k, w += t.channels) taps[k] = get(w);
#pragma GCC unroll 32
      for (int c = 0; c < kSeen; ++c) {
        const vf x = get(seen[c] + at);
#pragma GCC unroll 8
        for (int k = 0; k < kTaps; ++k) {
          const int i = (c - k) / kStride;
          if (c >= k && (c - k) % kStride == 0 && i < kN) sum[i] = fma(x, taps[k], sum[i]);
        }
      }
    }
  } else {
    for (int64_t y = 0; y < t.taps_y; ++y) {
      const float* const* seen = t.seen + y * t.columns;
      for (int64_t k = 0; k < t.taps_x; ++k, seen += t.dilation, w += t.channels) {
        const vf tap = get(w);
#pragma GCC unroll 8
        for (int i = 0; i < kN; ++i) sum[i] = fma(get(seen[i * t.stride] + at), tap, sum[i]);
      }
    }
  }
  const vf low = splat(t.low), high = splat(t.high);
#pragma GCC unroll 8
  for (int i = 0; i < kN; ++i) {
    vf value = sum[i];
    if (t.residual != nullptr) {
      value += get(reinterpret_cast<const float*>(t.residual + i * t.residual_step) + at);
    }
    value = clamped(value, low, high);
    float* to = reinterpret_cast<float*>(t.out + i * t.out_step) + at;
    if (kPart) {
      store_part(to, value, n);
    } else {
      store(to, value);
    }
  }
}

template <int kN, int kTaps, int kStride>
static void depthwise_tile(const DepthwiseTile& t, int64_t begin, int64_t end) {
  int64_t c = begin;
  for (; c + kLanes <= end; c += kLanes) depthwise_vector<kN, kTaps, kStride, false>(t, c, kLanes);
  if (c < end) depthwise_vector<kN, kTaps, kStride, true>(t, c, end - c);
}

// `n` outputs, or all that a tile has.
constexpr int tile_outputs(int n) { return n < kOutputs ? n : kOutputs; }

using DepthwiseFunction = void (*)(const DepthwiseTile&, int64_t, int64_t);

template <int kTaps, int kStride>
static DepthwiseFunction depthwise_of(int64_t outputs) {
  switch (outputs) {
    case 1:
      return depthwise_tile<1, kTaps, kStride>;
    case 2:
      return depthwise_tile<2, kTaps, kStride>;
    case 3:
      return depthwise_tile<3, kTaps, kStride>;
    case 4:
      return depthwise_tile<4, kTaps, kStride>;
    case 5:
      return depthwise_tile<tile_outputs(5), kTaps, kStride>;
    case 6:
      return depthwise_tile<tile_outputs(6), kTaps, kStride>;
    default:
      return depthwise_tile<kOutputs, kTaps, kStride>;
  }
}

static inline DepthwiseFunction depthwise_of(const LastPlan& p, int64_t outputs) {
  const bool plain = p.x.dilation == 1 && p.y.dilation == 1 && p.x.taps == p.y.taps;
  if (plain && p.x.taps == 3 && p.x.stride == 1) return depthwise_of<3, 1>(outputs);
  if (plain && p.x.taps == 3 && p.x.stride == 2) return depthwise_of<3, 2>(outputs);
  if (plain && p.x.taps == 5 && p.x.stride == 1) return depthwise_of<5, 1>(outputs);
  if (plain && p.x.taps == 5 && p.x.stride == 2) return depthwise_of<5, 2>(outputs);
  if (plain && p.x.taps == 7 && p.x.stride == 1) return depthwise_of<7, 1>(outputs);
  return depthwise_of<0, 0>(outputs);
}

// Parts of the channels: few enough that weights stay near, and enough of them for the threads.
static inline int64_t depthwise_parts(const LastPlan& p, int n_threads) {
  const int64_t lines = max64(1, p.y.out * p.batches);
  const int64_t wanted = (8 * int64_t{n_threads} + lines - 1) / lines;
  const int64_t least = (p.channels + kPartChannels - 1) / kPartChannels;
  const int64_t most = (p.channels + 2 * kLanes - 1) / (2 * kLanes);
  return max64(1, min64(most, max64(least, wanted)));
}

// Whether all parts of a row come before the next row: threads then share out the data as dense
// convolutions from and to a sixth of the channels do (Cut::by_blocks).
static inline bool depthwise_by_rows(const LastPlan& p) { return p.channels <= 7 * p.positions; }

// An item: a row of outputs for a part of the channels.
static inline int64_t depthwise_items(const LastPlan& p, int n_threads) {
  return p.y.out * p.batches * depthwise_parts(p, n_threads);
}

static inline int64_t depthwise_work(const LastPlan& p, int n_threads) {
  return p.x.out * p.x.taps * p.y.taps * p.channels / depthwise_parts(p, n_threads);
}

struct DepthwiseScratch {
  const float** seen;  // [taps along y][columns]
  float* zeros;
  size_t used;

  DepthwiseScratch(const LastPlan& p, char* memory) {
    Pieces pieces(memory);
    seen = pieces.take<const float*>(p.y.taps * depthwise_columns(p));
    zeros = pieces.take<float>(p.channels);
    used = static_cast<size_t>(pieces.next - memory) + 64;
  }
};

static inline size_t depthwise_scratch(const LastPlan& p) {
  return DepthwiseScratch(p, nullptr).used;
}

// The positions that a row of outputs reaches.
static inline void see_rows(const LastPlan& p, const DepthwiseScratch& s, int64_t batch,
                            int64_t oy) {
  const int64_t columns = depthwise_columns(p);
  const Range there = inside(columns, 1, -p.x.padding, p.x.in);
  for (int64_t ky = 0; ky < p.y.taps; ++ky) {
    const float** seen = s.seen + ky * columns;
    const int64_t iy = oy * p.y.stride + p.y.offset(ky);
    const bool outside = iy < 0 || iy >= p.y.in;
    const int64_t begin = outside ? columns : there.begin, end = outside ? columns : there.end;
    for (int64_t i = 0; i < begin; ++i) seen[i] = s.zeros;
    for (int64_t i = begin; i < end; ++i) seen[i] = p.at(batch, iy, i - p.x.padding);
    for (int64_t i = end; i < columns; ++i) seen[i] = s.zeros;
  }
}

static inline void run_depthwise(const Call& call, const LastPlan& p, int64_t begin, int64_t end,
                                 char* scratch) {
  const DepthwiseScratch s(p, scratch);
  fill_zeros(s.zeros, p.channels);
  const Tensor *bias = call.src[2], *residual = call.src[3];
  const int64_t lines = p.y.out * p.batches;
  const int64_t parts = depthwise_parts(p, call.n_threads);
  const int64_t width = round_up((p.channels + parts - 1) / parts, kLanes);
  const bool by_rows = depthwise_by_rows(p);
  const int64_t tiles = (p.x.out + kOutputs - 1) / kOutputs;
  DepthwiseTile t = {};
  t.columns = depthwise_columns(p);
  t.weights = reinterpret_cast<const float*>(call.src[1]->data);
  t.channels = p.channels;
  t.bias = bias == nullptr ? nullptr : reinterpret_cast<const float*>(bias->data);
  t.out_step = call.dst.nb[1];
  t.stride = p.x.stride;
  t.dilation = p.x.dilation;
  t.taps_x = p.x.taps;
  t.taps_y = p.y.taps;
  t.low = p.low;
  t.high = p.high;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t part = by_rows ? item % parts : item / lines;
    const int64_t line = by_rows ? item / parts : item % lines;
    const int64_t batch = line / p.y.out, oy = line - batch * p.y.out;
    const int64_t first = part * width, last = min64(first + width, p.channels);
    if (first >= last) continue;
    see_rows(p, s, batch, oy);
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t ox = p.x.out * i / tiles, n = p.x.out * (i + 1) / tiles - ox;
      const Index at = {ox, oy, batch};
      t.seen = s.seen + ox * p.x.stride;
      t.out = row_data(call.dst, at);
      if (residual != nullptr) {
        t.residual = row_data(*residual, at);
        t.residual_step = residual->nb[1];
      }
      depthwise_of(p, n)(t, first, last);
      if (p.function == nullptr) continue;
      float* rows[kOutputs];
      for (int64_t r = 0; r < n; ++r) rows[r] = reinterpret_cast<float*>(t.out + r * t.out_step);
      p.function(rows, n, first, last - first);
    }
  }
}

}  // namespace weft::WEFT_TARGET
