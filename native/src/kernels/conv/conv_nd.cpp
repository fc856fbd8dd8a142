// CONV_ND: convolution in 1 to 3 dimensions with groups and bias, and its transpose.
//
// The planes of all channels are made first (conv_nd.h). Then tiles of output channels and outputs
// are summed up in registers: for every weight, a row of outputs reads a piece of a plane. Where
// each channel has a kernel of its own, an item makes the planes of its channel itself.
#include "kernels/conv/conv_nd.h"

#include "kernels/conv/conv_nd_tile.h"

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

// Floats behind the planes that the last block may read.
constexpr int64_t kSlack = kAloneBlock;
// The maximum number of floats in all planes together.
constexpr double kMostFloats = 4e9;

struct Scratch {
  int64_t* places;
  int64_t* weight_places;
  int64_t* packed_places;
  float* starts;   // [rows]: the bias
  float* packed;   // [kDeep][kBlock]: pieces of planes, side by side
  float* sums;     // [rows][block]
  float* weights;  // [kRows][kDeep]
  float* planes;   // of one channel, where an item makes them
  size_t used;

  Scratch(const ConvPlan& p, char* memory) {
    places = reinterpret_cast<int64_t*>(memory);
    weight_places = places + p.depth();
    packed_places = weight_places + p.depth();
    const int64_t rows = round_up(p.out_channels, kRows);
    starts = reinterpret_cast<float*>(packed_places + kDeep);
    const auto lines = (reinterpret_cast<uintptr_t>(starts + rows) + 63) / 64;
    packed = reinterpret_cast<float*>(lines * 64);
    sums = packed + (p.out_channels >= kPacks ? kDeep * kBlock : 0);
    weights = sums + (p.out_channels == 1 ? kAloneBlock : rows * kBlock);
    planes = weights + kRows * kDeep;
    const int64_t own = p.depthwise() ? p.channel + kSlack : 0;
    used = static_cast<size_t>(reinterpret_cast<char*>(planes + own) - memory) + 64;
  }
};

// Planes of all channels, then the weights in order, in the memory that all threads share.
int64_t shared_planes(const ConvPlan& p) {
  return p.batches * p.groups * p.in_channels * p.channel + kSlack;
}

float* ordered_weights(const Call& call, const ConvPlan& p) {
  return reinterpret_cast<float*>(call.shared) + shared_planes(p);
}

// Where the weights of an output channel begin, in elements. In a transposed kernel the input
// channels of all groups come one after another.
int64_t first_of_row(const ConvPlan& p, int64_t group, int64_t row) {
  return group *
             (p.transposed ? p.in_channels * p.channel_weights : p.out_channels * p.row_weights) +
         row * p.row_weights;
}

// Weights k .. k+n of rows `row` on: where they are, where `prepare` put them, or brought together.
const float* weights_of(const Call& call, const ConvPlan& p, const ConvPhase& phase,
                        const Scratch& s, int64_t group, int64_t row, int64_t rows, int64_t k,
                        int64_t n, int64_t& row_step) {
  const Tensor& kernel = *call.src[1];
  if (p.orders_weights(kernel.type)) {
    row_step = phase.depth;
    return ordered_weights(call, p) + phase.first_weight +
           (group * p.out_channels + row) * phase.depth + k;
  }
  const int64_t base = first_of_row(p, group, row);
  if (kernel.type == DType::kF32 && !p.transposed) {
    row_step = p.row_weights;
    return reinterpret_cast<const float*>(kernel.data) + base + k;
  }
  row_step = kDeep;
  const int64_t size = element_size(kernel.type);
  for (int64_t r = 0; r < rows; ++r) {
    const char* from = kernel.data + (base + r * p.row_weights) * size;
    float* to = s.weights + r * kDeep;
    if (!p.transposed) {
      load_floats(from + k * size, kernel.type, size, n, to);
      continue;
    }
    for (int64_t i = 0; i < n; ++i) {
      to[i] = load_element(from + s.weight_places[k + i] * size, kernel.type);
    }
  }
  return s.weights;
}

// Pieces of planes of `n` outputs side by side: all output channels read them again, and in the
// planes they are pages apart.
void pack(const float* x, const int64_t* places, int64_t deep, int64_t n, float* to) {
  for (int64_t k = 0; k < deep; ++k, to += kBlock) {
    const float* from = x + places[k];
    int64_t c = 0;
    for (; c < n; c += kLanes) store(to + c, load(from + c));
    for (; c < kBlock; c += kLanes) store(to + c, splat(0));
  }
}

// Weights of the next tile: pieces of rows are too short for the processor to see them coming.
void fetch(const float* w, int64_t row_step, int64_t rows, int64_t deep) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < deep; k += 16) __builtin_prefetch(w + r * row_step + k);
  }
}

