// CONV_TRANSPOSE_1D, CONV_TRANSPOSE_2D: every input position adds its taps to the result.
//
// For a row of inputs, the values of all taps are a product of kernel and data, computed panel by
// panel of positions, then scattered: tap k of position i lands on output i * stride + k.
#include "kernels/conv_grid.h"
#include "kernels/panel.h"

namespace weft::WEFT_TARGET {

void register_conv_transpose(KernelTable& table);

namespace {

// 1D: kernel [kw, oc, c], data [w, c], result [ow, oc]; 2D: kernel [kw, kh, oc, c], data
// [w, h, c, n], result [ow, oh, oc, n]. A missing axis has size 1.
struct Shape {
  int64_t stride;
  int64_t width, height, channels, batches;  // of the data
  int64_t taps, tap_rows;
  int64_t out_width, out_height, out_channels;
  int64_t data_nb[4];    // x, y, channel, batch
  int64_t kernel_nb[4];  // x, y, output channel, channel
  int64_t out_nb[4];     // x, y, channel, batch
};

Shape shape_1d(const Call& call) {
  const Tensor& k = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& y = call.dst;
  return {.stride = call.i(0),
          .width = x.ne[0],
          .height = 1,
          .channels = x.ne[1],
          .batches = 1,
          .taps = k.ne[0],
          .tap_rows = 1,
          .out_width = y.ne[0],
          .out_height = 1,
          .out_channels = y.ne[1],
          .data_nb = {x.nb[0], 0, x.nb[1], 0},
          .kernel_nb = {k.nb[0], 0, k.nb[1], k.nb[2]},
          .out_nb = {y.nb[0], 0, y.nb[1], 0}};
}

Shape shape_2d(const Call& call) {
  const Tensor& k = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& y = call.dst;
  return {.stride = call.i(0),
          .width = x.ne[0],
          .height = x.ne[1],
          .channels = x.ne[2],
          .batches = x.ne[3],
          .taps = k.ne[0],
          .tap_rows = k.ne[1],
          .out_width = y.ne[0],
          .out_height = y.ne[1],
          .out_channels = y.ne[2],
          .data_nb = {x.nb[0], x.nb[1], x.nb[2], x.nb[3]},
          .kernel_nb = {k.nb[0], k.nb[1], k.nb[2], k.nb[3]},
          .out_nb = {y.nb[0], y.nb[1], y.nb[2], y.nb[3]}};
}

// An item: some output channels of a stretch of one output row. The positions at the seams of
// stretches are computed twice.
struct Cut {
  int64_t group;  // output channels of an item
  int64_t groups;
  int64_t stretch;  // outputs of an item
  int64_t stretches;
};

Cut cut(const Shape& s) {
  Cut c;
  c.group = max64(1, 16 / max64(1, s.taps));
  c.groups = (s.out_channels + c.group - 1) / c.group;
  const int64_t seam = (s.taps + s.stride - 1) / s.stride;
  c.stretch = max64(4 * kPanel, 4 * seam) * s.stride;
  c.stretches = (s.out_width + c.stretch - 1) / c.stretch;
  return c;
}

// Row (channel, tap) of the kernel for all channels of the data, [rows][channels], padded with rows
// of zeros.
void load_kernel(const Call& call, const Shape& s, int64_t first, int64_t group, int64_t ky,
                 float* out) {
  const Tensor& kernel = *call.src[0];
  const int64_t rows = group * s.taps;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t o = r / s.taps;
    const char* p = kernel.data + (r - o * s.taps) * s.kernel_nb[0] + ky * s.kernel_nb[1] +
                    (first + o) * s.kernel_nb[2];
    load_floats(p, kernel.type, s.kernel_nb[3], s.channels, out + r * s.channels);
  }
  const int64_t padded = round_up(rows, kPanelRows);
  fill_zeros(out + rows * s.channels, (padded - rows) * s.channels);
}

// Adds column p of `values` to out[(first + p) * stride + tap], for outputs in [begin, end).
void scatter(const float* values, int64_t first, int64_t n, int64_t stride, int64_t tap, char* out,
             int64_t step, Range outputs) {
  const int64_t origin = first * stride + tap - outputs.begin;
  const Range p = inside(n, stride, origin, outputs.end - outputs.begin);
  char* place = out + (p.begin * stride + origin + outputs.begin) * step;
  for (int64_t i = p.begin; i < p.end; ++i, place += stride * step) {
    store_element(place, DType::kF32, load_element(place, DType::kF32) + values[i]);
  }
}

void run_item(const Call& call, const Shape& s, const Cut& c, int64_t item, float* scratch) {
  const Tensor& data = *call.src[1];
  const int64_t stretch = item % c.stretches;
  int64_t rest = item / c.stretches;
  const int64_t first_channel = rest % c.groups * c.group;
  rest /= c.groups;
  const int64_t oy = rest % s.out_height;
  const int64_t batch = rest / s.out_height;
  const int64_t group = min64(c.group, s.out_channels - first_channel);
  const Range outputs = {stretch * c.stretch, min64((stretch + 1) * c.stretch, s.out_width)};

  char* out = call.dst.data + first_channel * s.out_nb[2] + oy * s.out_nb[1] + batch * s.out_nb[3];
  for (int64_t o = 0; o < group; ++o) {
    for (int64_t x = outputs.begin; x < outputs.end; ++x) {
      store_element(out + o * s.out_nb[2] + x * s.out_nb[0], DType::kF32, 0.0f);
    }
  }

  const int64_t padded = round_up(group * s.taps, kPanelRows);
  float* panel = scratch;
  float* sums = panel + kPanelDepth * kPanel;
  float* weights = sums + padded * kPanel;
  // positions whose taps reach the stretch
  const int64_t low = outputs.begin >= s.taps ? (outputs.begin - s.taps) / s.stride + 1 : 0;
  const int64_t high = min64((outputs.end - 1) / s.stride + 1, s.width);
  for (int64_t ky = oy % s.stride; ky < s.tap_rows && ky <= oy; ky += s.stride) {
    const int64_t y = (oy - ky) / s.stride;
    if (y >= s.height) continue;
    load_kernel(call, s, first_channel, group, ky, weights);
    const char* row = data.data + y * s.data_nb[1] + batch * s.data_nb[3];
    for (int64_t x = low; x < high; x += kPanel) {
      const int64_t n = min64(kPanel, high - x);
      fill_zeros(sums, padded * kPanel);
      for (int64_t k = 0; k < s.channels; k += kPanelDepth) {
        const int64_t depth = min64(kPanelDepth, s.channels - k);
        for (int64_t i = 0; i < depth; ++i) {
          const char* p = row + (k + i) * s.data_nb[2] + x * s.data_nb[0];
          load_floats(p, data.type, s.data_nb[0], n, panel + i * kPanel);
          fill_zeros(panel + i * kPanel + n, kPanel - n);
        }
        for (int64_t r = 0; r < padded; r += kPanelRows) {
          multiply_panel(weights + r * s.channels + k, s.channels, panel, depth, sums + r * kPanel);
        }
      }
      for (int64_t r = 0; r < group * s.taps; ++r) {
        const int64_t o = r / s.taps;
        scatter(sums + r * kPanel, x, n, s.stride, r - o * s.taps, out + o * s.out_nb[2],
                s.out_nb[0], outputs);
      }
    }
  }
}

template <Shape (*kShape)(const Call&)>
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Shape s = kShape(call);
  const Cut c = cut(s);
  for (int64_t item = begin; item < end; ++item) {
    run_item(call, s, c, item, reinterpret_cast<float*>(scratch));
  }
}

