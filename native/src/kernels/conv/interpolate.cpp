// INTERPOLATE: resampling of 1 to 3 dimensions, as PyTorch does it, or of 4 as ggml's UPSCALE does.
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

bool is_upscale(InterpolateMode mode) { return mode >= kUpscaleNearest; }

// The places that a result reads along one axis, and their weights.
struct Taps {
  int64_t* place;
  float* weight;
};

int64_t inside(int64_t i, int64_t n) { return i < 0 ? 0 : min64(i, n - 1); }

// The samples along one axis. Places are computed in float, as PyTorch and ggml do: rounding
// decides which neighbour a sample on an edge takes.
struct Samples {
  InterpolateMode mode;
  int64_t in, out;
  bool corners;
  float step;   // distance in the source
  float ratio;  // of UPSCALE: results for each element of the source
  float half;   // of an element; 0 where the corners are put on each other

  Samples(const Call& call, int d)
      : mode(call.as<InterpolateMode>(kMode)),
        in(call.src[0]->ne[d]),
        out(call.dst.ne[d]),
        corners(call.i(kAlignCorners) != 0) {
    if (is_upscale(mode)) {
      corners = corners && d < 2;
      if (d >= 2) mode = kUpscaleNearest;
      const bool between = corners && out > 1 && in > 1;
      ratio = between ? static_cast<float>(out - 1) / static_cast<float>(in - 1)
                      : static_cast<float>(out) / static_cast<float>(in);
      half = corners ? 0.0f : 0.5f;
      return;
    }
    const double scale = call.number(kScaleW, d);
    if (corners) {
      step = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
    } else {
      step = scale > 0 ? static_cast<float>(1.0 / scale)
                       : static_cast<float>(in) / static_cast<float>(out);
    }
  }

  // Whether every result is the element at its own place.
  bool is_same() const {
    if (in != out || mode == kCubic || mode == kUpscaleCubic) return false;
    return is_upscale(mode) ? ratio == 1.0f : step == 1.0f;
  }

  // Elements that a result reads.
  int64_t n() const {
    if (mode == kUpscaleTriangle) return min64(in, static_cast<int64_t>(2 * support()) + 2);
    if (mode == kLinear || mode == kUpscaleLinear) return 2;
    return mode == kCubic || mode == kUpscaleCubic ? 4 : 1;
  }

  void at(int64_t o, const Taps& t) const {
    const auto x = static_cast<float>(o);
    if (is_upscale(mode)) return upscaled(x, t);
    if (mode == kNearest || mode == kNearestExact) {
      const float place = within(::floorf((mode == kNearestExact ? x + 0.5f : x) * step));
      t.place[0] = inside(static_cast<int64_t>(place), in);
      t.weight[0] = 1.0f;
      return;
    }
    float place = within(corners ? x * step : step * (x + 0.5f) - 0.5f);
    if (mode == kCubic) return cubic(place, t);
    if (place < 0) place = 0;
    const int64_t low = min64(static_cast<int64_t>(place), in - 1);
    const float part = place - static_cast<float>(low);
    t.place[0] = low;
    t.place[1] = min64(low + 1, in - 1);
    t.weight[1] = part < 0 ? 0.0f : part > 1 ? 1.0f : part;
    t.weight[0] = 1.0f - t.weight[1];
  }

  // Rounds as ggml's UPSCALE does.
  void upscaled(float x, const Taps& t) const {
    if (mode == kUpscaleNearest) {
      t.place[0] = inside(static_cast<int64_t>(x / ratio), in);
      t.weight[0] = 1.0f;
      return;
    }
    const float centre = (x + half) / ratio;
    if (mode == kUpscaleTriangle) return triangle(centre, t);
    if (mode == kUpscaleCubic) return cubic(centre - half, t);
    const float low = ::floorf(centre - half);
    t.place[0] = inside(static_cast<int64_t>(low), in);
    t.place[1] = inside(static_cast<int64_t>(low) + 1, in);
    t.weight[1] = centre - half - low;
    t.weight[0] = 1.0f - t.weight[1];
  }

  float support() const { return 1.0f / ratio > 1.0f ? 1.0f / ratio : 1.0f; }

  // A triangle as wide as the shrinking, never narrower than an element on each side.
  void triangle(float centre, const Taps& t) const {
    const float low = centre - support() + half, high = centre + support() + half;
    const int64_t first = low > 0 ? static_cast<int64_t>(low) : 0;
    const int64_t end = min64(static_cast<int64_t>(high), in);
    float sum = 0;
    for (int64_t k = 0; k < n(); ++k) {
      const float distance = (static_cast<float>(first + k) - centre + half) / support();
      const float height = 1.0f - (distance < 0 ? -distance : distance);
      t.place[k] = inside(first + k, in);
      t.weight[k] = first + k < end && height > 0 ? height : 0;
      sum += t.weight[k];
    }
    for (int64_t k = 0; k < n() && sum != 0; ++k) t.weight[k] /= sum;
  }

