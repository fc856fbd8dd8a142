// The sums of CONV_ND: the weights in the order in which outputs meet them, and their products with
// the planes, for a block of outputs. A part of conv_nd.cpp, which alone includes it.
#pragma once

#include "kernels/conv/conv_nd.h"
#include "kernels/conv/conv_nd_tile.h"

namespace weft::WEFT_TARGET {

namespace {

// Floats behind the planes that the last block may read.
constexpr int64_t kSlack = kAloneBlock;

// The scratch memory of a thread.
struct Scratch {
  int64_t* places;
  int64_t* weight_places;
  int64_t* packed_places;
  float* starts;   // [rows]: the bias
  float* packed;   // [kDeep][kBlock]: pieces of planes, side by side
  float* sums;     // [rows][block]
  float* weights;  // [kRows][kDeep]
  float* planes;   // of one channel, where an item makes them
  size_t used;

  Scratch(const ConvPlan& p, char* memory) {
    places = reinterpret_cast<int64_t*>(memory);
    weight_places = places + p.depth();
    packed_places = weight_places + p.depth();
    const int64_t rows = round_up(p.out_channels, kRows);
    starts = reinterpret_cast<float*>(packed_places + kDeep);
    const auto lines = (reinterpret_cast<uintptr_t>(starts + rows) + 63) / 64;
    packed = reinterpret_cast<float*>(lines * 64);
    sums = packed + (p.out_channels >= kPacks ? kDeep * kBlock : 0);
    weights = sums + (p.out_channels == 1 ? kAloneBlock : rows * kBlock);
    planes = weights + kRows * kDeep;
    const int64_t own = p.depthwise() ? p.channel + kSlack : 0;
    used = static_cast<size_t>(reinterpret_cast<char*>(planes + own) - memory) + 64;
  }
};

// Planes of all channels, then the weights in order, in the memory that all threads share.
int64_t shared_planes(const ConvPlan& p) {
  return p.batches * p.groups * p.in_channels * p.channel + kSlack;
}

float* ordered_weights(const Call& call, const ConvPlan& p) {
  return reinterpret_cast<float*>(call.shared) + shared_planes(p);
}

// Where the weights of an output channel begin, in elements. In a transposed kernel the input
// channels of all groups come one after another.
int64_t first_of_row(const ConvPlan& p, int64_t group, int64_t row) {
  return group *
             (p.transposed ? p.in_channels * p.channel_weights : p.out_channels * p.row_weights) +
         row * p.row_weights;
}

// The weights of an output channel that outputs of a phase meet, in the order of `plan_phase`.
void order_weights(const Call& call, const ConvPlan& p, int64_t number, int64_t row, float* out) {
  const Tensor& kernel = *call.src[1];
  const int64_t size = element_size(kernel.type);
  const char* from =
      kernel.data + first_of_row(p, row / p.out_channels, row % p.out_channels) * size;
  if (!p.transposed) return load_floats(from, kernel.type, size, p.depth(), out);
  const int64_t taps = p.phase_depth(number) / p.in_channels;
  const ConvAxis &ax = p.axes[0], &ay = p.axes[1], &az = p.axes[2];
  const int64_t x = number % ax.phases, y = number / ax.phases % ay.phases;
  const int64_t z = number / ax.phases / ay.phases;
  int64_t plane, index;
  for (int64_t kz = 0; kz < az.taps; ++kz) {
    if (!az.meets(z, kz, true, plane, index)) continue;
    for (int64_t ky = 0; ky < ay.taps; ++ky) {
      if (!ay.meets(y, ky, true, plane, index)) continue;
      for (int64_t kx = 0; kx < ax.taps; ++kx) {
        if (!ax.meets(x, kx, true, plane, index)) continue;
        const char* tap = from + ((kz * ay.taps + ky) * ax.taps + kx) * size;
        for (int64_t c = 0; c < p.in_channels; ++c) {
          out[c * taps] = load_element(tap + c * p.channel_weights * size, kernel.type);
        }
        ++out;
      }
    }
  }
}

// Weights k .. k+n of rows `row` on: where they are, where `prepare` put them, or brought together.
const float* weights_of(const Call& call, const ConvPlan& p, const ConvPhase& phase,
                        const Scratch& s, int64_t group, int64_t row, int64_t rows, int64_t k,
                        int64_t n, int64_t& row_step) {
  const Tensor& kernel = *call.src[1];
  if (p.orders_weights(kernel.type)) {
    row_step = phase.depth;
    return ordered_weights(call, p) + phase.first_weight +
           (group * p.out_channels + row) * phase.depth + k;
  }
  const int64_t base = first_of_row(p, group, row);
  if (kernel.type == DType::kF32 && !p.transposed) {
    row_step = p.row_weights;
    return reinterpret_cast<const float*>(kernel.data) + base + k;
  }
  row_step = kDeep;
  const int64_t size = element_size(kernel.type);
  for (int64_t r = 0; r < rows; ++r) {
    const char* from = kernel.data + (base + r * p.row_weights) * size;
    float* to = s.weights + r * kDeep;
    if (!p.transposed) {
      load_floats(from + k * size, kernel.type, size, n, to);
      continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      to[i] = load_element(from + s.weight_places[k + i] * size, kernel.type);
    }
  }
  return s.weights;
}

// Pieces of planes of `n` outputs side by side: all output channels read them again, and in the
// planes they are pages apart.
void pack(const float* x, const int64_t* places, int64_t deep, int64_t n, float* to) {
  for (int64_t k = 0; k < deep; ++k, to += kBlock) {
    const float* from = x + places[k];
    int64_t c = 0;
    for (; c < n; c += kLanes) store(to + c, load(from + c));
    for (; c < kBlock; c += kLanes) store(to + c, splat(0));
  }
}

// Weights of the next tile: pieces of rows are too short for the processor to see them coming.
void fetch(const float* w, int64_t row_step, int64_t rows, int64_t deep) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < deep; k += 16) __builtin_prefetch(w + r * row_step + k);
  }
}

