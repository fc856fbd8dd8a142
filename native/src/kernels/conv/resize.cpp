// UPSCALE: images resampled by nearest, bilinear or bicubic interpolation; dimensions 2 and 3
// always by the nearest sample.
#include <math.h>

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

void register_resize(KernelTable& table);

namespace {

using enum UpscaleSlot;
using enum ScaleMode;

// One dimension. Positions are computed in float, as in ggml: rounding decides which neighbour a
// sample on the edge takes.
struct Axis {
  int64_t n;      // input samples
  float ratio;    // output samples per input sample
  float half;     // of a pixel; 0 when the corner samples are put on each other
  float support;  // antialiasing: half the width of the triangle
};

Axis make_axis(const Call& call, int d) {
  const int64_t n_in = call.src[0]->ne[d];
  const int64_t n_out = call.dst.ne[d];
  const bool align = d < 2 && call.i(kAlignCorners) != 0;
  Axis a;
  a.n = n_in;
  a.ratio = align && n_out > 1 && n_in > 1
                ? static_cast<float>(n_out - 1) / static_cast<float>(n_in - 1)
                : static_cast<float>(n_out) / static_cast<float>(n_in);
  a.half = align ? 0.0f : 0.5f;
  a.support = 1.0f / a.ratio > 1.0f ? 1.0f / a.ratio : 1.0f;
  return a;
}

int64_t clamp(int64_t i, int64_t n) { return i < 0 ? 0 : i < n ? i : n - 1; }

int64_t nearest(const Axis& a, int64_t i) {
  return clamp(static_cast<int64_t>(static_cast<float>(i) / a.ratio), a.n);
}

// The input samples that make an output sample: first..last, taken at the edge where they leave it.
struct Window {
  int64_t first;
  int64_t last;
  float at;     // where the output sample lies, in input samples
  float scale;  // the weights add up to this
};

struct Nearest {
  static Window window(const Axis& a, int64_t i) {
    const int64_t at = nearest(a, i);
    return {at, at, 0, 1};
  }
  static float weight(const Axis&, const Window&, int64_t) { return 1; }
};

float centre(const Axis& a, int64_t i) { return (static_cast<float>(i) + a.half) / a.ratio; }

struct Linear {
  static Window window(const Axis& a, int64_t i) {
    const float at = centre(a, i) - a.half;
    const auto low = static_cast<int64_t>(::floorf(at));
    return {low, low + 1, at, 1};
  }
  static float weight(const Axis&, const Window& w, int64_t sample) {
    const float part = w.at - static_cast<float>(w.first);
    return sample == w.first ? 1.0f - part : part;
  }
};

// A triangle as wide as the shrinking, never narrower than an input sample on each side.
struct Triangle {
  static Window window(const Axis& a, int64_t i) {
    Window w;
    w.at = centre(a, i);
    const float low = w.at - a.support + a.half;
    const float high = w.at + a.support + a.half;
    w.first = low > 0 ? static_cast<int64_t>(low) : 0;
    w.last = min64(static_cast<int64_t>(high), a.n) - 1;
    w.scale = 0;
    for (int64_t s = w.first; s <= w.last; ++s) w.scale += weight(a, w, s);
    if (w.scale == 0.0f) w.scale = 1;
    return w;
  }
  static float weight(const Axis& a, const Window& w, int64_t sample) {
    const float distance = (static_cast<float>(sample) - w.at + a.half) / a.support;
    const float height = 1.0f - (distance < 0 ? -distance : distance);
    return height > 0 ? height : 0;
  }
};

// Keys' cubic with a = -0.75 (IEEE Trans. ASSP 29, 1981).
struct Cubic {
  static Window window(const Axis& a, int64_t i) {
    const float at = centre(a, i) - a.half;
    const auto low = static_cast<int64_t>(::floorf(at));
    return {low - 1, low + 2, at, 1};
  }
  static float weight(const Axis&, const Window& w, int64_t sample) {
    constexpr float a = -0.75f;
    const float signed_x = w.at - static_cast<float>(sample);
    const float x = signed_x < 0 ? -signed_x : signed_x;
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return ((x - 5) * x + 8) * x * a - 4 * a;
  }
};

template <typename F>
void resample(const Call& call, int64_t begin, int64_t end) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  Axis axes[4];
  for (int d = 0; d < 4; ++d) axes[d] = make_axis(call, d);
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const char* plane = row_data(a, {0, nearest(axes[2], index.i2), nearest(axes[3], index.i3)});
    char* out = row_data(dst, index);
    const Window y = F::window(axes[1], index.i1);
    for (int64_t i = 0; i < dst.ne[0]; ++i) {
      const Window x = F::window(axes[0], i);
      float total = 0;
      for (int64_t sy = y.first; sy <= y.last; ++sy) {
        const char* line = plane + clamp(sy, a.ne[1]) * a.nb[1];
        float part = 0;
        for (int64_t sx = x.first; sx <= x.last; ++sx) {
          part +=
              F::weight(axes[0], x, sx) * load_element(line + clamp(sx, a.ne[0]) * a.nb[0], a.type);
        }
        total += F::weight(axes[1], y, sy) * part;
      }
      store_element(out + i * dst.nb[0], dst.type, total / (x.scale * y.scale));
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char*) {
  switch (call.as<ScaleMode>(kMode)) {
    case kNearest:
      return resample<Nearest>(call, begin, end);
    case kBilinear:
      return call.i(kAntialias) != 0 ? resample<Triangle>(call, begin, end)
                                     : resample<Linear>(call, begin, end);
    default:
      return resample<Cubic>(call, begin, end);
  }
}

const char* check(const Call& call) {
  if (!call.is_one<ScaleMode>(kMode)) return "unknown interpolation";
  if (!is_float(call.dst.type) || !is_float(call.src[0]->type)) {
    return "needs f32, f16 or bf16 operands";
  }
  if (n_elements(*call.src[0]) == 0) return "there is nothing to resample";
  return nullptr;
}

int64_t items(const Call& call) { return n_rows(call.dst); }
// some ten operations an element
int64_t grain(const Call& call) { return row_grain(8 * call.dst.ne[0]); }

}  // namespace

void register_resize(KernelTable& table) {
  table[Op::kUpscale] = {.check = check, .items = items, .run = run, .grain = grain};
}

}  // namespace weft::WEFT_TARGET
