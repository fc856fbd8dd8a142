// POOL_1D, POOL_2D: the largest or the mean of windows.
#include "kernels/conv_grid.h"

namespace weft::WEFT_TARGET {

void register_pool(KernelTable& table);

namespace {

// A maximum over nothing.
constexpr float kLowest = -3.402823466e+38f;

struct Pool {
  bool largest;
  Axis x, y;
  // The mean divides by all taps (padding counted), or by those inside the row.
  bool count_padding;
};

// Slots: kind (0 largest, 1 mean), then kernel, stride, padding.
Pool pool_1d(const Call& call) {
  const Tensor& src = *call.src[0];
  Pool p = {.largest = call.i(0) == 0, .x = {}, .y = {}, .count_padding = false};
  p.x = {.in = src.ne[0],
         .taps = call.i(1),
         .out = call.dst.ne[0],
         .step = src.nb[0],
         .stride = call.i(2),
         .padding = call.i(3)};
  // the rows of the result are those of the source
  p.y = {.in = src.ne[1], .taps = 1, .out = call.dst.ne[1], .step = src.nb[1]};
  return p;
}

// Slots: kind, kernel (2), stride (2), padding (2).
Pool pool_2d(const Call& call) {
  const Tensor& src = *call.src[0];
  Pool p = {.largest = call.i(0) == 0, .x = {}, .y = {}, .count_padding = true};
  Axis* axes[2] = {&p.x, &p.y};
  for (int d = 0; d < 2; ++d) {
    *axes[d] = {.in = src.ne[d],
                .taps = call.i(1 + d),
                .out = call.dst.ne[d],
                .step = src.nb[d],
                .stride = call.i(3 + d),
                .padding = call.i(5 + d)};
  }
  return p;
}

float window(const Pool& p, const char* data, DType type, int64_t x0, int64_t y0) {
  const Range kx = inside(p.x.taps, 1, x0, p.x.in);
  const Range ky = inside(p.y.taps, 1, y0, p.y.in);
  float best = kLowest;
  float sum = 0;
  for (int64_t j = ky.begin; j < ky.end; ++j) {
    for (int64_t i = kx.begin; i < kx.end; ++i) {
      const float v = load_element(data + (y0 + j) * p.y.step + (x0 + i) * p.x.step, type);
      // a NaN stays
      best = v > best || v != v ? v : best;
      sum += v;
    }
  }
  if (p.largest) return best;
  const int64_t inside_row = kx.end - kx.begin;
  const int64_t count = p.count_padding ? p.x.taps * p.y.taps : max64(1, inside_row);
  return sum / static_cast<float>(count);
}

// An item: a row of the result.
template <Pool (*kPool)(const Call&)>
void run(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& src = *call.src[0];
  const Tensor& dst = call.dst;
  const Pool p = kPool(call);
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const char* data = src.data + index.i2 * src.nb[2] + index.i3 * src.nb[3];
    char* out = row_data(dst, index);
    const int64_t y0 = index.i1 * p.y.stride - p.y.padding;
    for (int64_t ox = 0; ox < dst.ne[0]; ++ox) {
      const float v = window(p, data, src.type, ox * p.x.stride - p.x.padding, y0);
      store_element(out + ox * dst.nb[0], dst.type, v);
    }
  }
}

int64_t items(const Call& call) { return n_rows(call.dst); }

template <Pool (*kPool)(const Call&)>
int64_t grain(const Call& call) {
  const Pool p = kPool(call);
  return row_grain(call.dst.ne[0] * p.x.taps * p.y.taps);
}

// `axes` axes are pooled, the others stay.
template <int axes>
const char* check(const Call& call) {
  const Tensor& src = *call.src[0];
  for (int d = 0; d < axes; ++d) {
    if (!is_count(call, 1 + d, 1) || !is_count(call, 1 + axes + d, 1) ||
        !is_count(call, 1 + 2 * axes + d, 0)) {
      return "window and stride must be 1 or more, padding 0 or more";
    }
  }
  if (call.params[0] != 0 && call.params[0] != 1) return "pools by maximum or mean only";
  if (!is_float(src.type) || !is_float(call.dst.type)) return "needs f32, f16 or bf16";
  for (int d = axes; d < 4; ++d) {
    if (src.ne[d] != call.dst.ne[d]) return "result and source differ in shape";
  }
  return nullptr;
}

}  // namespace

void register_pool(KernelTable& table) {
  table[Op::kPool1d] = {
      .check = check<1>, .items = items, .run = run<pool_1d>, .grain = grain<pool_1d>};
  table[Op::kPool2d] = {
      .check = check<2>, .items = items, .run = run<pool_2d>, .grain = grain<pool_2d>};
}

}  // namespace weft::WEFT_TARGET