// Sums of a part of the output channels to `out`, for `n` outputs whose pieces of planes begin at
// `x`. Up to `room` outputs may be read and written.
void multiply(const Call& call, const ConvPlan& p, const ConvPhase& phase, const Scratch& s,
              int64_t group, int64_t row, int64_t rows, const float* x, int64_t n, int64_t room,
              int64_t block, float* out, int64_t out_step) {
  const bool packs = rows >= kPacks;
  for (int64_t k = 0; k < phase.depth; k += kDeep) {
    const int64_t deep = min64(kDeep, phase.depth - k);
    const float* data = x;
    const int64_t* places = s.places + k;
    if (packs) {
      pack(x, places, deep, n, s.packed);
      data = s.packed;
      places = s.packed_places;
    }
    const bool last = k + deep == phase.depth;
    const Sums sums = {k == 0 ? s.starts : nullptr, s.sums, block, last ? out : s.sums,
                       last ? out_step : block};
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t high = min64(kRows, rows - r);
      int64_t row_step;
      const float* w = weights_of(call, p, phase, s, group, row + r, high, k, deep, row_step);
      const bool more = r + kRows < rows;
      if (w != s.weights && (more || !last)) {
        const float* next = more ? w + kRows * row_step : w - r * row_step + deep;
        fetch(next, row_step, min64(kRows, more ? rows - r - kRows : rows), deep);
      }
      const int64_t wide = (high == 1 ? kAlone : kVectors) * kLanes;
      int64_t c = 0;
      for (; n - c > wide / 2 && c + wide <= room; c += wide) {
        kWide.of[high - 1](w, row_step, data + c, places, deep, sums.at(r, c));
      }
      for (; c < n; c += kLanes) {
        kNarrow.of[high - 1](w, row_step, data + c, places, deep, sums.at(r, c));
      }
    }
  }
}

// The same for a few outputs: products of the weights with what each output reads.
void dots(const Call& call, const ConvPlan& p, const ConvPhase& phase, const Scratch& s,
          int64_t group, int64_t row, int64_t rows, const float* x, int64_t n, int64_t block) {
  constexpr int64_t kSeen = 2048;
  float seen[kSeen];
  const DType type = call.src[1]->type;
  const bool in_rows = p.orders_weights(type) || (type == DType::kF32 && !p.transposed);
  const int64_t step = in_rows ? kSeen : kDeep;
  for (int64_t k = 0; k < phase.depth; k += step) {
    const int64_t deep = min64(step, phase.depth - k);
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t i = 0; i < deep; ++i) seen[i] = x[s.places[k + i] + c];
      for (int64_t r = 0; r < rows; ++r) {
        int64_t row_step;
        const float* w = weights_of(call, p, phase, s, group, row + r, 1, k, deep, row_step);
        vf sum[4] = {};
        int64_t i = 0;
        for (; i + 4 * kLanes <= deep; i += 4 * kLanes) {
          for (int j = 0; j < 4; ++j) {
            const int64_t at = i + j * kLanes;
            sum[j] = fma(load(w + at), load(seen + at), sum[j]);
          }
        }
        float rest = 0;
        for (; i < deep; ++i) rest += w[i] * seen[i];
        const float start = k == 0 ? s.starts[r] : s.sums[r * block + c];
        s.sums[r * block + c] = start + (hsum(sum[0] + sum[1] + (sum[2] + sum[3])) + rest);
      }
    }
  }
}

}  // namespace

}  // namespace weft::WEFT_TARGET
