// CONV_2D_DW: one kernel [kw, kh, 1, channel] a channel; width or channels innermost in memory.
#include "kernels/conv/conv_grid.h"
#include "kernels/matmul/column_blocks.h"

namespace weft::WEFT_TARGET {

void register_conv_depthwise(KernelTable& table);

namespace {

struct Axes {
  Axis x, y;
};

Axes axes_of(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  Axis axes[2];
  read_steps<ConvSlot>(call, 2, axes);
  for (int d = 0; d < 2; ++d) {
    axes[d].in = data.ne[d];
    axes[d].taps = kernel.ne[d];
    axes[d].out = call.dst.ne[d];
    axes[d].step = data.nb[d];
  }
  return {axes[0], axes[1]};
}

// Channels side by side in data, kernel and result: vectors run over channels.
bool channels_innermost(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  return call.dst.ne[2] > 1 && data.type == DType::kF32 && call.dst.type == DType::kF32 &&
         data.nb[2] == 4 && call.dst.nb[2] == 4 && kernel.nb[3] == element_size(kernel.type);
}

// The kernel as floats, channels side by side: where it is, or converted into a buffer.
struct Taps {
  const char* data;
  int64_t step_x, step_y;  // bytes between taps
};

Taps load_weights(const Tensor& kernel, float* buffer) {
  if (kernel.type == DType::kF32) return {kernel.data, kernel.nb[0], kernel.nb[1]};
  const int64_t channels = kernel.ne[3];
  float* out = buffer;
  for (int64_t j = 0; j < kernel.ne[1]; ++j) {
    for (int64_t i = 0; i < kernel.ne[0]; ++i, out += channels) {
      const char* p = kernel.data + i * kernel.nb[0] + j * kernel.nb[1];
      load_floats(p, kernel.type, kernel.nb[3], channels, out);
    }
  }
  return {reinterpret_cast<const char*>(buffer), channels * 4, kernel.ne[0] * channels * 4};
}

// One output position, all channels, with the taps that are inside the data.
void position_of_channels(const Axes& a, const Taps& weights, int64_t channels, int64_t ox,
                          Range ky, const char* data, int64_t y0, char* out) {
  const int64_t x0 = ox * a.x.stride - a.x.padding;
  const Range kx = inside(a.x.taps, a.x.dilation, x0, a.x.in);
  const auto input = [&](int64_t i, int64_t j) {
    return reinterpret_cast<const float*>(data + (y0 + j * a.y.dilation) * a.y.step +
                                          (x0 + i * a.x.dilation) * a.x.step);
  };
  const auto weight = [&](int64_t i, int64_t j) {
    return reinterpret_cast<const float*>(weights.data + i * weights.step_x + j * weights.step_y);
  };
  auto* sums = reinterpret_cast<float*>(out);
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    vf sum = vf{};
    for (int64_t j = ky.begin; j < ky.end; ++j) {
      for (int64_t i = kx.begin; i < kx.end; ++i) {
        sum = fma(load(input(i, j) + c), load(weight(i, j) + c), sum);
      }
    }
    store(sums + c, sum);
  }
  for (; c < channels; ++c) {
    float sum = 0;
    for (int64_t j = ky.begin; j < ky.end; ++j) {
      for (int64_t i = kx.begin; i < kx.end; ++i) sum += input(i, j)[c] * weight(i, j)[c];
    }
    sums[c] = sum;
  }
}

// out[i] += w * x[i * stride] for elements `step` bytes apart.
void add_tap(float w, const char* x, DType type, int64_t step, int64_t n, float* out) {
  int64_t i = 0;
  if (type == DType::kF32 && step == 4) {
    const auto* p = reinterpret_cast<const float*>(x);
    for (; i + kLanes <= n; i += kLanes) store(out + i, fma(splat(w), load(p + i), load(out + i)));
  }
  for (; i < n; ++i) out[i] += w * load_element(x + i * step, type);
}

// A row of outputs of one channel, summed up in `sums` tap by tap.
void row_of_channel(const Call& call, const Axes& a, Range ky, const char* data, int64_t y0,
                    const char* weights, float* sums) {
  const Tensor& kernel = *call.src[0];
  const DType type = call.src[1]->type;
  fill_zeros(sums, a.x.out);
  for (int64_t j = ky.begin; j < ky.end; ++j) {
    const char* row = data + (y0 + j * a.y.dilation) * a.y.step;
    for (int64_t i = 0; i < a.x.taps; ++i) {
      const float w = load_element(weights + i * kernel.nb[0] + j * kernel.nb[1], kernel.type);
      const int64_t offset = a.x.offset(i);
      const Range seen = inside(a.x.out, a.x.stride, offset, a.x.in);
      if (seen.begin >= seen.end) continue;
      const char* x = row + (seen.begin * a.x.stride + offset) * a.x.step;
      add_tap(w, x, type, a.x.stride * a.x.step, seen.end - seen.begin, sums + seen.begin);
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& data = *call.src[1];
  const Tensor& dst = call.dst;
  const Axes a = axes_of(call);
  const bool side_by_side = channels_innermost(call);
  auto* buffer = reinterpret_cast<float*>(scratch);
  Taps weights = {};
  if (side_by_side) weights = load_weights(*call.src[0], buffer);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t oy = item % dst.ne[1];
    const int64_t plane = item / dst.ne[1];
    const int64_t y0 = oy * a.y.stride - a.y.padding;
    const Range ky = inside(a.y.taps, a.y.dilation, y0, a.y.in);
    if (side_by_side) {
      const char* x = data.data + plane * data.nb[3];
      char* out = dst.data + plane * dst.nb[3] + oy * dst.nb[1];
      for (int64_t ox = 0; ox < dst.ne[0]; ++ox) {
        position_of_channels(a, weights, dst.ne[2], ox, ky, x, y0, out + ox * dst.nb[0]);
      }
      continue;
    }
    const int64_t batch = plane / dst.ne[2];
    const int64_t channel = plane - batch * dst.ne[2];
    const char* x = data.data + batch * data.nb[3] + channel * data.nb[2];
    const char* w = call.src[0]->data + channel * call.src[0]->nb[3];
    row_of_channel(call, a, ky, x, y0, w, buffer);
    char* out = dst.data + batch * dst.nb[3] + channel * dst.nb[2] + oy * dst.nb[1];
    store_floats(buffer, dst.ne[0], out, dst.type, dst.nb[0]);
  }
}

const char* check(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  if (!steps_are_legal<ConvSlot>(call, 2)) return kBadSteps;
  if (!is_float(kernel.type) || !is_float(data.type) || !is_float(call.dst.type)) {
    return "needs f32, f16 or bf16 kernel and data";
  }
  if (kernel.ne[2] != 1 || kernel.ne[3] != data.ne[2] || call.dst.ne[2] != data.ne[2] ||
      call.dst.ne[3] != data.ne[3]) {
    return "kernel, data and result differ in channels or batches";
  }
  return nullptr;
}

// Rows of outputs: of every channel at once where those are side by side.
int64_t items(const Call& call) {
  const Tensor& dst = call.dst;
  if (dst.ne[0] == 0 || dst.ne[2] == 0) return 0;
  return dst.ne[1] * dst.ne[3] * (channels_innermost(call) ? 1 : dst.ne[2]);
}

int64_t grain(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const int64_t channels = channels_innermost(call) ? call.dst.ne[2] : 1;
  return work_grain(call.dst.ne[0] * channels * kernel.ne[0] * kernel.ne[1]);
}

// A row of outputs, or the kernel as floats.
size_t scratch_bytes(const Call& call) {
  const int64_t floats = channels_innermost(call) ? n_elements(*call.src[0]) : call.dst.ne[0];
  return static_cast<size_t>(floats) * sizeof(float);
}

}  // namespace

void register_conv_depthwise(KernelTable& table) {
  table[Op::kConv2dDw] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
