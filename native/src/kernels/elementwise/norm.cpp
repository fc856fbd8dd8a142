// NORM, RMS_NORM and L2_NORM normalize rows, GROUP_NORM groups of channels. NORM_SCALE is NORM or
// RMS_NORM of x, or of x plus an addend, times a row of weights, plus an optional row of biases.
#include "kernels/copy/copy_rows.h"
#include "kernels/elementwise/reductions.h"
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

void register_norm(KernelTable& table);

namespace {

// (x - mean) / deviation. The mean is kept in two floats, because rounding it to one would shift
// every element.
struct Centre {
  vf high;
  vf low;
  vf factor;

  Centre(double mean, double deviation)
      : high(splat(static_cast<float>(mean))),
        low(splat(static_cast<float>(mean - static_cast<double>(static_cast<float>(mean))))),
        factor(splat(static_cast<float>(1.0 / deviation))) {}

  vf operator()(vf x) const { return (x - high - low) * factor; }
};

Centre centre_of(const float* x, int64_t n, float eps) {
  const auto count = static_cast<double>(n);
  const double mean = sum(x, n) / count;
  const double variance = sum_squares_about(x, n, static_cast<float>(mean)) / count;
  return {mean, __builtin_sqrt(variance + static_cast<double>(eps))};
}

float root_factor(const float* x, int64_t n, float eps) {
  const double mean = sum_squares(x, n) / static_cast<double>(n);
  return static_cast<float>(1.0 / __builtin_sqrt(mean + static_cast<double>(eps)));
}

// Each of these normalizes a row of n floats; `out` may be `x`.

void norm(const float* x, float* out, int64_t n, float eps) {
  map(x, out, n, centre_of(x, n, eps));
}

void rms_norm(const float* x, float* out, int64_t n, float eps) {
  multiply(x, root_factor(x, n, eps), out, n);
}

void l2_norm(const float* x, float* out, int64_t n, float eps) {
  const double length = __builtin_sqrt(sum_squares(x, n));
  const auto least = static_cast<double>(eps);
  multiply(x, static_cast<float>(1.0 / (length > least ? length : least)), out, n);
}

template <void (*kRow)(const float*, float*, int64_t, float)>
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  const float eps = call.f(EpsSlot::kEps);
  auto* buffer = reinterpret_cast<float*>(scratch);
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const float* x = as_floats(a, row_data(a, index), dst.ne[0], buffer);
    float* room = float_room(dst, row_data(dst, index), buffer);
    kRow(x, room, dst.ne[0], eps);
    put_floats(dst, row_data(dst, index), dst.ne[0], room);
  }
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0]); }

template <void (*kRow)(const float*, float*, int64_t, float)>
constexpr Kernel kernel() {
  return {.check = check_float_map,
          .items = items,
          .run = run<kRow>,
          .grain = grain,
          .scratch = row_scratch,
          .by_rows = true};
}

// ---- NORM_SCALE (x, weights, bias, addend) gives floats, or the blocks that a matmul reads ------

// out = f(x) weights + bias, rounded as one after the other would be.
template <typename F>
void scale_row(const float* x, const float* weights, const float* bias, float* out, int64_t n,
               const F& f) {
  if (bias == nullptr) return map(x, weights, out, n, [&f](vf v, vf w) { return f(v) * w; });
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, f(load(x + i)) * load(weights + i) + load(bias + i));
  }
  if (i == n) return;
  const int64_t left = n - i;
  const vf scaled = f(load_part(x + i, left)) * load_part(weights + i, left);
  store_part(out + i, scaled + load_part(bias + i, left), left);
}

void run_scale(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t n = dst.ne[0];
  const auto* weights = reinterpret_cast<const float*>(call.src[1]->data);
  const Tensor* bias = call.src[2];
  const Tensor* addend = call.src[3];
  auto* buffer = reinterpret_cast<float*>(scratch);
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const float* x = as_floats(a, row_data(a, index), n, buffer);
    char* out = row_data(dst, index);
    float* room = float_room(dst, out, buffer);
    if (addend != nullptr) {
      const auto* y = reinterpret_cast<const float*>(row_data(*addend, index));
      map(x, y, room, n, [](vf v, vf w) { return v + w; });
      x = room;
    }
    const float eps = call.f(NormScaleSlot::kEps);
    const auto* b = bias == nullptr ? nullptr : reinterpret_cast<const float*>(bias->data);
    if (call.i(NormScaleSlot::kCentred) != 0) {
      scale_row(x, weights, b, room, n, centre_of(x, n, eps));
    } else {
      const vf factor = splat(root_factor(x, n, eps));
      scale_row(x, weights, b, room, n, [factor](vf v) { return v * factor; });
    }
    if (!is_plain(dst)) store_range(room, n, dst, out, 0);
  }
}

