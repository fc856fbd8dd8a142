// CONV_ND: convolution in 1 to 3 dimensions with groups and bias, and its transpose.
//
// The planes of all channels are made first (conv_nd.h). Then tiles of output channels and outputs
// are summed up in registers: for every weight, a row of outputs reads a piece of a plane. Where
// each channel has a kernel of its own, an item makes the planes of its channel itself.
#include "kernels/conv/conv_nd_sums.h"

namespace weft::WEFT_TARGET {

void register_conv_nd(KernelTable& table);

namespace {

// How the work is cut. An item: a block of outputs of one phase, for a part of the output channels
// of a group of a batch. Blocks come fastest, phases slowest.
struct Cut {
  int64_t block;   // outputs
  int64_t blocks;  // of the first phase
  int64_t rows;    // output channels of a part
  int64_t parts;

  Cut(const ConvPlan& p, int n_threads) {
    block = p.out_channels == 1 ? kAloneBlock : kBlock;
    blocks = (p.numbers() + block - 1) / block;
    const int64_t units = max64(1, blocks * p.batches * p.groups * p.phases());
    const int64_t wanted = 4 * int64_t{n_threads};
    const int64_t most = max64(1, p.out_channels / (4 * kRows));
    const int64_t cuts = units >= wanted ? 1 : min64(most, (wanted + units - 1) / units);
    rows = round_up((p.out_channels + cuts - 1) / cuts, kRows);
    parts = rows == 0 ? 0 : (p.out_channels + rows - 1) / rows;
  }
};

// The maximum number of floats in all planes together.
constexpr double kMostFloats = 4e9;

void fill_starts(const Call& call, const ConvPlan& p, int64_t group, int64_t row, int64_t rows,
                 float* starts) {
  const Tensor* bias = call.src[2];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t channel = group * p.out_channels + row + r;
    starts[r] = bias == nullptr ? 0 : load_element(bias->data + channel * bias->nb[0], bias->type);
  }
}

// Sums of outputs first .. first+n to the result, those at the end of a plane's row left out.
void put(const Call& call, const ConvPlan& p, const ConvPhase& phase, char* out, int64_t first,
         int64_t n, const float* sums) {
  const int64_t width = p.axes[0].length, height = p.axes[1].length;
  const DType type = call.dst.type;
  int64_t steps[3];
  for (int d = 0; d < 3; ++d) {
    steps[d] = p.axes[d].phases * p.axes[d].out_step;
    out += phase.first[d] * p.axes[d].out_step;
  }
  const int64_t row = first / width;
  int64_t x = first - row * width;
  int64_t z = row / height, y = row - z * height;
  for (int64_t i = 0; i < n;) {
    const int64_t left = min64(width - x, n - i);
    const int64_t count = min64(left, phase.outputs[0] - x);
    if (y < phase.outputs[1] && count > 0) {
      char* to = out + x * steps[0] + y * steps[1] + z * steps[2];
      if (type == DType::kF32 && steps[0] == 4) {
        copy_row(sums + i, count, reinterpret_cast<float*>(to));
      } else {
        store_floats(sums + i, count, to, type, steps[0]);
      }
    }
    i += left;
    x = 0;
    if (++y == height) {
      y = 0;
      ++z;
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const ConvPlan p(call);
  const Cut cut(p, call.n_threads);
  const Scratch s(p, scratch);
  const Tensor& data = *call.src[0];
  const auto* planes = reinterpret_cast<const float*>(call.shared);
  const bool in_place = p.in_place(data.type);
  for (int64_t k = 0; k < kDeep; ++k) s.packed_places[k] = k * kBlock;
  ConvPhase phase = {};
  int64_t of_phase = -1, of_planes = -1;
  for (int64_t item = begin; item < end; ++item) {
    int64_t rest = item / cut.blocks;
    const int64_t first = item % cut.blocks * cut.block;
    const int64_t part = rest % cut.parts;
    rest /= cut.parts;
    const int64_t unit = rest % (p.groups * p.batches);
    const int64_t number = rest / (p.groups * p.batches);
    if (number != of_phase) {
      phase = plan_phase(p, number, s.places, s.weight_places);
      phase.first_weight = p.first_weight(number);
      for (int64_t c = 0; in_place && c < p.in_channels; ++c) {
        s.places[c] = c * (p.channel_step / 4);
      }
    }
    of_phase = number;
    if (first >= phase.numbers) continue;
    const int64_t group = unit % p.groups, batch = unit / p.groups;
    const float* x = planes + unit * p.in_channels * p.channel;
    if (p.depthwise() && !in_place) {
      if (unit != of_planes) {
        fill_planes(p, data.data + batch * p.batch_step + group * p.channel_step, data.type,
                    s.planes);
      }
      of_planes = unit;
      x = s.planes;
    }
    const int64_t row = part * cut.rows;
    const int64_t rows = min64(cut.rows, p.out_channels - row);
    const int64_t n = min64(cut.block, phase.numbers - first);
    fill_starts(call, p, group, row, rows, s.starts);
    char* out = call.dst.data + batch * p.out_batch_step +
                (group * p.out_channels + row) * p.out_channel_step;
    int64_t skipped = 0;
    if (phase.depth == 0) {  // outputs of a transposed convolution that meet no input
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) s.sums[r * cut.block + i] = s.starts[r];
      }
    } else if (in_place) {
      // whole vectors, but nothing behind the data: the last ones begin earlier
      const int64_t whole = round_up(n, kLanes);
      skipped = first + whole > phase.numbers ? whole - n : 0;
      const char* from = data.data + batch * p.batch_step + group * p.in_channels * p.channel_step;
      x = reinterpret_cast<const float*>(from);
      // whole vectors go where they belong at once
      if (whole == n && p.dense_rows()) {
        multiply(call, p, phase, s, group, row, rows, x + first, n, n, cut.block,
                 reinterpret_cast<float*>(out) + first, p.out_channel_step / 4);
        continue;
      }
      multiply(call, p, phase, s, group, row, rows, x + first - skipped, whole, whole, cut.block,
               s.sums, cut.block);
    } else if (phase.numbers <= kFew) {
      dots(call, p, phase, s, group, row, rows, x + first, n, cut.block);
    } else {
      multiply(call, p, phase, s, group, row, rows, x + first, n, cut.block, cut.block, s.sums,
               cut.block);
    }
    for (int64_t r = 0; r < rows; ++r) {
      put(call, p, phase, out + r * p.out_channel_step, first, n, s.sums + r * cut.block + skipped);
    }
  }
}

int64_t items(const Call& call) {
  const ConvPlan p(call);
  const Cut cut(p, call.n_threads);
  return p.phases() * p.groups * p.batches * cut.parts * cut.blocks;
}

int64_t grain(const Call& call) {
  const ConvPlan p(call);
  const Cut cut(p, call.n_threads);
  // the planes of a channel are made for each run of items
  if (p.depthwise()) return cut.blocks;
  return row_grain(p.depth() * cut.rows * cut.block / 8);
}

size_t scratch_bytes(const Call& call) { return Scratch(ConvPlan(call), nullptr).used; }

// Channels whose planes are made first.
int64_t plane_units(const Call& call, const ConvPlan& p) {
  if (p.depthwise() || p.in_place(call.src[0]->type)) return 0;
  return p.batches * p.groups * p.in_channels;
}

int64_t prepare_units(const Call& call) {
  const ConvPlan p(call);
  const bool orders = p.orders_weights(call.src[1]->type);
  return plane_units(call, p) + (orders ? p.groups * p.out_channels : 0);
}

void prepare(const Call& call, int64_t begin, int64_t end) {
  const ConvPlan p(call);
  const Tensor& data = *call.src[0];
  const int64_t channels = p.groups * p.in_channels;
  const int64_t units = plane_units(call, p);
  auto* planes = reinterpret_cast<float*>(call.shared);
  for (int64_t row = max64(begin, units) - units; row < end - units; ++row) {
    float* out = ordered_weights(call, p);
    for (int64_t number = 0; number < p.phases(); ++number) {
      const int64_t depth = p.phase_depth(number);
      order_weights(call, p, number, row, out + row * depth);
      out += p.groups * p.out_channels * depth;
    }
  }
  for (int64_t unit = begin; unit < min64(end, units); ++unit) {
    const char* x = data.data + unit / channels * p.batch_step + unit % channels * p.channel_step;
    fill_planes(p, x, data.type, planes + unit * p.channel);
  }
}

size_t shared_bytes(const Call& call) {
  const ConvPlan p(call);
  if (p.depthwise()) return 0;
  const int64_t weights = p.orders_weights(call.src[1]->type) ? p.weights() : 0;
  return static_cast<size_t>(shared_planes(p) + weights) * sizeof(float);
}

const char* check(const Call& call) {
  using enum ConvNdSlot;
  if (call.i(kDims) < 1 || call.i(kDims) > 3) return "needs 1 to 3 dimensions";
  const auto dims = static_cast<int>(call.i(kDims));
  const Tensor& x = *call.src[0];
  const Tensor& kernel = *call.src[1];
  const Tensor& dst = call.dst;
  if (!steps_are_legal<ConvNdSlot>(call, dims)) return kBadSteps;
  if (!is_count(call, kGroups, 1) || !is_count(call, kChannels, 1) ||
      call.i(kChannels) % call.i(kGroups) != 0) {
    return "channels are not whole groups";
  }
  if (!is_float(x.type) || !is_float(kernel.type) || dst.type != x.type ||
      (call.src[2] != nullptr && !is_float(call.src[2]->type))) {
    return "needs floats (f32, f16 or bf16), and a result of the data's type";
  }
  if (!is_packed(kernel)) return "the kernel must be contiguous";
  for (int d = dims + 2; d < 4; ++d) {
    if (x.ne[d] != 1) return "the data have too many dimensions";
  }
  for (int d = 0; d < dims; ++d) {
    if (kernel.ne[d] < 1) return "a kernel has one tap at least";
  }
  const bool folded = dims == 3;
  if (folded ? x.ne[3] % call.i(kChannels) != 0 : x.ne[dims] != call.i(kChannels)) {
    return "the data have other channels";
  }
  const ConvPlan p(call);
  const int64_t channels = p.out_channels * p.groups;
  if (channels * p.in_channels * p.taps() != n_elements(kernel) || channels == 0) {
    return "the kernel is not for these channels";
  }
  if (folded ? dst.ne[3] != p.batches * channels
             : dst.ne[dims] != channels || dst.ne[dims + 1] != p.batches) {
    return "the result has other channels or batches";
  }
  // planes beyond any data are a mistake
  const double floats = static_cast<double>(p.channel) * static_cast<double>(p.groups) *
                        static_cast<double>(p.batches) * static_cast<double>(p.in_channels);
  if (!(floats < kMostFloats) || p.channel < 0) return "padding and dilation are too large";
  if (call.src[2] != nullptr && call.src[2]->ne[0] != channels) return "a bias for each channel";
  for (int d = 0; d < dims; ++d) {
    const ConvAxis& a = p.axes[d];
    const int64_t span = (a.taps - 1) * a.dilation + 1;
    const int64_t size =
        p.transposed ? (a.in - 1) * a.stride - 2 * a.padding + span + call.i(kOutputPadding, d)
                     : (a.in + 2 * a.padding - span) / a.stride + 1;
    if (a.out != size) return "the result has another size";
  }
  return nullptr;
}

}  // namespace

void register_conv_nd(KernelTable& table) {
  table[Op::kConvNd] = {.check = check,
                        .items = items,
                        .run = run,
                        .grain = grain,
                        .scratch = scratch_bytes,
                        .prepare_units = prepare_units,
                        .prepare = prepare,
                        .shared = shared_bytes};
}

}  // namespace weft::WEFT_TARGET
