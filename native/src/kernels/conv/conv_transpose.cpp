// CONV_TRANSPOSE_1D, CONV_TRANSPOSE_2D: every input position adds its taps to the result.
//
// The values of all taps at a block of positions are a product of kernel and data; they are then
// added where they land: tap k of position i on output i * stride + k.
#include "kernels/conv/conv_grid.h"
#include "kernels/matmul/column_blocks.h"

namespace weft::WEFT_TARGET {

void register_conv_transpose(KernelTable& table);

namespace {

// 2D: kernel [kw, kh, oc, c], data [w, h, c, n], result [ow, oh, oc, n]. 1D: kernel [k, oc, c],
// data [w, c], result [ow, oc], seen as 2D of width 1 so that both are cut along y.
struct Shape {
  int64_t stride;
  int64_t width, height, channels, batches;  // of the data
  int64_t taps_x, taps_y;
  int64_t out_height, out_channels;
  int64_t data_x, data_y, data_channel, data_batch;  // bytes between neighbours
  int64_t kernel_channel;
  int64_t out_x, out_y, out_channel, out_batch;
  int64_t out_width;

  int64_t taps() const { return taps_x * taps_y; }
};

Shape shape_1d(const Call& call) {
  const Tensor& k = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& y = call.dst;
  return {.stride = call.i(ConvTranspose1dSlot::kStride),
          .width = 1,
          .height = x.ne[0],
          .channels = x.ne[1],
          .batches = 1,
          .taps_x = 1,
          .taps_y = k.ne[0],
          .out_height = y.ne[0],
          .out_channels = y.ne[1],
          .data_x = x.nb[0],
          .data_y = x.nb[0],
          .data_channel = x.nb[1],
          .data_batch = 0,
          .kernel_channel = k.nb[2],
          .out_x = 0,
          .out_y = y.nb[0],
          .out_channel = y.nb[1],
          .out_batch = 0,
          .out_width = 1};
}

Shape shape_2d(const Call& call) {
  const Tensor& k = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& y = call.dst;
  return {.stride = call.i(ConvTranspose2dSlot::kStride),
          .width = x.ne[0],
          .height = x.ne[1],
          .channels = x.ne[2],
          .batches = x.ne[3],
          .taps_x = k.ne[0],
          .taps_y = k.ne[1],
          .out_height = y.ne[1],
          .out_channels = y.ne[2],
          .data_x = x.nb[0],
          .data_y = x.nb[1],
          .data_channel = x.nb[2],
          .data_batch = x.nb[3],
          .kernel_channel = k.nb[3],
          .out_x = y.nb[0],
          .out_y = y.nb[1],
          .out_channel = y.nb[2],
          .out_batch = y.nb[3],
          .out_width = y.ne[0]};
}

// An item: some output channels of a stretch of output rows. The input rows at the seams of
// stretches are computed for both.
struct Cut {
  int64_t group;  // output channels of an item
  int64_t groups;
  int64_t stretch;  // output rows of an item
  int64_t stretches;