size_t scale_scratch(const Call& call) {
  return static_cast<size_t>(call.dst.ne[0]) * sizeof(float);
}

const char* check_scale(const Call& call) {
  const Tensor& dst = call.dst;
  if (!is_float(call.src[0]->type)) return "the source must be f32, f16 or bf16";
  if (!is_plain(dst) && !can_encode(dst.type)) {
    return "the result must be f32 or of a block type that can be written";
  }
  if (!same_shape(dst, *call.src[0])) return "result and source differ in shape";
  for (int s = 1; s < 3; ++s) {
    const Tensor* t = call.src[s];
    if (t == nullptr) continue;
    if (!is_plain(*t) || t->ne[0] != dst.ne[0] || n_rows(*t) != 1) {
      return "weights and bias must each be one row of f32, as long as those of the source";
    }
  }
  const Tensor* addend = call.src[3];
  if (addend != nullptr && (!is_plain(*addend) || !same_shape(*addend, dst))) {
    return "the addend must be f32 and have the shape of the source";
  }
  return nullptr;
}

// ---- GROUP_NORM ---------------------------------------------------------------------------------

int64_t channels_per_group(const Call& call) {
  const int64_t n = call.i(GroupNormSlot::kNGroups);
  return (call.dst.ne[2] + n - 1) / n;
}

// Calls work(x, out, n) for each piece of the rows of a group. When `write` is set, the floats that
// `work` leaves in `out` become the result.
template <typename F>
void for_group(const Call& call, int64_t group, bool write, const F& work) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t i3 = group / call.i(GroupNormSlot::kNGroups);
  const int64_t first = group % call.i(GroupNormSlot::kNGroups) * channels_per_group(call);
  const int64_t last = min64(first + channels_per_group(call), dst.ne[2]);
  for (int64_t i2 = first; i2 < last; ++i2) {
    for (int64_t i1 = 0; i1 < dst.ne[1]; ++i1) {
      for (int64_t i0 = 0; i0 < dst.ne[0]; i0 += kPiece) {
        float buffer[kPiece];
        const Piece p{{i1, i2, i3}, i0, min64(kPiece, dst.ne[0] - i0)};
        const float* x = as_floats(a, element(a, p), p.n, buffer);
        char* out = element(dst, p);
        float* room = float_room(dst, out, buffer);
        work(x, room, p.n);
        if (write) put_floats(dst, out, p.n, room);
      }
    }
  }
}

void run_group(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& dst = call.dst;
  for (int64_t group = begin; group < end; ++group) {
    const int64_t first = group % call.i(GroupNormSlot::kNGroups) * channels_per_group(call);
    const int64_t channels = min64(channels_per_group(call), dst.ne[2] - first);
    if (channels <= 0) continue;
    const auto count = static_cast<double>(channels * dst.ne[1] * dst.ne[0]);
    double total = 0;
    for_group(call, group, false, [&](const float* x, float*, int64_t n) { total += sum(x, n); });
    const double mean = total / count;
    double squares = 0;
    for_group(call, group, false, [&](const float* x, float*, int64_t n) {
      squares += sum_squares_about(x, n, static_cast<float>(mean));
    });
    const Centre centre(
        mean, __builtin_sqrt(squares / count + static_cast<double>(call.f(GroupNormSlot::kEps))));
    for_group(call, group, true,
              [&](const float* x, float* out, int64_t n) { map(x, out, n, centre); });
  }
}

const char* check_group(const Call& call) {
  if (const char* why = check_float_map(call)) return why;
  if (call.i(GroupNormSlot::kNGroups) < 1) return "the number of groups must be at least 1";
  return nullptr;
}

int64_t group_items(const Call& call) { return call.i(GroupNormSlot::kNGroups) * call.dst.ne[3]; }
int64_t group_grain(const Call& call) {
  return row_grain(channels_per_group(call) * call.dst.ne[1] * call.dst.ne[0]);
}

}  // namespace

void register_norm(KernelTable& table) {
  table[Op::kNorm] = kernel<norm>();
  table[Op::kRmsNorm] = kernel<rms_norm>();
  table[Op::kL2Norm] = kernel<l2_norm>();
  table[Op::kNormScale] = {.check = check_scale,
                           .items = items,
                           .run = run_scale,
                           .grain = grain,
                           .scratch = scale_scratch,
                           .by_rows = true};
  table[Op::kGroupNorm] = {
      .check = check_group, .items = group_items, .run = run_group, .grain = group_grain};
}

}  // namespace weft::WEFT_TARGET
