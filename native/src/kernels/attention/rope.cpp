// ROPE and ROPE_BACK: rotary position embedding in ggml's modes, with YaRN (arXiv 2309.00071).
// ROPE_SET_ROWS rotates keys and writes them into a cache.
//
// The angle of a pair is linear in the position: theta = position * rate(pair). Rates and angles
// are computed in double and reduced to a quarter turn there, so that large positions stay exact;
// float is enough for sine and cosine.
#include <math.h>

#include "kernels/copy/copy_rows.h"
#include "kernels/elements.h"

namespace weft::WEFT_TARGET {

void register_rope(KernelTable& table);

namespace {

using enum RopeSlot;
using enum RopeMode;

RopeMode mode_of(const Call& call) { return call.as<RopeMode>(kMode); }
// Whether each token has four positions.
bool has_planes(RopeMode mode) { return mode == kMrope || mode == kVision || mode == kImrope; }

constexpr double kPi = 3.14159265358979323846;

// The number of rotated pairs of a row. VISION pairs the two halves of the whole row.
int64_t n_pairs(const Call& call) {
  return mode_of(call) == kVision ? call.dst.ne[0] / 2 : call.i(kNDims) / 2;
}
// The number of pairs rounded up to whole vectors.
int64_t padded_pairs(const Call& call) { return (n_pairs(call) + kLanes - 1) / kLanes * kLanes; }

// Which of a token's four positions turns a pair, and the exponent of its rate.
struct Sector {
  int32_t plane;
  int64_t exponent;
};

Sector sector_of(const Call& call, int64_t pair) {
  const RopeMode mode = mode_of(call);
  if (mode == kNormal || mode == kNeox) return {0, pair};
  const int64_t s[4] = {call.i(kSections), call.i(kSections, 1), call.i(kSections, 2),
                        call.i(kSections, 3)};
  const int64_t at = pair % max64(1, s[0] + s[1] + s[2] + s[3]);
  if (mode == kImrope) {
    // Time, height and width alternate until their sections are used up; then comes the fourth.
    const int64_t axis = at % 3;
    return {static_cast<int32_t>(at < 3 * s[axis] ? axis : 3), pair};
  }
  int32_t plane = 0;
  int64_t start = 0;
  while (plane < 3 && at >= start + s[plane]) start += s[plane++];
  return {plane, mode == kVision ? at - start : pair};
}

// The rotations of pairs, in scratch memory.
struct Angles {
  // For each pair, the same for all tokens.
  double* rate;    // the angle per position, in radians
  int32_t* plane;  // which of the token's positions applies
  // For each pair, at the current token.
  int32_t* quadrant;  // whole quarter turns, modulo 4
  float* rest;        // the angle that remains after them, in radians
  // For each pair; in mode NORMAL for each element, with the sine negated at the first of a pair.
  float* cosine;
  float* sine;
  float* row;  // a row as floats
};

Angles angles_in(const Call& call, char* scratch) {
  const int64_t n = padded_pairs(call);
  Angles a;
  a.rate = reinterpret_cast<double*>(scratch);
  a.plane = reinterpret_cast<int32_t*>(a.rate + n);
  a.quadrant = a.plane + n;
  a.rest = reinterpret_cast<float*>(a.quadrant + n);
  a.cosine = a.rest + n;
  a.sine = a.cosine + 2 * n;
  a.row = a.sine + 2 * n;
  return a;
}

size_t scratch_bytes(const Call& call) {
  const auto n = static_cast<size_t>(padded_pairs(call));
  return n * (sizeof(double) + 2 * sizeof(int32_t) + 5 * sizeof(float)) +
         static_cast<size_t>(call.dst.ne[0]) * sizeof(float);
}

// The (fractional) number of the pair that turns `rotations` times over the original context.
double pair_that_turns(const Call& call, double rotations) {
  const auto context = static_cast<double>(call.i(kNCtxOrig));
  return static_cast<double>(call.i(kNDims)) * ::log(context / (rotations * 2 * kPi)) /
         (2 * ::log(static_cast<double>(call.f(kFreqBase))));
}

void fill_rates(const Call& call, const Angles& a) {
  const Tensor* factors = call.src[2];
  const int64_t pairs = n_pairs(call);
  const auto dims = static_cast<double>(call.i(kNDims));
  const double step = ::pow(static_cast<double>(call.f(kFreqBase)), -2.0 / dims);
  const auto scale = static_cast<double>(call.f(kFreqScale));
  const auto ext = static_cast<double>(call.f(kExtFactor));
  double low = 0;
  double high = 0;
  if (ext != 0) {
    low = ::floor(pair_that_turns(call, static_cast<double>(call.f(kBetaFast))));
    high = ::ceil(pair_that_turns(call, static_cast<double>(call.f(kBetaSlow))));
    low = low > 0 ? low : 0;
    high = high < dims - 1 ? high : dims - 1;
  }
  const double width = high - low > 0.001 ? high - low : 0.001;
  double power = 1;
  int64_t exponent = 0;
  for (int64_t i = 0; i < padded_pairs(call); ++i) {
    a.rate[i] = 0;
    a.plane[i] = 0;
    if (i >= pairs) continue;
    const Sector sector = sector_of(call, i);
    if (sector.exponent < exponent) {
      power = 1;
      exponent = 0;
    }
    for (; exponent < sector.exponent; ++exponent) power *= step;
    double rate = power;
    if (factors != nullptr) {
      rate /= static_cast<double>(load_element(factors->data + i * factors->nb[0], factors->type));
    }
    double mix = 0;
    if (ext != 0) {
      const double ramp = (static_cast<double>(i) - low) / width;
      mix = (1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp)) * ext;
    }
    a.rate[i] = rate * (scale * (1 - mix) + mix);
    a.plane[i] = sector.plane;
  }
}

float magnitude(const Call& call) {
  const double factor = call.f(kExtFactor) == 0.0f
                            ? 1.0
                            : 1.0 + 0.1 * ::log(1.0 / static_cast<double>(call.f(kFreqScale)));
  return static_cast<float>(static_cast<double>(call.f(kAttnFactor)) * factor);
}

void turn_to(const Call& call, const Angles& a, int64_t token, float direction) {
  // Adding and subtracting it rounds to an integer, which is also in the low bits of the sum.
  constexpr double kRoundDouble = 6755399441055744.0;
  const Tensor& positions = *call.src[1];
  const int64_t n = padded_pairs(call);
  double position[4] = {};
  const int n_planes = has_planes(mode_of(call)) ? 4 : 1;
  for (int plane = 0; plane < n_planes; ++plane) {
    int32_t p;
    std::memcpy(&p, positions.data + (plane * call.dst.ne[2] + token) * positions.nb[0], 4);
    position[plane] = static_cast<double>(p);
  }
  for (int64_t i = 0; i < n; ++i) {
    const double theta = position[a.plane[i]] * a.rate[i];
    const double sum = theta * (2 / kPi) + kRoundDouble;
    int64_t bits;
    std::memcpy(&bits, &sum, 8);
    a.quadrant[i] = static_cast<int32_t>(bits & 3);
    a.rest[i] = static_cast<float>(theta - (sum - kRoundDouble) * (kPi / 2));
  }
  const float size = magnitude(call);
  for (int64_t i = 0; i < n; i += kLanes) {
    vi quadrant;
    std::memcpy(&quadrant, a.quadrant + i, sizeof quadrant);
    vf sine;
    vf cosine;
    sincos(load(a.rest + i), quadrant, sine, cosine);
    store(a.sine + i, sine * (size * direction));
    store(a.cosine + i, cosine * size);
  }
  if (mode_of(call) != kNormal) return;
  for (int64_t i = n - 1; i >= 0; --i) {
    a.cosine[2 * i] = a.cosine[2 * i + 1] = a.cosine[i];
    a.sine[2 * i + 1] = a.sine[i];
    a.sine[2 * i] = -a.sine[2 * i + 1];
  }
}

// Swaps the elements 2k and 2k+1.
vf swap_neighbours(vf x) {
  typedef uint64_t vd __attribute__((vector_size(kLanes * 4)));
  const vd pairs = reinterpret_cast<vd>(x);
  return reinterpret_cast<vf>(pairs << 32 | pairs >> 32);
}

// Rotates the pairs (x[2i], x[2i+1]); `out` may be `x`.
void rotate_adjacent(const float* x, const Angles& a, int64_t pairs, float* out) {
  const auto turn = [](vf v, vf c, vf s) { return v * c + swap_neighbours(v) * s; };
  const int64_t n = 2 * pairs;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, turn(load(x + i), load(a.cosine + i), load(a.sine + i)));
  }
  if (i < n) {
    const vf v = turn(load_part(x + i, n - i), load(a.cosine + i), load(a.sine + i));
    store_part(out + i, v, n - i);
  }
}