  int64_t rows(const Shape& s) const { return round_up(group * s.taps(), kPanelRows); }
};

// Positions of an item: enough that the kernel is loaded for many.
constexpr int64_t kPositions = 8 * kColumns;

Cut cut(const Shape& s) {
  Cut c;
  c.group = max64(1, 32 / max64(1, s.taps()));
  c.groups = (s.out_channels + c.group - 1) / c.group;
  const int64_t rows = kPositions / max64(1, s.width) + 1;
  const int64_t seam = (s.taps_y + s.stride - 1) / s.stride;
  c.stretch = max64(rows, 4 * seam) * s.stride;
  c.stretches = (s.out_height + c.stretch - 1) / c.stretch;
  return c;
}

// Weights (channel, tap y, tap x) of some output channels as [input channel][row], rows beyond the
// last zero. In the kernel the taps of neighbouring output channels follow one another.
Weights load_kernel(const Tensor& kernel, const Shape& s, int64_t first, int64_t group,
                    float* out) {
  const int64_t rows = group * s.taps();
  const int64_t padded = round_up(rows, kPanelRows);
  const int64_t size = element_size(kernel.type);
  for (int64_t c = 0; c < s.channels; ++c) {
    const char* p = kernel.data + c * s.kernel_channel + first * s.taps() * size;
    load_floats(p, kernel.type, size, rows, out + c * padded);
    fill_zeros(out + c * padded + rows, padded - rows);
  }
  return {out, 1, padded};
}

// `n` positions of the image from `first` on, in row-major order, as floats.
void load_positions(const Shape& s, const char* data, DType type, int64_t first, int64_t n,
                    float* out) {
  if (s.data_y == s.width * s.data_x) {
    load_floats(data + first * s.data_x, type, s.data_x, n, out);
    return;
  }
  for (int64_t i = 0; i < n;) {
    const int64_t y = (first + i) / s.width;
    const int64_t x = first + i - y * s.width;
    const int64_t run = min64(n - i, s.width - x);
    load_floats(data + y * s.data_y + x * s.data_x, type, s.data_x, run, out + i);
    i += run;
  }
}

// Where tap (0, 0) of a block of positions lands, in bytes.
void places(const Shape& s, int64_t first, int64_t n, int64_t* out) {
  int64_t y = first / s.width;
  int64_t x = first - y * s.width;
  for (int64_t i = 0; i < n; ++i) {
    out[i] = y * s.stride * s.out_y + x * s.stride * s.out_x;
    if (++x < s.width) continue;
    x = 0;
    ++y;
  }
}

void add_at(const float* values, const int64_t* place, int64_t n, char* out) {
  for (int64_t i = 0; i < n; ++i) {
    char* p = out + place[i];
    store_element(p, DType::kF32, load_element(p, DType::kF32) + values[i]);
  }
}

// Adds the taps of `n` positions from `first` on to the output rows `outputs` of some channels.
void add_taps(const Shape& s, const float* values, int64_t first, int64_t n, int64_t group,
              Range outputs, char* out) {
  int64_t place[kColumns];
  places(s, first, n, place);
  for (int64_t ky = 0; ky < s.taps_y; ++ky) {
    // input rows whose tap ky lands inside, and their positions in this block
    const Range y = inside(s.height, s.stride, ky - outputs.begin, outputs.end - outputs.begin);
    const int64_t begin = max64(y.begin * s.width - first, 0);
    const int64_t end = min64(y.end * s.width - first, n);
    if (begin >= end) continue;
    for (int64_t o = 0; o < group; ++o) {
      for (int64_t kx = 0; kx < s.taps_x; ++kx) {
        const int64_t row = (o * s.taps_y + ky) * s.taps_x + kx;
        add_at(values + row * kColumns + begin, place + begin, end - begin,
               out + o * s.out_channel + ky * s.out_y + kx * s.out_x);
      }
    }
  }
}

void run_item(const Call& call, const Shape& s, const Cut& c, int64_t item, float* scratch) {
  const Tensor& data = *call.src[1];
  const int64_t stretch = item % c.stretches;
  const int64_t channel = item / c.stretches % c.groups * c.group;
  const int64_t batch = item / c.stretches / c.groups;
  const int64_t group = min64(c.group, s.out_channels - channel);
  const Range outputs = {stretch * c.stretch, min64((stretch + 1) * c.stretch, s.out_height)};

  char* out = call.dst.data + channel * s.out_channel + batch * s.out_batch;
  for (int64_t o = 0; o < group; ++o) {
    for (int64_t y = outputs.begin; y < outputs.end; ++y) {
      char* row = out + o * s.out_channel + y * s.out_y;
      for (int64_t x = 0; x < s.out_width; ++x) store_element(row + x * s.out_x, DType::kF32, 0);
    }
  }

  const int64_t padded = round_up(group * s.taps(), kPanelRows);
  float* block = scratch;
  float* sums = block + kBlockDepth * kColumns;
  const Weights weights = load_kernel(*call.src[0], s, channel, group, sums + padded * kColumns);
  // input rows that reach the stretch
  const int64_t low = outputs.begin >= s.taps_y ? (outputs.begin - s.taps_y) / s.stride + 1 : 0;
  const int64_t high = min64((outputs.end - 1) / s.stride + 1, s.height);
  const char* image = data.data + batch * s.data_batch;
  for (int64_t p = low * s.width; p < high * s.width; p += kColumns) {
    const int64_t n = min64(kColumns, high * s.width - p);
    const int64_t columns = round_up(n, kPanel);
    fill_zeros(sums, padded * kColumns);
    for (int64_t k = 0; k < s.channels; k += kBlockDepth) {
      const int64_t depth = min64(kBlockDepth, s.channels - k);
      for (int64_t i = 0; i < depth; ++i) {
        float* row = block + i * kColumns;
        load_positions(s, image + (k + i) * s.data_channel, data.type, p, n, row);
        fill_zeros(row + n, columns - n);
      }
      for (int64_t r = 0; r < padded; r += kPanelRows) {
        const Weights part = {weights.data + k * padded + r, 1, padded};
        multiply_block(part, block, depth, columns, sums + r * kColumns);
      }
    }
    add_taps(s, sums, p, n, group, outputs, out);
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
  return c.stretches * c.groups * s.batches;
}

template <Shape (*kShape)(const Call&)>
int64_t grain(const Call& call) {
  const Shape s = kShape(call);
  const Cut c = cut(s);
  const int64_t rows = min64(c.stretch / s.stride, s.height);
  return work_grain(rows * s.width * c.rows(s) * s.channels);
}

template <Shape (*kShape)(const Call&)>
size_t scratch_bytes(const Call& call) {
  const Shape s = kShape(call);
  const int64_t rows = cut(s).rows(s);
  return static_cast<size_t>(kBlockDepth * kColumns + rows * (kColumns + s.channels)) *
         sizeof(float);
}

const char* check_common(const Call& call) {
  if (!is_float(call.src[0]->type) || !is_float(call.src[1]->type)) {
    return "needs f32, f16 or bf16 kernel and data";
  }
  if (call.dst.type != DType::kF32) return "gives f32";
  return is_packed(*call.src[0]) ? nullptr : "the kernel must be contiguous";
}

const char* check_1d(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  if (!is_count(call, ConvTranspose1dSlot::kStride, 1)) return "the stride must be 1 or more";
  if (call.i(ConvTranspose1dSlot::kPadding) != 0 || call.i(ConvTranspose1dSlot::kDilation) != 1) {
    return "only padding 0 and dilation 1 are defined";
  }
  if (kernel.ne[1] != call.dst.ne[1] || kernel.ne[2] != data.ne[1] || kernel.ne[3] != 1) {
    return "kernel, data and result differ in channels";
  }
  for (int d = 2; d < 4; ++d) {
    if (data.ne[d] != 1 || call.dst.ne[d] != 1) return "data must be [width, channels]";
  }
  if (call.dst.ne[0] < (data.ne[0] - 1) * call.i(ConvTranspose1dSlot::kStride) + kernel.ne[0]) {
    return "the result is too short for every tap";
  }
  return check_common(call);
}

const char* check_2d(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  if (!is_count(call, ConvTranspose2dSlot::kStride, 1)) return "the stride must be 1 or more";
  if (kernel.ne[2] != call.dst.ne[2] || kernel.ne[3] != data.ne[2] ||
      data.ne[3] != call.dst.ne[3]) {
    return "kernel, data and result differ in channels or batches";
  }
  for (int d = 0; d < 2; ++d) {
    if (call.dst.ne[d] < (data.ne[d] - 1) * call.i(ConvTranspose2dSlot::kStride) + kernel.ne[d]) {
      return "the result is too small for every tap";
    }
  }
  return check_common(call);
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
