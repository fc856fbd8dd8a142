// The geometry of CONV_ND: what an output sees, as offsets into padded planes of its channel.
//
// Each channel of the data is copied once into planes with zeros around it. Along an axis with
// stride s there are s planes: plane p holds every s-th element from p on. Neighbouring outputs
// then read neighbouring elements for every tap, so that no patches have to be gathered. Outputs
// are numbered along the planes' rows; the numbers at the end of a row that are no output are
// computed with the others and dropped.
//
// A transposed convolution of stride s is s convolutions of stride 1 along the axis: output o meets
// tap k where o + padding - k dilation is s times an input, so that outputs of one phase (o modulo
// s) share their taps.
#pragma once

#include "kernels/conv/conv_grid.h"
#include "kernels/simd/part.h"

namespace weft::WEFT_TARGET {

struct ConvAxis {
  int64_t in = 1, out = 1, taps = 1, stride = 1, padding = 0, dilation = 1;
  int64_t in_step = 0, out_step = 0;  // bytes
  int64_t phases = 1;                 // of outputs
  int64_t planes = 1, length = 1;
  int64_t every = 1, lead = 0;  // plane p holds elements i * every + p - lead
  int64_t low = 0;              // transposed: the least distance from an output to an input

  void plan(bool transposed) {
    const int64_t reach = (taps - 1) * dilation;
    if (!transposed) {
      every = stride;
      planes = stride < reach + 1 ? stride : reach + 1;
      length = out + reach / stride;
      lead = padding;
      return;
    }
    phases = stride;
    const int64_t least = padding - reach;
    low = least >= 0 ? least / stride : -((-least + stride - 1) / stride);
    const int64_t most = (stride - 1 + padding) / stride;
    length = outputs(0) + most - low;
    lead = -low;
  }

  // Outputs of a phase: phase, phase + phases ...
  int64_t outputs(int64_t phase) const {
    return phase < out ? (out - phase + phases - 1) / phases : 0;
  }

  // Whether outputs of a phase meet tap k, and where for the first of them.
  bool meets(int64_t phase, int64_t k, bool transposed, int64_t& plane, int64_t& index) const {
    if (!transposed) {
      plane = k * dilation % stride;
      index = k * dilation / stride;
      return true;
    }
    const int64_t distance = phase + padding - k * dilation;
    if (distance % stride != 0) return false;
    plane = 0;
    index = distance / stride - low;
    return true;
  }

  // Taps that outputs of a phase meet.
  int64_t met(int64_t phase, bool transposed) const {
    if (!transposed) return taps;
    int64_t n = 0;
    for (int64_t k = 0; k < taps; ++k) n += (phase + padding - k * dilation) % stride == 0;
    return n;
  }
};

struct ConvPlan {
  ConvAxis axes[3];
  bool transposed;
  int64_t groups, batches;
  int64_t in_channels, out_channels;  // of a group
  int64_t channel_step, batch_step;   // of the data, in bytes
  int64_t out_channel_step, out_batch_step;
  int64_t plane;                         // floats
  int64_t channel;                       // floats of all planes of a channel
  int64_t row_weights, channel_weights;  // between weights of output and input channels