// Rotates the pairs (x[i], x[pairs + i]); `out` may be `x`.
void rotate_halves(const float* x, const Angles& a, int64_t pairs, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    const vf c = load(a.cosine + i);
    const vf s = load(a.sine + i);
    const vf first = load(x + i);
    const vf second = load(x + pairs + i);
    store(out + i, first * c - second * s);
    store(out + pairs + i, first * s + second * c);
  }
  for (; i < pairs; ++i) {
    const float first = x[i];
    const float second = x[pairs + i];
    out[i] = first * a.cosine[i] - second * a.sine[i];
    out[pairs + i] = first * a.sine[i] + second * a.cosine[i];
  }
}

// Rotates the pairs of a row and copies its other elements; `out` may be `x`.
void rotate_row(const Call& call, const Angles& a, const float* x, float* out) {
  const int64_t pairs = n_pairs(call);
  const int64_t first = call.i(kNOffset);
  const int64_t rest = first + 2 * pairs;
  if (mode_of(call) == kNormal) {
    rotate_adjacent(x + first, a, pairs, out + first);
  } else {
    rotate_halves(x + first, a, pairs, out + first);
  }
  if (out != x) {
    const int64_t n = call.dst.ne[0];
    std::memcpy(out, x, static_cast<size_t>(first) * sizeof(float));
    std::memcpy(out + rest, x + rest, static_cast<size_t>(n - rest) * sizeof(float));
  }
}

