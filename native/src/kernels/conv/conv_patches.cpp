// IM2COL_3D: patches as rows. COL2IM_1D: columns added back at their places.
#include "kernels/conv/conv_grid.h"
#include "kernels/elements.h"

namespace weft::WEFT_TARGET {

void register_conv_patches(KernelTable& table);

namespace {

// Where the data and the rows of patches lie. Rows of z and batch share an axis of the result.
struct Grid {
  Axis axes[3];
  int64_t channels, channel_step;
  int64_t batches, batch_step;
  int64_t out_step[3];  // between rows of patches
  int64_t out_batch_step;

  int64_t patch() const { return channels * axes[2].taps * axes[1].taps * axes[0].taps; }
};

// Kernel [kw, kh, kd, c * oc], data [w, h, d, c * n], rows [., ow, oh, od * n].
Grid grid_of(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  const Tensor& dst = call.dst;
  Grid g;
  read_steps<Im2Col3dSlot>(call, 3, g.axes);
  for (int d = 0; d < 3; ++d) {
    g.axes[d].in = data.ne[d];
    g.axes[d].taps = kernel.ne[d];
    g.axes[d].out = dst.ne[d + 1];
    g.axes[d].step = data.nb[d];
    g.out_step[d] = dst.nb[d + 1];
  }
  g.channels = call.i(Im2Col3dSlot::kChannels);
  g.channel_step = data.nb[3];
  g.batches = data.ne[3] / g.channels;
  g.batch_step = g.channels * data.nb[3];
  g.axes[2].out = g.batches == 0 ? 0 : dst.ne[3] / g.batches;
  g.out_batch_step = g.axes[2].out * dst.nb[3];
  return g;
}

// The patch of output x, for all channels: [c, kd, kh, kw], zeros outside the data.
void patch(const Grid& g, const char* data, DType type, int64_t ox, int64_t y0, int64_t z0,
           float* out) {
  const Axis& ax = g.axes[0];
  const int64_t x0 = ox * ax.stride - ax.padding;
  const Range kx = inside(ax.taps, ax.dilation, x0, ax.in);
  for (int64_t c = 0; c < g.channels; ++c) {
    for (int64_t k = 0; k < g.axes[2].taps; ++k) {
      const int64_t z = z0 + k * g.axes[2].dilation;
      for (int64_t j = 0; j < g.axes[1].taps; ++j, out += ax.taps) {
        const int64_t y = y0 + j * g.axes[1].dilation;
        if (z < 0 || z >= g.axes[2].in || y < 0 || y >= g.axes[1].in || kx.begin >= kx.end) {
          fill_zeros(out, ax.taps);
          continue;
        }
        fill_zeros(out, kx.begin);
        const char* p = data + c * g.channel_step + z * g.axes[2].step + y * g.axes[1].step;
        for (int64_t i = kx.begin; i < kx.end; ++i) {
          out[i] = load_element(p + (x0 + i * ax.dilation) * ax.step, type);
        }
        fill_zeros(out + kx.end, ax.taps - kx.end);
      }
    }
  }
}

// An item: the patches of a row of outputs.
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Grid g = grid_of(call);
  const Tensor& data = *call.src[1];
  const Tensor& dst = call.dst;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t oy = item % g.axes[1].out;
    const int64_t rest = item / g.axes[1].out;
    const int64_t oz = rest % g.axes[2].out;
    const int64_t batch = rest / g.axes[2].out;
    const int64_t y0 = oy * g.axes[1].stride - g.axes[1].padding;
    const int64_t z0 = oz * g.axes[2].stride - g.axes[2].padding;
    const char* x = data.data + batch * g.batch_step;
    char* row = dst.data + batch * g.out_batch_step + oz * g.out_step[2] + oy * g.out_step[1];
    for (int64_t ox = 0; ox < g.axes[0].out; ++ox, row += g.out_step[0]) {
      float* out = float_room(dst, row, reinterpret_cast<float*>(scratch));
      patch(g, x, data.type, ox, y0, z0, out);
      put_floats(dst, row, g.patch(), out);
    }
  }
}

