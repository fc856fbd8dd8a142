// POOL_1D, POOL_2D: the largest or the mean of windows.
#include "kernels/conv/conv_grid.h"
#include "kernels/elements.h"

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

// The largest, or the mean.
template <typename Slot>
bool takes_largest(const Call& call) {
  return call.as<PoolOp>(Slot::kOp) == PoolOp::kMax;
}

Pool pool_1d(const Call& call) {
  const Tensor& src = *call.src[0];
  Pool p = {.largest = takes_largest<Pool1dSlot>(call), .x = {}, .y = {}, .count_padding = false};
  p.x = {.in = src.ne[0],
         .taps = call.i(Pool1dSlot::kK0),
         .out = call.dst.ne[0],
         .step = src.nb[0],
         .stride = call.i(Pool1dSlot::kS0),
         .padding = call.i(Pool1dSlot::kP0)};
  // the rows of the result are those of the source
  p.y = {.in = src.ne[1], .taps = 1, .out = call.dst.ne[1], .step = src.nb[1]};
  return p;
}

Pool pool_2d(const Call& call) {
  const Tensor& src = *call.src[0];
  Pool p = {.largest = takes_largest<Pool2dSlot>(call), .x = {}, .y = {}, .count_padding = true};
  Axis* axes[2] = {&p.x, &p.y};
  for (int d = 0; d < 2; ++d) {
    *axes[d] = {.in = src.ne[d],
                .taps = call.i(Pool2dSlot::kK0, d),
                .out = call.dst.ne[d],
                .step = src.nb[d],
                .stride = call.i(Pool2dSlot::kS0, d),
                .padding = call.i(Pool2dSlot::kP0, d)};
  }
  return p;
}

// The larger one; a NaN stays.
vf larger(vf a, vf b) {
  const vf best = b > a ? b : a;
  return b != b ? b : best;
}
float larger(float a, float b) { return b > a || b != b ? b : a; }

// The windows of output row `oy` folded along y: largest or sum of each input column. `row` is room
// for an input row.
void fold_rows(const Pool& p, const char* data, DType type, int64_t oy, float* row, float* out) {
  const int64_t y0 = oy * p.y.stride - p.y.padding;
  const Range ky = inside(p.y.taps, 1, y0, p.y.in);
  const float empty = p.largest ? kLowest : 0.0f;
  for (int64_t x = 0; x < p.x.in; ++x) out[x] = empty;
  for (int64_t j = ky.begin; j < ky.end; ++j) {
    load_floats(data + (y0 + j) * p.y.step, type, p.x.step, p.x.in, row);
    if (p.largest) {
      map(out, row, out, p.x.in, [](vf a, vf b) { return larger(a, b); });
    } else {
      map(out, row, out, p.x.in, [](vf a, vf b) { return a + b; });
    }
  }
}

// Output `ox` from the folded columns.
float fold_columns(const Pool& p, const float* columns, int64_t ox) {
  const int64_t x0 = ox * p.x.stride - p.x.padding;
  const Range kx = inside(p.x.taps, 1, x0, p.x.in);
  if (p.largest) {
    float best = kLowest;
    for (int64_t i = kx.begin; i < kx.end; ++i) best = larger(best, columns[x0 + i]);
    return best;
  }
  float sum = 0;
  for (int64_t i = kx.begin; i < kx.end; ++i) sum += columns[x0 + i];
  const int64_t count = p.count_padding ? p.x.taps * p.y.taps : max64(1, kx.end - kx.begin);
  return sum / static_cast<float>(count);
}

// An item: a row of the result.
template <Pool (*kPool)(const Call&)>
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& src = *call.src[0];
  const Tensor& dst = call.dst;
  const Pool p = kPool(call);
  auto* columns = reinterpret_cast<float*>(scratch);
  float* row = columns + p.x.in;
  for (int64_t item = begin; item < end; ++item) {
    const Index index = row_index(dst, item);
    const char* data = src.data + index.i2 * src.nb[2] + index.i3 * src.nb[3];
    fold_rows(p, data, src.type, index.i1, row, columns);
    char* out = row_data(dst, index);
    for (int64_t ox = 0; ox < dst.ne[0]; ++ox) {
      store_element(out + ox * dst.nb[0], dst.type, fold_columns(p, columns, ox));
    }
  }
}

int64_t items(const Call& call) { return n_rows(call.dst); }

template <Pool (*kPool)(const Call&)>
int64_t grain(const Call& call) {
  const Pool p = kPool(call);
  return row_grain(call.dst.ne[0] * p.x.taps + p.x.in * p.y.taps);
}

size_t scratch_bytes(const Call& call) {
  return static_cast<size_t>(2 * call.src[0]->ne[0]) * sizeof(float);
}

// `axes` axes are pooled, the others stay.
template <typename Slot, int axes>
const char* check(const Call& call) {
  const Tensor& src = *call.src[0];
  for (int d = 0; d < axes; ++d) {
    if (!is_count(call, Slot::kK0, 1, d) || !is_count(call, Slot::kS0, 1, d) ||
        !is_count(call, Slot::kP0, 0, d)) {
      return "window and stride must be 1 or more, padding 0 or more";
    }
  }
  if (!call.is_one<PoolOp>(Slot::kOp)) return "pools by maximum or mean only";
  if (!is_float(src.type) || !is_float(call.dst.type)) return "needs f32, f16 or bf16";
  for (int d = axes; d < 4; ++d) {
    if (src.ne[d] != call.dst.ne[d]) return "result and source differ in shape";
  }
  return nullptr;
}

}  // namespace

void register_pool(KernelTable& table) {
  table[Op::kPool1d] = {.check = check<Pool1dSlot, 1>,
                        .items = items,
                        .run = run<pool_1d>,
                        .grain = grain<pool_1d>,
                        .scratch = scratch_bytes};
  table[Op::kPool2d] = {.check = check<Pool2dSlot, 2>,
                        .items = items,
                        .run = run<pool_2d>,
                        .grain = grain<pool_2d>,
                        .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