  explicit ConvPlan(const Call& call) {
    const Tensor& x = *call.src[0];
    const Tensor& kernel = *call.src[1];
    const Tensor& dst = call.dst;
    const auto dims = static_cast<int>(call.i(ConvNdSlot::kDims));
    transposed = call.i(ConvNdSlot::kTransposed) != 0;
    groups = call.i(ConvNdSlot::kGroups);
    const int64_t channels = call.i(ConvNdSlot::kChannels);
    in_channels = channels / groups;
    int64_t taps = 1;
    for (int d = 0; d < dims; ++d) {
      ConvAxis& a = axes[d];
      a.in = x.ne[d];
      a.out = dst.ne[d];
      a.taps = kernel.ne[d];
      a.stride = call.i(ConvNdSlot::kStride, d);
      a.padding = call.i(ConvNdSlot::kPadding, d);
      a.dilation = call.i(ConvNdSlot::kDilation, d);
      a.in_step = x.nb[d];
      a.out_step = dst.nb[d];
      a.plan(transposed);
      taps *= a.taps;
    }
    // three dimensions leave one for channels and batches
    batches = dims == 3 ? x.ne[3] / channels : x.ne[dims + 1];
    const int64_t all = n_elements(kernel) / max64(1, taps * in_channels);
    out_channels = all / groups;
    channel_step = x.nb[dims];
    out_channel_step = dst.nb[dims];
    batch_step = dims == 3 ? channels * x.nb[3] : x.nb[dims + 1];
    out_batch_step = dims == 3 ? out_channels * groups * dst.nb[3] : dst.nb[dims + 1];
    plane = axes[0].length * axes[1].length * axes[2].length;
    channel = plane * axes[0].planes * axes[1].planes * axes[2].planes;
    row_weights = transposed ? taps : in_channels * taps;
    channel_weights = transposed ? out_channels * taps : taps;
  }

  int64_t taps() const { return axes[0].taps * axes[1].taps * axes[2].taps; }
  int64_t depth() const { return in_channels * taps(); }
  int64_t phases() const { return axes[0].phases * axes[1].phases * axes[2].phases; }
  // Whether outputs are read where the data are: one tap, and as many inputs as outputs, side by
  // side.
  bool in_place(DType type) const {
    bool plain = type == DType::kF32 && !transposed && taps() == 1 && numbers() >= kLanes;
    int64_t step = 4;
    for (const ConvAxis& a : axes) {
      plain = plain && a.stride == 1 && a.padding == 0 && (a.in == 1 || a.in_step == step);
      step *= a.in;
    }
    return plain && channel_step % 4 == 0;
  }
  // Whether outputs of a channel of floats follow each other in memory.
  bool dense_rows() const {
    int64_t step = 4;
    for (const ConvAxis& a : axes) {
      if (a.out != 1 && a.out_step != step) return false;
      step *= a.out;
    }
    return out_channel_step % 4 == 0;
  }
  bool depthwise() const { return in_channels == 1 && out_channels == 1; }
  // Whether weights are brought into order once, as floats: [phase][output channel][depth].
  bool orders_weights(DType type) const {
    return !depthwise() && (transposed || type != DType::kF32);
  }
  int64_t weights() const { return groups * out_channels * depth(); }

  // Weights that outputs of a phase meet.
  int64_t phase_depth(int64_t number) const {
    int64_t n = in_channels;
    for (const ConvAxis& a : axes) {
      n *= a.met(number % a.phases, transposed);
      number /= a.phases;
    }
    return n;
  }
  // The place of the first weight of a phase among the ordered weights.
  int64_t first_weight(int64_t number) const {
    int64_t n = 0;
    for (int64_t i = 0; i < number; ++i) n += phase_depth(i);
    return n * groups * out_channels;
  }