template <int kDirection>
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& src = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t n = dst.ne[0];
  const Angles a = angles_in(call, scratch);
  fill_rates(call, a);
  int64_t token = -1;
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    if (index.i2 != token) {
      token = index.i2;
      turn_to(call, a, token, static_cast<float>(kDirection));
    }
    const float* x = as_floats(src, row_data(src, index), n, a.row);
    float* out = float_room(dst, row_data(dst, index), a.row);
    rotate_row(call, a, x, out);
    put_floats(dst, row_data(dst, index), n, out);
  }
}

// ---- ROPE_SET_ROWS (x, positions, ids, cache, factors) writes the rotated heads of token i, side
// by side, into row ids[i] of the cache

// The ROPE that is a part of the step. Its result has the shape of its source.
Call as_rope(const Call& call) {
  Call rope = call;
  rope.dst = *call.src[0];
  rope.src[2] = call.src[4];
  rope.src[3] = rope.src[4] = nullptr;
  return rope;
}

void run_set_rows(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Call rope = as_rope(call);
  const Tensor& src = *call.src[0];
  const Tensor& ids = *call.src[2];
  const Tensor& dst = call.dst;
  const int64_t n = src.ne[0];
  const Angles a = angles_in(rope, scratch);
  fill_rates(rope, a);
  int64_t token = -1;
  int64_t id = -1;
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(src, row);
    if (index.i2 != token) {
      token = index.i2;
      id = read_index(ids.data + token * ids.nb[0], ids.type);
      turn_to(rope, a, token, 1.0f);
    }
    if (id < 0 || id >= dst.ne[1]) continue;
    const float* x = as_floats(src, row_data(src, index), n, a.row);
    rotate_row(rope, a, x, a.row);
    store_range(a.row, n, dst, dst.data + id * dst.nb[1], index.i1 * n);
  }
}

