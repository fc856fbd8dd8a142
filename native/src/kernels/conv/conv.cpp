// CONV_2D, CONV_3D: blocks of patches, multiplied with the kernel a few output channels at a time.
#include "kernels/conv/conv_grid.h"
#include "kernels/matmul/column_blocks.h"

namespace weft::WEFT_TARGET {

void register_conv(KernelTable& table);

namespace {

struct Grid {
  Axis axes[3];
  int64_t channels, channel_step;
  int64_t batch_step;
  int64_t out_channels, out_channel_step;
  int64_t batches, out_batch_step;
  int64_t out_step[3];

  int64_t pixels() const { return axes[0].out * axes[1].out * axes[2].out; }
  int64_t depth() const { return channels * axes[2].taps * axes[1].taps * axes[0].taps; }
};

Grid grid_2d(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  const Tensor& dst = call.dst;
  Grid g;
  read_steps<ConvSlot>(call, 2, g.axes);
  for (int d = 0; d < 3; ++d) {
    g.out_step[d] = dst.nb[d];
    if (d == 2) continue;
    g.axes[d].in = data.ne[d];
    g.axes[d].taps = kernel.ne[d];
    g.axes[d].out = dst.ne[d];
    g.axes[d].step = data.nb[d];
  }
  g.channels = kernel.ne[2];
  g.channel_step = data.nb[2];
  g.batch_step = data.nb[3];
  g.out_channels = dst.ne[2];
  g.out_channel_step = dst.nb[2];
  g.batches = dst.ne[3];
  g.out_batch_step = dst.nb[3];
  return g;
}

// Channels and batches share dimension 3, the batch outside.
Grid grid_3d(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  const Tensor& dst = call.dst;
  Grid g;
  read_steps<Conv3dSlot>(call, 3, g.axes);
  for (int d = 0; d < 3; ++d) {
    g.out_step[d] = dst.nb[d];
    g.axes[d].in = data.ne[d];
    g.axes[d].taps = kernel.ne[d];
    g.axes[d].out = dst.ne[d];
    g.axes[d].step = data.nb[d];
  }
  g.channels = call.i(Conv3dSlot::kNChannels);
  g.channel_step = data.nb[3];
  g.batch_step = g.channels * data.nb[3];
  g.out_channels = call.i(Conv3dSlot::kNChannelsOut);
  g.out_channel_step = dst.nb[3];
  g.batches = call.i(Conv3dSlot::kNBatch);
  g.out_batch_step = g.out_channels * dst.nb[3];
  return g;
}

// An item: kColumns output positions of one batch, for a range of output channels. Channels are cut
// only where there are few blocks, as every cut gathers the patches again.
struct Cut {
  int64_t blocks;
  int64_t parts;
  int64_t rows;  // output channels of a part, a multiple of kPanelRows
};

Cut cut(const Grid& g, int n_threads) {
  Cut c;
  c.blocks = (g.pixels() + kColumns - 1) / kColumns;
  const int64_t wanted = 2 * int64_t{n_threads};
  const int64_t units = max64(1, c.blocks * g.batches);
  const int64_t parts = units >= wanted ? 1 : (wanted + units - 1) / units;
  const int64_t most = max64(1, g.out_channels / 16);
  c.rows = round_up((g.out_channels + min64(parts, most) - 1) / min64(parts, most), kPanelRows);
  c.parts = c.rows == 0 ? 0 : (g.out_channels + c.rows - 1) / c.rows;
  return c;
}

// Neighbouring output positions of a block: `n` from (x, y, z) on, at column `column`.
struct Run {
  int64_t x, y, z;
  int64_t n;
  int64_t column;
};

int cut_runs(const Grid& g, int64_t first, int64_t n, Run* runs) {
  int count = 0;
  for (int64_t column = 0; column < n;) {
    const int64_t p = first + column;
    const int64_t row = p / g.axes[0].out;
    Run& run = runs[count++];
    run.x = p - row * g.axes[0].out;
    run.z = row / g.axes[1].out;
    run.y = row - run.z * g.axes[1].out;
    run.n = min64(n - column, g.axes[0].out - run.x);
    run.column = column;
    column += run.n;
  }
  return count;
}

// What tap (kx, ky, kz) of one channel sees at the positions of a block.
void gather(const Grid& g, const char* data, DType type, int64_t kx, int64_t ky, int64_t kz,
            const Run* runs, int n_runs, float* out) {
  const Axis& ax = g.axes[0];
  const Axis& ay = g.axes[1];
  const Axis& az = g.axes[2];
  const int64_t offset = ax.offset(kx);
  const Range seen = inside(ax.out, ax.stride, offset, ax.in);
  for (int i = 0; i < n_runs; ++i) {
    const Run& run = runs[i];
    float* row = out + run.column;
    const int64_t y = run.y * ay.stride + ay.offset(ky);
    const int64_t z = run.z * az.stride + az.offset(kz);
    int64_t begin = max64(seen.begin, run.x) - run.x;
    int64_t end = min64(seen.end, run.x + run.n) - run.x;
    if (y < 0 || y >= ay.in || z < 0 || z >= az.in || begin >= end) begin = end = 0;
    fill_zeros(row, begin);
    if (begin < end) {
      const char* p =
          data + y * ay.step + z * az.step + ((run.x + begin) * ax.stride + offset) * ax.step;
      load_floats(p, type, ax.stride * ax.step, end - begin, row + begin);
    }
    fill_zeros(row + end, run.n - end);
  }
}

// kPanelRows rows of the kernel from `row` on as floats, zeros beyond the last: where they are, or
// converted into `buffer`.
Weights kernel_rows(const Tensor& kernel, const Grid& g, int64_t row, int64_t k, int64_t n,
                    float* buffer) {
  const int64_t depth = g.depth();
  const int64_t size = element_size(kernel.type);
  if (kernel.type == DType::kF32 && row + kPanelRows <= g.out_channels) {
    return {reinterpret_cast<const float*>(kernel.data) + row * depth + k, depth, 1};
  }
  for (int r = 0; r < kPanelRows; ++r) {
    float* out = buffer + r * kBlockDepth;
    if (row + r < g.out_channels) {
      load_floats(kernel.data + ((row + r) * depth + k) * size, kernel.type, size, n, out);
    } else {
      fill_zeros(out, n);
    }
  }
  return {buffer, kBlockDepth, 1};
}

void run_item(const Call& call, const Grid& g, const Cut& c, int64_t item, float* scratch) {
  const Tensor& data = *call.src[1];
  float* patches = scratch;
  float* buffer = patches + kBlockDepth * kColumns;
  float* sums = buffer + kPanelRows * kBlockDepth;

  const int64_t part = item % c.parts;
  const int64_t unit = item / c.parts;
  const int64_t batch = unit / c.blocks;
  const int64_t first = (unit - batch * c.blocks) * kColumns;
  const int64_t columns = min64(kColumns, g.pixels() - first);
  const int64_t row = part * c.rows;
  const int64_t rows = min64(c.rows, g.out_channels - row);
  const int64_t padded = round_up(columns, kPanel);
  Run runs[kColumns];
  const int n_runs = cut_runs(g, first, columns, runs);

  fill_zeros(sums, round_up(rows, kPanelRows) * kColumns);
  const int64_t depth = g.depth();
  int64_t kx = 0, ky = 0, kz = 0, channel = 0;
  for (int64_t k = 0; k < depth; k += kBlockDepth) {
    const int64_t n = min64(kBlockDepth, depth - k);
    for (int64_t i = 0; i < n; ++i) {
      const char* p = data.data + batch * g.batch_step + channel * g.channel_step;
      gather(g, p, data.type, kx, ky, kz, runs, n_runs, patches + i * kColumns);
      fill_zeros(patches + i * kColumns + columns, padded - columns);
      if (++kx < g.axes[0].taps) continue;
      kx = 0;
      if (++ky < g.axes[1].taps) continue;
      ky = 0;
      if (++kz < g.axes[2].taps) continue;
      kz = 0;
      ++channel;
    }
    for (int64_t r = 0; r < rows; r += kPanelRows) {
      const Weights w = kernel_rows(*call.src[0], g, row + r, k, n, buffer);
      multiply_block(w, patches, n, padded, sums + r * kColumns);
    }
  }

  for (int64_t r = 0; r < rows; ++r) {
    char* out = call.dst.data + batch * g.out_batch_step + (row + r) * g.out_channel_step;
    for (int i = 0; i < n_runs; ++i) {
      const Run& run = runs[i];
      char* p = out + run.x * g.out_step[0] + run.y * g.out_step[1] + run.z * g.out_step[2];
      store_floats(sums + r * kColumns + run.column, run.n, p, call.dst.type, g.out_step[0]);
    }
  }
}

template <Grid (*kGrid)(const Call&)>
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Grid g = kGrid(call);
  const Cut c = cut(g, call.n_threads);
  for (int64_t item = begin; item < end; ++item) {
    run_item(call, g, c, item, reinterpret_cast<float*>(scratch));
  }
}

template <Grid (*kGrid)(const Call&)>
int64_t items(const Call& call) {
  const Grid g = kGrid(call);
  const Cut c = cut(g, call.n_threads);
  return g.batches * c.blocks * c.parts;
}

template <Grid (*kGrid)(const Call&)>
int64_t grain(const Call& call) {
  const Grid g = kGrid(call);
  return work_grain(g.depth() * cut(g, call.n_threads).rows * kColumns);
}

// For all output channels, however they are cut: fewer positions than the most may mean more parts.
template <Grid (*kGrid)(const Call&)>
size_t scratch_bytes(const Call& call) {
  const Grid g = kGrid(call);
  const int64_t rows = round_up(g.out_channels, kPanelRows);
  const int64_t floats = kBlockDepth * (kColumns + kPanelRows) + rows * kColumns;
  return static_cast<size_t>(floats) * sizeof(float);
}

const char* check_common(const Call& call) {
  if (!is_float(call.src[0]->type) || !is_float(call.src[1]->type) || !is_float(call.dst.type)) {
    return "needs f32, f16 or bf16 kernel and data";
  }
  if (!is_packed(*call.src[0])) return "the kernel must be contiguous";
  return nullptr;
}

const char* check_2d(const Call& call) {
  const Tensor& kernel = *call.src[0];
  const Tensor& data = *call.src[1];
  if (!steps_are_legal<ConvSlot>(call, 2)) return kBadSteps;
  if (kernel.ne[2] != data.ne[2] || kernel.ne[3] != call.dst.ne[2] ||
      data.ne[3] != call.dst.ne[3]) {
    return "kernel, data and result differ in channels or batches";
  }
  return check_common(call);
}

const char* check_3d(const Call& call) {
  if (!steps_are_legal<Conv3dSlot>(call, 3)) return kBadSteps;
  using enum Conv3dSlot;
  for (const auto slot : {kNChannels, kNBatch, kNChannelsOut}) {
    if (!is_count(call, slot, 1)) return "needs one channel and one batch at least";
  }
  const int64_t channels = call.i(kNChannels), batches = call.i(kNBatch),
                out_channels = call.i(kNChannelsOut);
  if (call.src[0]->ne[3] != channels * out_channels || call.src[1]->ne[3] != channels * batches ||
      call.dst.ne[3] != out_channels * batches) {
    return "dimension 3 of kernel, data or result is not channels times the rest";
  }
  return check_common(call);
}

template <Grid (*kGrid)(const Call&)>
constexpr Kernel kernel(const char* (*check)(const Call&)) {
  return {.check = check,
          .items = items<kGrid>,
          .run = run<kGrid>,
          .grain = grain<kGrid>,
          .scratch = scratch_bytes<kGrid>};
}

}  // namespace

void register_conv(KernelTable& table) {
  table[Op::kConv2d] = kernel<grid_2d>(check_2d);
  table[Op::kConv3d] = kernel<grid_3d>(check_3d);
}

}  // namespace weft::WEFT_TARGET