template <Shape (*kShape)(const Call&)>
int64_t items(const Call& call) {
  const Shape s = kShape(call);
  const Cut c = cut(s);
  return c.stretches * c.groups * s.out_height * s.batches;
}

template <Shape (*kShape)(const Call&)>
int64_t grain(const Call& call) {
  const Shape s = kShape(call);
  const Cut c = cut(s);
  const int64_t positions = min64(c.stretch / s.stride, s.width);
  return work_grain(positions * s.taps * c.group * s.channels);
}

template <Shape (*kShape)(const Call&)>
size_t scratch_bytes(const Call& call) {
  const Shape s = kShape(call);
  const int64_t rows = round_up(cut(s).group * s.taps, kPanelRows);
  return static_cast<size_t>(kPanelDepth * kPanel + rows * (kPanel + s.channels)) * sizeof(float);
}

const char* check_types(const Call& call) {
  if (!is_count(call, 0, 1)) return "the stride must be 1 or more";
  if (!is_float(call.src[0]->type) || !is_float(call.src[1]->type)) {
    return "needs f32, f16 or bf16 kernel and data";
  }
  if (call.dst.type != DType::kF32) return "gives f32";
  return nullptr;
}

const char* check_1d(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  if (call.n_params < 3 || call.params[1] != 0 || call.params[2] != 1) {
    return "only padding 0 and dilation 1 are defined";
  }
  if (kernel.ne[1] != call.dst.ne[1] || kernel.ne[2] != data.ne[1]) {
    return "kernel, data and result differ in channels";
  }
  for (int d = 2; d < 4; ++d) {
    if (data.ne[d] != 1 || call.dst.ne[d] != 1) return "data must be [width, channels]";
  }
  return check_types(call);
}

const char* check_2d(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  if (kernel.ne[2] != call.dst.ne[2] || kernel.ne[3] != data.ne[2] ||
      data.ne[3] != call.dst.ne[3]) {
    return "kernel, data and result differ in channels or batches";
  }
  return check_types(call);
}

template <Shape (*kShape)(const Call&)>
constexpr Kernel kernel(const char* (*check)(const Call&)) {
  return {.check = check,
          .items = items<kShape>,
          .run = run<kShape>,
          .grain = grain<kShape>,
          .scratch = scratch_bytes<kShape>};
}

}  // namespace

void register_conv_transpose(KernelTable& table) {
  table[Op::kConvTranspose1d] = kernel<shape_1d>(check_1d);
  table[Op::kConvTranspose2d] = kernel<shape_2d>(check_2d);
}

}  // namespace weft::WEFT_TARGET