// Sums of a part of the output channels to `out`, for `n` outputs whose pieces of planes begin at
// `x`. Up to `room` outputs may be read and written.
void multiply(const Call& call, const ConvPlan& p, const ConvPhase& phase, const Scratch& s,
              int64_t group, int64_t row, int64_t rows, const float* x, int64_t n, int64_t room,
              int64_t block, float* out, int64_t out_step) {
  const bool packs = rows >= kPacks;
  for (int64_t k = 0; k < phase.depth; k += kDeep) {
    const int64_t deep = min64(kDeep, phase.depth - k);
    const float* data = x;
    const int64_t* places = s.places + k;
    if (packs) {
      pack(x, places, deep, n, s.packed);
      data = s.packed;
      places = s.packed_places;
    }
    const bool last = k + deep == phase.depth;
    const Sums sums = {k == 0 ? s.starts : nullptr, s.sums, block, last ? out : s.sums,
                       last ? out_step : block};
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t high = min64(kRows, rows - r);
      int64_t row_step;
      const float* w = weights_of(call, p, phase, s, group, row + r, high, k, deep, row_step);
      const bool more = r + kRows < rows;
      if (w != s.weights && (more || !last)) {
        const float* next = more ? w + kRows * row_step : w - r * row_step + deep;
        fetch(next, row_step, min64(kRows, more ? rows - r - kRows : rows), deep);
      }
      const int64_t wide = (high == 1 ? kAlone : kVectors) * kLanes;
      int64_t c = 0;
      for (; n - c > wide / 2 && c + wide <= room; c += wide) {
        kWide.of[high - 1](w, row_step, data + c, places, deep, sums.at(r, c));
      }
      for (; c < n; c += kLanes) {
        kNarrow.of[high - 1](w, row_step, data + c, places, deep, sums.at(r, c));
      }
    }
  }
}

// The same for a few outputs: products of the weights with what each output reads.
void dots(const Call& call, const ConvPlan& p, const ConvPhase& phase, const Scratch& s,
          int64_t group, int64_t row, int64_t rows, const float* x, int64_t n, int64_t block) {
  constexpr int64_t kSeen = 2048;
  float seen[kSeen];
  const DType type = call.src[1]->type;
  const bool in_rows = p.orders_weights(type) || (type == DType::kF32 && !p.transposed);
  const int64_t step = in_rows ? kSeen : kDeep;
  for (int64_t k = 0; k < phase.depth; k += step) {
    const int64_t deep = min64(step, phase.depth - k);
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t i = 0; i < deep; ++i) seen[i] = x[s.places[k + i] + c];
      for (int64_t r = 0; r < rows; ++r) {
        int64_t row_step;
        const float* w = weights_of(call, p, phase, s, group, row + r, 1, k, deep, row_step);
        vf sum[4] = {};
        int64_t i = 0;
        for (; i + 4 * kLanes <= deep; i += 4 * kLanes) {
          for (int j = 0; j < 4; ++j) {
            const int64_t at = i + j * kLanes;
            sum[j] = fma(load(w + at), load(seen + at), sum[j]);
          }
        }
        float rest = 0;
        for (; i < deep; ++i) rest += w[i] * seen[i];
        const float start = k == 0 ? s.starts[r] : s.sums[r * block + c];
        s.sums[r * block + c] = start + (hsum(sum[0] + sum[1] + (sum[2] + sum[3])) + rest);
      }
    }
  }
}

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

// The weights of an output channel that outputs of a phase meet, in the order of `plan_phase`.
void order_weights(const Call& call, const ConvPlan& p, int64_t number, int64_t row, float* out) {
  const Tensor& kernel = *call.src[1];
  const int64_t size = element_size(kernel.type);
  const char* from =
      kernel.data + first_of_row(p, row / p.out_channels, row % p.out_channels) * size;
  if (!p.transposed) return load_floats(from, kernel.type, size, p.depth(), out);
  const int64_t taps = p.phase_depth(number) / p.in_channels;
  const ConvAxis &ax = p.axes[0], &ay = p.axes[1], &az = p.axes[2];
  const int64_t x = number % ax.phases, y = number / ax.phases % ay.phases;
  const int64_t z = number / ax.phases / ay.phases;
  int64_t plane, index;
  for (int64_t kz = 0; kz < az.taps; ++kz) {
    if (!az.meets(z, kz, true, plane, index)) continue;
    for (int64_t ky = 0; ky < ay.taps; ++ky) {
      if (!ay.meets(y, ky, true, plane, index)) continue;
      for (int64_t kx = 0; kx < ax.taps; ++kx) {
        if (!ax.meets(x, kx, true, plane, index)) continue;
        const char* tap = from + ((kz * ay.taps + ky) * ax.taps + kx) * size;
        for (int64_t c = 0; c < p.in_channels; ++c) {
          out[c * taps] = load_element(tap + c * p.channel_weights * size, kernel.type);
        }
        ++out;
      }
    }
  }
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