int64_t items(const Call& call) {
  const Grid g = grid_of(call);
  return g.batches * g.axes[2].out * g.axes[1].out;
}

int64_t grain(const Call& call) {
  const Grid g = grid_of(call);
  return row_grain(g.axes[0].out * g.patch());
}

size_t scratch_bytes(const Call& call) {
  return static_cast<size_t>(grid_of(call).patch()) * sizeof(float);
}

const char* check(const Call& call) {
  if (!is_count(call, Im2Col3dSlot::kChannels, 1)) return "needs one channel at least";
  if (!steps_are_legal<Im2Col3dSlot>(call, 3)) return kBadSteps;
  if (call.src[1]->ne[3] % call.i(Im2Col3dSlot::kChannels) != 0) {
    return "data are not a multiple of the channels";
  }
  const Grid g = grid_of(call);
  if (g.batches * g.axes[2].out != call.dst.ne[3]) return "the result has partial batches";
  if (call.dst.ne[0] != g.patch()) return "rows of the result are not patches";
  if (!is_float(call.src[1]->type) || !is_float(call.dst.type)) {
    return "needs f32, f16 or bf16 data and result";
  }
  return nullptr;
}

// ---- COL2IM_1D ----------------------------------------------------------------------------------

// Outputs of one channel that make an item.
constexpr int64_t kOutputs = 256;

int64_t output_blocks(const Tensor& dst) { return (dst.ne[0] + kOutputs - 1) / kOutputs; }

// cols [oc * taps, length]: tap k of column i is added to output i * stride + k - padding.
void run_col2im(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& cols = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t stride = call.i(Col2ImSlot::kStride), padding = call.i(Col2ImSlot::kPadding);
  const int64_t taps = cols.ne[0] / call.i(Col2ImSlot::kOc);
  const int64_t blocks = output_blocks(dst);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t channel = item / blocks;
    const int64_t first = (item - channel * blocks) * kOutputs;
    const char* x = cols.data + channel * taps * cols.nb[0];
    char* out = dst.data + channel * dst.nb[1];
    for (int64_t o = first; o < min64(first + kOutputs, dst.ne[0]); ++o) {
      const int64_t place = o + padding;
      // columns whose windows [i * stride, i * stride + taps) hold the place
      const int64_t low = place >= taps ? (place - taps) / stride + 1 : 0;
      const int64_t high = min64(place / stride, cols.ne[1] - 1);
      float sum = 0;
      for (int64_t i = low; i <= high; ++i) {
        sum += load_element(x + (place - i * stride) * cols.nb[0] + i * cols.nb[1], cols.type);
      }
      store_element(out + o * dst.nb[0], dst.type, sum);
    }
  }
}

const char* check_col2im(const Call& call) {
  const Tensor& cols = *call.src[0];
  if (!is_count(call, Col2ImSlot::kStride, 1) || !is_count(call, Col2ImSlot::kOc, 1) ||
      !is_count(call, Col2ImSlot::kPadding, 0)) {
    return "stride and channels must be 1 or more, padding 0 or more";
  }
  if (!is_float(cols.type) || !is_float(call.dst.type)) return "needs f32, f16 or bf16";
  if (cols.ne[0] % call.i(Col2ImSlot::kOc) != 0 || call.dst.ne[1] != call.i(Col2ImSlot::kOc)) {
    return "columns are not taps of that many channels";
  }
  if (cols.ne[2] != 1 || cols.ne[3] != 1 || call.dst.ne[2] != 1 || call.dst.ne[3] != 1) {
    return "columns must be a matrix";
  }
  return nullptr;
}

int64_t items_col2im(const Call& call) { return output_blocks(call.dst) * call.dst.ne[1]; }
int64_t grain_col2im(const Call&) { return row_grain(kOutputs); }

}  // namespace

void register_conv_patches(KernelTable& table) {
  table[Op::kIm2col3d] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
  table[Op::kCol2im1d] = {
      .check = check_col2im, .items = items_col2im, .run = run_col2im, .grain = grain_col2im};
}

}  // namespace weft::WEFT_TARGET
