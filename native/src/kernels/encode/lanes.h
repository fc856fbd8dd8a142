// Vectors for the encoders of files: a lane is a block, so that kLanes blocks are encoded at once
// and each of them by the operations of the reference in its order, which its bytes depend on.
#pragma once

#include "kernels/encode/encode.h"
#include "kernels/simd/lanes.h"
#include "kernels/simd/math.h"
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

static inline vi least(vi a, vi b) { return a < b ? a : b; }
static inline vi most(vi a, vi b) { return a > b ? a : b; }
static inline vi clamp(vi x, int32_t low, int32_t high) {
  return most(least(x, splat_int(high)), splat_int(low));
}

// nearest_int of codec.h.
static inline vi nearest_int(vf x) {
  return (reinterpret_cast<vi>(x + splat(12582912.0f)) & 0x007fffff) - 0x00400000;
}

// kLanes blocks of n elements beside each other: element i of all of them is at[i].
template <int n>
struct Tile {
  vf at[n];

  // From blocks that begin at `blocks[lane]`.
  void fill(const float* const* blocks) {
    auto* to = reinterpret_cast<float*>(at);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float* x = blocks[lane];
      for (int i = 0; i < n; ++i) to[i * kLanes + lane] = x[i];
    }
  }
};

// The sum of the squares of n elements, in their order.
static inline vf sum_of_squares(const vf* x, int n) {
  vf sum = {};
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

// The importance of elements: w * sqrt(sigma2 + x * x).
static inline void weigh(const vf* x, const vf* w, vf sigma2, int n, vf* out) {
  for (int i = 0; i < n; ++i) out[i] = w[i] * vsqrt(sigma2 + x[i] * x[i]);
}

// Calls encode(group) for kLanes blocks at a time, where a group knows where they are. Lanes beyond
// the last block repeat it, and are not stored.
template <typename Block, int kSize>
struct Group {
  const float* x[kLanes];
  const float* weights[kLanes];  // where there are weights
  Block* out;
  int n;  // blocks that are stored
  bool weighted;
};

template <typename Block, int kSize, typename Encode>
static inline void by_groups(const EncodeRows& rows, const Encode& encode) {
  const int64_t per_row = rows.ne0 / kSize;
  const int64_t n = rows.n_rows * per_row;
  auto* out = static_cast<Block*>(rows.dst);
  Group<Block, kSize> group = {};
  group.weighted = rows.weights != nullptr;
  for (int64_t first = 0; first < n; first += kLanes) {
    group.n = static_cast<int>(n - first < kLanes ? n - first : kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t block = first + (lane < group.n ? lane : group.n - 1);
      group.x[lane] = rows.src + block * kSize;
      if (group.weighted) group.weights[lane] = rows.weights + block % per_row * kSize;
    }
    group.out = out + first;
    encode(group);
  }
}

}  // namespace weft::WEFT_TARGET
