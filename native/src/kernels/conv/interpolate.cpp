// INTERPOLATE: resampling of 1 to 3 dimensions, as PyTorch does it.
//
// An item is a row of results: the rows that it lies between are weighted and added up, then the
// elements that each result lies between.
#include <math.h>

#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_interpolate(KernelTable& table);

namespace {

using enum InterpolateSlot;
using enum InterpolateMode;

constexpr int kMostTaps = 4;

// What a result reads along one axis.
struct Taps {
  int64_t place[kMostTaps];
  float weight[kMostTaps];
};

// The samples along one axis: distance in the source, in float as PyTorch computes it.
struct Samples {
  InterpolateMode mode;
  int64_t in, out;
  bool corners;
  float step;

  Samples(const Call& call, int d)
      : mode(call.as<InterpolateMode>(kMode)),
        in(call.src[0]->ne[d]),
        out(call.dst.ne[d]),
        corners(call.i(kAlignCorners) != 0) {
    const double scale = call.number(kScaleW, d);
    if (corners) {
      step = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
    } else {
      step = scale > 0 ? static_cast<float>(1.0 / scale)
                       : static_cast<float>(in) / static_cast<float>(out);
    }
  }

  // Whether every result is the element at its own place.
  bool is_same() const { return mode != kCubic && in == out && step == 1.0f; }

  int n() const { return mode == kLinear ? 2 : mode == kCubic ? 4 : 1; }

  Taps at(int64_t o) const {
    Taps t = {};
    const auto x = static_cast<float>(o);
    if (mode == kNearest || mode == kNearestExact) {
      const float place = within(::floorf((mode == kNearestExact ? x + 0.5f : x) * step));
      t.place[0] = min64(max64(0, static_cast<int64_t>(place)), in - 1);
      t.weight[0] = 1.0f;
      return t;
    }
    float place = within(corners ? x * step : step * (x + 0.5f) - 0.5f);
    if (mode == kLinear) {
      if (place < 0) place = 0;
      const int64_t low = min64(static_cast<int64_t>(place), in - 1);
      const float part = place - static_cast<float>(low);
      t.place[0] = low;
      t.place[1] = min64(low + 1, in - 1);
      t.weight[1] = part < 0 ? 0.0f : part > 1 ? 1.0f : part;
      t.weight[0] = 1.0f - t.weight[1];
      return t;
    }
    const float low = ::floorf(place);
    cubic_weights(place - low, t.weight);
    for (int k = 0; k < 4; ++k) {
      const int64_t i = static_cast<int64_t>(low) + k - 1;
      t.place[k] = i < 0 ? 0 : min64(i, in - 1);
    }
    return t;
  }

  // A place not far outside, whatever the scale is.
  float within(float place) const {
    const auto end = static_cast<float>(in);
    if (!(place < end)) return end;
    return place < -1.0f ? -1.0f : place;
  }

  // Keys' kernel with a = -0.75.
  static void cubic_weights(float t, float* w) {
    constexpr float a = -0.75f;
    const auto near = [](float x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
    const auto far = [](float x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
    w[0] = far(t + 1);
    w[1] = near(t);
    w[2] = near(1 - t);
    w[3] = far(2 - t);
  }
};

// sum (+)= weight * row
void add_row(float weight, const float* row, int64_t n, bool first, float* sum) {
  if (first) {
    for (int64_t i = 0; i < n; ++i) sum[i] = weight * row[i];
  } else {
    for (int64_t i = 0; i < n; ++i) sum[i] += weight * row[i];
  }
}

struct Scratch {
  float* row;
  float* sum;
  float* out;
  Taps* taps;  // of each result of a row

  Scratch(const Call& call, char* p) {
    const int64_t in = call.src[0]->ne[0], n = call.dst.ne[0];
    taps = reinterpret_cast<Taps*>(p);
    row = reinterpret_cast<float*>(taps + n);
    sum = row + in;
    out = sum + in;
  }
};

void run(const Call& call, int64_t begin, int64_t end, char* memory) {
  const Tensor& x = *call.src[0];
  const Tensor& dst = call.dst;
  const auto dims = static_cast<int>(call.i(kDims));
  const Scratch s(call, memory);
  const int64_t n = dst.ne[0], in = x.ne[0];
  const Samples across(call, 0);
  const int taps = across.n();
  const bool same = across.is_same();
  for (int64_t o = 0; o < n && !same; ++o) s.taps[o] = across.at(o);
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(dst, item);
    Index from = at;
    Taps y = {}, z = {};
    int n_y = 1, n_z = 1;
    y.weight[0] = z.weight[0] = 1.0f;
    if (dims > 1) {
      const Samples down(call, 1);
      y = down.at(at.i1);
      n_y = down.n();
      from.i1 = 0;
    }
    if (dims > 2) {
      const Samples deep(call, 2);
      z = deep.at(at.i2);
      n_z = deep.n();
      from.i2 = 0;
    }
    const char* base = row_data(x, from);
    const float* sum = nullptr;
    for (int k = 0; k < n_z; ++k) {
      for (int j = 0; j < n_y; ++j) {
        const char* p =
            base + z.place[k] * (dims > 2 ? x.nb[2] : 0) + y.place[j] * (dims > 1 ? x.nb[1] : 0);
        const float* row = numbers_at(p, x.type, x.nb[0], in, s.row);
        if (n_y * n_z == 1) {
          sum = row;
          break;
        }
        add_row(z.weight[k] * y.weight[j], row, in, k + j == 0, s.sum);
        sum = s.sum;
      }
    }
    char* out = row_data(dst, at);
    if (same) {
      store_numbers(sum, n, out, dst.type, dst.nb[0]);
      continue;
    }
    float* room = lies_as<float>(dst.type, dst.nb[0]) ? reinterpret_cast<float*>(out) : s.out;
    for (int64_t o = 0; o < n; ++o) {
      const Taps& t = s.taps[o];
      float value = t.weight[0] * sum[t.place[0]];
      for (int k = 1; k < taps; ++k) value += t.weight[k] * sum[t.place[k]];
      room[o] = value;
    }
    if (room == s.out) store_numbers(s.out, n, out, dst.type, dst.nb[0]);
  }
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }

// The taps of a row are found once for every run of items.
int64_t grain(const Call& call) { return max64(4, row_grain(8 * call.dst.ne[0])); }

size_t scratch_bytes(const Call& call) {
  const auto in = static_cast<size_t>(call.src[0]->ne[0]);
  const auto n = static_cast<size_t>(call.dst.ne[0]);
  return n * (sizeof(Taps) + 4) + 2 * in * 4;
}

const char* check(const Call& call) {
  const Tensor& x = *call.src[0];
  if (!call.is_one<InterpolateMode>(kMode) || call.i(kDims) < 1 || call.i(kDims) > 3) {
    return "unknown mode, or no 1 to 3 dimensions";
  }
  if (!is_float(x.type) || call.dst.type != x.type) return "needs f32, f16 or bf16, in and out";
  for (int d = 0; d < 4; ++d) {
    const bool spatial = d < call.i(kDims);
    if (!spatial && call.dst.ne[d] != x.ne[d]) return "result and source differ in channels";
    if (spatial && x.ne[d] == 0 && call.dst.ne[d] != 0) return "there is nothing to read";
  }
  return nullptr;
}

}  // namespace

void register_interpolate(KernelTable& table) {
  table[Op::kInterpolate] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
