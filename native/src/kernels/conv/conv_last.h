// The geometry of CONV_2D_LAST: data [c, w, h, n], weights [oc, c, kw, kh], channels innermost.
//
// What an output sees are runs of floats: the channels of an input position for each tap. No padded
// data are made: where a tap lies outside, the run is one of zeros.
#pragma once

#include "kernels/conv/conv_grid.h"
#include "kernels/conv/conv_last_function.h"

namespace weft::WEFT_TARGET {

// Taps of so few channels are taken together along a row: loops over one of them are too short.
constexpr int64_t kFewChannels = 32;

struct LastPlan {
  Axis x, y;
  int64_t channels, out_channels, batches;
  int64_t positions;  // outputs of a channel
  bool depthwise;
  bool merged;        // a run is all taps along x
  int64_t runs, run;  // that an output sees, and floats of one
  const char* data;
  int64_t batch_step;  // bytes
  float low, high;
  RowsFunction function;  // of the result; null: none but the bounds
  bool scaled;            // by a factor for each channel of an image

  explicit LastPlan(const Call& call) {
    const Tensor& t = *call.src[0];
    const Tensor& kernel = *call.src[1];
    Axis axes[2];
    read_steps<ConvLastSlot>(call, 2, axes);
    for (int d = 0; d < 2; ++d) {
      axes[d].behind = call.i(ConvLastSlot::kPaddingAfter, d);
      axes[d].in = t.ne[1 + d];
      axes[d].taps = kernel.ne[2 + d];
      axes[d].out = call.dst.ne[1 + d];
      axes[d].step = t.nb[1 + d];
    }
    x = axes[0];
    y = axes[1];
    channels = t.ne[0];
    out_channels = call.dst.ne[0];
    batches = call.dst.ne[3];
    positions = x.out * y.out * batches;
    depthwise = call.i(ConvLastSlot::kGroups) != 1;
    merged = !depthwise && channels < kFewChannels && x.taps > 1 && x.dilation == 1 &&
             x.step == channels * 4;
    runs = merged ? y.taps : x.taps * y.taps;
    run = merged ? x.taps * channels : channels;
    data = t.data;
    batch_step = t.nb[3];
    function = function_of(call.as<Activation>(ConvLastSlot::kFunction));
    low = function == nullptr ? call.f(ConvLastSlot::kLow) : -__builtin_inff();
    high = function == nullptr ? call.f(ConvLastSlot::kHigh) : __builtin_inff();
    scaled = call.src[4] != nullptr;
  }

  int64_t depth() const { return runs * run; }
  // Input (ix, iy) of a batch; to be read only where it is inside.
  const float* at(int64_t batch, int64_t iy, int64_t ix) const {
    return reinterpret_cast<const float*>(data + batch * batch_step + iy * y.step + ix * x.step);
  }
};

static inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Scratch is handed out in pieces that begin at cache lines.
struct Pieces {
  char* next;

  explicit Pieces(char* memory) : next(memory) {}
  template <typename T>
  T* take(int64_t n) {
    next += (64 - reinterpret_cast<uintptr_t>(next) % 64) % 64;
    T* piece = reinterpret_cast<T*>(next);
    next += n * static_cast<int64_t>(sizeof(T));
    return piece;
  }
};

// `n` things in `count` shares that differ by one at most, one after another.
struct Shares {
  int64_t count, least, more_than_least;
  int64_t begin = 0, number = 0;

  Shares(int64_t n, int64_t parts)
      : count(parts), least(n / parts), more_than_least(n - least * parts) {}
  bool more() const { return number < count; }
  int64_t size() const { return least + (number < more_than_least ? 1 : 0); }
  void next() {
    begin += size();
    ++number;
  }
};

// Both bounds; a NaN stays one.
static inline vf clamped(vf v, vf low, vf high) {
  v = low > v ? low : v;
  return high < v ? high : v;
}

}  // namespace weft::WEFT_TARGET