  // A place not far outside, whatever the scale is.
  float within(float place) const {
    const auto end = static_cast<float>(in);
    if (!(place < end)) return end;
    return place < -1.0f ? -1.0f : place;
  }

  // Keys' kernel with a = -0.75 (IEEE Trans. ASSP 29, 1981).
  void cubic(float place, const Taps& t) const {
    constexpr float a = -0.75f;
    const auto near = [](float x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
    const auto far = [](float x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
    const float low = ::floorf(place), part = place - low;
    t.weight[0] = far(part + 1);
    t.weight[1] = near(part);
    t.weight[2] = near(1 - part);
    t.weight[3] = far(2 - part);
    for (int k = 0; k < 4; ++k) t.place[k] = inside(static_cast<int64_t>(low) + k - 1, in);
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
  Taps across;   // of each result of a row, one after another
  Taps down[3];  // of the row, along the other axes
  size_t used;

  Scratch(const Call& call, char* memory) {
    const int64_t in = call.src[0]->ne[0], n = call.dst.ne[0];
    int64_t counts[4] = {};
    for (int d = 0; d < call.i(kDims); ++d) counts[d] = Samples(call, d).n();
    counts[0] *= n;
    auto* places = reinterpret_cast<int64_t*>(memory);
    auto* floats = reinterpret_cast<float*>(places + counts[0] + counts[1] + counts[2] + counts[3]);
    for (int d = 0; d < 4; ++d) {
      (d == 0 ? across : down[d - 1]) = {places, floats};
      places += counts[d];
      floats += counts[d];
    }
    row = floats;
    sum = row + in;
    out = sum + in;
    used = static_cast<size_t>(reinterpret_cast<char*>(out + n) - memory);
  }
};

void run(const Call& call, int64_t begin, int64_t end, char* memory) {
  const Tensor& x = *call.src[0];
  const Tensor& dst = call.dst;
  const auto dims = static_cast<int>(call.i(kDims));
  const Scratch s(call, memory);
  const int64_t n = dst.ne[0], in = x.ne[0];
  const Samples across(call, 0);
  const int64_t taps = across.n();
  const bool same = across.is_same();
  for (int64_t o = 0; o < n && !same; ++o) {
    across.at(o, {s.across.place + o * taps, s.across.weight + o * taps});
  }
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(dst, item);
    const int64_t place[3] = {at.i1, at.i2, at.i3};
    int64_t counts[3] = {1, 1, 1}, first[3] = {at.i1, at.i2, at.i3};
    for (int d = 1; d < dims; ++d) {
      const Samples down(call, d);
      counts[d - 1] = down.n();
      down.at(place[d - 1], s.down[d - 1]);
      first[d - 1] = 0;
    }
    // the last axis is read at one place
    if (dims > 3) first[2] = s.down[2].place[0];
    const char* base = row_data(x, {first[0], first[1], first[2]});
    const float* sum = nullptr;
    for (int64_t k = 0; k < counts[1]; ++k) {
      const char* plane = base + (dims > 2 ? s.down[1].place[k] * x.nb[2] : 0);
      for (int64_t j = 0; j < counts[0]; ++j) {
        const char* p = plane + (dims > 1 ? s.down[0].place[j] * x.nb[1] : 0);
        const float* row = numbers_at(p, x.type, x.nb[0], in, s.row);
        if (counts[0] * counts[1] == 1) {
          sum = row;
          break;
        }
        const float z = dims > 2 ? s.down[1].weight[k] : 1.0f;
        add_row(z * s.down[0].weight[j], row, in, k + j == 0, s.sum);
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
      const int64_t* from = s.across.place + o * taps;
      const float* weight = s.across.weight + o * taps;
      float value = weight[0] * sum[from[0]];
      for (int64_t k = 1; k < taps; ++k) value += weight[k] * sum[from[k]];
      room[o] = value;
    }
    if (room == s.out) store_numbers(s.out, n, out, dst.type, dst.nb[0]);
  }
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }

// The taps of a row are found once for every run of items.
int64_t grain(const Call& call) { return max64(4, row_grain(8 * call.dst.ne[0])); }

size_t scratch_bytes(const Call& call) { return Scratch(call, nullptr).used; }

const char* check(const Call& call) {
  const Tensor& x = *call.src[0];
  if (!call.is_one<InterpolateMode>(kMode)) return "unknown interpolation";
  const int64_t most = is_upscale(call.as<InterpolateMode>(kMode)) ? 4 : 3;
  if (call.i(kDims) < 1 || call.i(kDims) > most) return "needs 1 to 3 dimensions, UPSCALE's 4";
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