  // Numbers of outputs of the first phase, which has the most.
  int64_t numbers() const {
    int64_t n[3];
    for (int d = 0; d < 3; ++d) n[d] = axes[d].outputs(0);
    if (n[0] == 0 || n[1] == 0 || n[2] == 0) return 0;
    return ((n[2] - 1) * axes[1].length + n[1] - 1) * axes[0].length + n[0];
  }
};

// Rows are often shorter than a vector, so that calls to memcpy would take longer than the copy.
static inline void copy_row(const float* from, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(to + i, load(from + i));
  copy_part(from + i, n - i, to + i);
}

// `n` elements `every` places of `step` bytes apart.
static inline void copy_elements(const char* from, DType type, int64_t step, int64_t every,
                                 int64_t n, float* to) {
  if (type != DType::kF32 || step != 4) return load_floats(from, type, every * step, n, to);
  const auto* p = reinterpret_cast<const float*>(from);
  if (every == 1) return copy_row(p, n, to);
  if (every == 2) {
    for (int64_t i = 0; i < n; ++i) to[i] = p[2 * i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i] = p[every * i];
}

// All planes of a channel.
static inline void fill_planes(const ConvPlan& plan, const char* x, DType type, float* out) {
  const ConvAxis& ax = plan.axes[0];
  const ConvAxis& ay = plan.axes[1];
  const ConvAxis& az = plan.axes[2];
  std::memset(out, 0, static_cast<size_t>(plan.channel) * sizeof(float));
  for (int64_t pz = 0; pz < az.planes; ++pz) {
    for (int64_t py = 0; py < ay.planes; ++py) {
      for (int64_t px = 0; px < ax.planes; ++px) {
        const int64_t offset = px - ax.lead;
        const Range seen = inside(ax.length, ax.every, offset, ax.in);
        for (int64_t iz = 0; iz < az.length; ++iz) {
          const int64_t z = iz * az.every + pz - az.lead;
          for (int64_t iy = 0; iy < ay.length; ++iy, out += ax.length) {
            const int64_t y = iy * ay.every + py - ay.lead;
            if (y < 0 || y >= ay.in || z < 0 || z >= az.in || seen.begin >= seen.end) continue;
            const char* p =
                x + z * az.in_step + y * ay.in_step + (seen.begin * ax.every + offset) * ax.in_step;
            copy_elements(p, type, ax.in_step, ax.every, seen.end - seen.begin, out + seen.begin);
          }
        }
      }
    }
  }
}

// The taps and the inputs that the outputs of one phase read.
struct ConvPhase {
  int64_t first[3], outputs[3];
  int64_t numbers;       // outputs along the planes' rows
  int64_t depth;         // weights that they meet
  int64_t first_weight;  // of those in order
};

// The place in the planes of a group's channels, and the place of the weight, of every weight that
// outputs of a phase meet.
static inline ConvPhase plan_phase(const ConvPlan& plan, int64_t number, int64_t* places,
                                   int64_t* weights) {
  ConvPhase phase = {};
  int64_t rest = number;
  for (int d = 0; d < 3; ++d) {
    phase.first[d] = rest % plan.axes[d].phases;
    rest /= plan.axes[d].phases;
    phase.outputs[d] = plan.axes[d].outputs(phase.first[d]);
  }
  const ConvAxis& ax = plan.axes[0];
  const ConvAxis& ay = plan.axes[1];
  const ConvAxis& az = plan.axes[2];
  const int64_t* n = phase.outputs;
  phase.numbers = n[0] == 0 || n[1] == 0 || n[2] == 0
                      ? 0
                      : ((n[2] - 1) * ay.length + n[1] - 1) * ax.length + n[0];
  int64_t px, py, pz, ix, iy, iz;
  int64_t taps = 0;
  for (int64_t kz = 0; kz < az.taps; ++kz) {
    if (!az.meets(phase.first[2], kz, plan.transposed, pz, iz)) continue;
    for (int64_t ky = 0; ky < ay.taps; ++ky) {
      if (!ay.meets(phase.first[1], ky, plan.transposed, py, iy)) continue;
      for (int64_t kx = 0; kx < ax.taps; ++kx) {
        if (!ax.meets(phase.first[0], kx, plan.transposed, px, ix)) continue;
        const int64_t plane = (pz * ay.planes + py) * ax.planes + px;
        places[taps] = plane * plan.plane + (iz * ay.length + iy) * ax.length + ix;
        weights[taps++] = (kz * ay.taps + ky) * ax.taps + kx;
      }
    }
  }
  for (int64_t c = 1; c < plan.in_channels; ++c) {
    for (int64_t t = 0; t < taps; ++t) {
      places[c * taps + t] = places[t] + c * plan.channel;
      weights[c * taps + t] = weights[t] + c * plan.channel_weights;
    }
  }
  phase.depth = plan.in_channels * taps;
  return phase;
}

}  // namespace weft::WEFT_TARGET
