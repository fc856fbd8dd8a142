// The geometry of a convolution: which inputs an output sees through which tap.
//
// Output o meets tap k at input o * stride + k * dilation - padding; outside the input there are
// zeros. Three axes (x, y, z), of which lower-dimensional convolutions leave the last ones at 1.
#pragma once

#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

struct Axis {
  int64_t in = 1;
  int64_t taps = 1;
  int64_t out = 1;
  int64_t step = 0;  // bytes between neighbours in the data
  int64_t stride = 1;
  int64_t padding = 0;
  int64_t behind = 0;  // padding behind the data; CONV_2D_LAST alone has it
  int64_t dilation = 1;

  // Where tap k of output 0 lies.
  int64_t offset(int64_t k) const { return k * dilation - padding; }
};

struct Range {
  int64_t begin, end;
};

// The i in [0, n) for which i * stride + offset is in [0, limit).
static inline Range inside(int64_t n, int64_t stride, int64_t offset, int64_t limit) {
  const int64_t begin = offset < 0 ? (-offset + stride - 1) / stride : 0;
  const int64_t end = offset < limit ? (limit - 1 - offset) / stride + 1 : 0;
  const int64_t last = end < n ? end : n;
  return {begin < last ? begin : last, last};
}

// Strides, paddings and dilations of the first `used` axes.
template <typename Slot>
static inline void read_steps(const Call& call, int used, Axis* axes) {
  for (int d = 0; d < used; ++d) {
    axes[d].stride = call.i(Slot::kStride, d);
    axes[d].padding = call.i(Slot::kPadding, d);
    axes[d].dilation = call.i(Slot::kDilation, d);
  }
}

template <typename Slot>
static inline bool steps_are_legal(const Call& call, int used) {
  for (int d = 0; d < used; ++d) {
    if (!is_count(call, Slot::kStride, 1, d) || !is_count(call, Slot::kPadding, 0, d) ||
        !is_count(call, Slot::kDilation, 1, d)) {
      return false;
    }
  }
  return true;
}

static inline void fill_zeros(float* p, int64_t n) {
  for (int64_t i = 0; i < n; ++i) p[i] = 0;
}

inline constexpr char kBadSteps[] = "stride and dilation must be 1 or more, padding 0 or more";

}  // namespace weft::WEFT_TARGET