const char* check(const Call& call) {
  const Tensor& dst = call.dst;
  const Tensor& positions = *call.src[1];
  const Tensor* factors = call.src[2];
  if (!is_float(dst.type) || !is_float(call.src[0]->type)) return "needs f32, f16 or bf16 operands";
  if (!same_shape(dst, *call.src[0])) return "result and source differ in shape";
  const RopeMode mode = mode_of(call);
  if (mode != kNormal && mode != kNeox && !has_planes(mode)) return "unknown mode";
  const int64_t dims = call.i(kNDims);
  if (dims < 2 || dims % 2 != 0 || dims > dst.ne[0]) {
    return "the number of rotated dimensions must be even, positive and within a row";
  }
  if (call.i(kNOffset) < 0 || call.i(kNOffset) > dst.ne[0] - 2 * n_pairs(call)) {
    return "the rotated dimensions must be within the row";
  }
  for (int s = 0; s < 4; ++s) {
    if (call.i(kSections, s) < 0 || call.i(kSections, s) > dst.ne[0]) {
      return "a section is larger than a row";
    }
  }
  if (positions.type != DType::kI32) return "positions must be i32";
  if (positions.ne[0] < dst.ne[2] * (has_planes(mode) ? 4 : 1)) {
    return "a position per token (and plane) is needed";
  }
  if (factors != nullptr && (!is_float(factors->type) || factors->ne[0] < n_pairs(call))) {
    return "a floating-point frequency factor per pair is needed";
  }
  return nullptr;
}

const char* check_set_rows(const Call& call) {
  const Tensor& x = *call.src[0];
  const Tensor& ids = *call.src[2];
  const Tensor& dst = call.dst;
  if (const char* why = check(as_rope(call))) return why;
  if (!is_index(ids.type)) return "the indices must be i32 or i64";
  if (ids.ne[0] != x.ne[2] || n_rows(ids) != 1) return "an index for each token is needed";
  if (!can_store(dst.type) || dst.type == DType::kI32 || dst.type == DType::kI2_S) {
    return "the result must be of a type that can be written";
  }
  if (dst.ne[0] != x.ne[0] * x.ne[1] || x.ne[3] != 1 || dst.ne[2] != 1 || dst.ne[3] != 1) {
    return "a row of the result must hold the heads of a token";
  }
  if (x.ne[0] % unit_elements(dst.type) != 0) {
    return "the length of a head must be a multiple of the result's block";
  }
  if (dst.nb[0] != unit_bytes(dst.type)) return "rows of the result must be contiguous";
  return nullptr;
}

int64_t set_rows_items(const Call& call) { return n_rows(*call.src[0]); }
int64_t set_rows_grain(const Call& call) { return row_grain(call.src[0]->ne[0]); }
size_t set_rows_scratch(const Call& call) { return scratch_bytes(as_rope(call)); }

int64_t items(const Call& call) { return n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0]); }

template <int kDirection>
constexpr Kernel kernel() {
  return {.check = check,
          .items = items,
          .run = run<kDirection>,
          .grain = grain,
          .scratch = scratch_bytes};
}

}  // namespace

void register_rope(KernelTable& table) {
  table[Op::kRope] = kernel<1>();
  table[Op::kRopeBack] = kernel<-1>();
  table[Op::kRopeSetRows] = {.check = check_set_rows,
                             .items = set_rows_items,
                             .run = run_set_rows,
                             .grain = set_rows_grain,
                             .scratch = set_rows_scratch};
}

}  // namespace weft::WEFT_TARGET
