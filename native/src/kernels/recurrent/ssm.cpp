// SSM_CONV, SSM_SCAN: the convolution and the selective scan of Mamba 1 and 2.
#include "kernels/elements.h"
#include "kernels/layout.h"
#include "kernels/matmul/activations.h"

namespace weft::WEFT_TARGET {

void register_ssm(KernelTable& table);

namespace {

const float* floats(const char* p) { return reinterpret_cast<const float*>(p); }

// ---- SSM_CONV -----------------------------------------------------------------------------------

// An item is kChannels channels of a sequence. It is computed in tiles of kTokens tokens, which are
// transposed when they are written: in sx the tokens of a channel are adjacent, in the result the
// channels of a token.
constexpr int64_t kChannels = 16;
constexpr int64_t kTokens = 64;

// out[t] = the sum over all taps of x[t + tap] * c[tap], for t < n.
void convolve(const float* x, const float* c, int64_t taps, int64_t n, float* out) {
  int64_t t = 0;
  for (; t + kLanes <= n; t += kLanes) {
    vf sum = vf{};
    for (int64_t k = 0; k < taps; ++k) sum = fma(splat(c[k]), load(x + t + k), sum);
    store(out + t, sum);
  }
  // the last tokens too, so that a token does not depend on how many are computed together
  if (t < n) {
    vf sum = vf{};
    for (int64_t k = 0; k < taps; ++k) sum = fma(splat(c[k]), load_part(x + t + k, n - t), sum);
    store_part(out + t, sum, n - t);
  }
}

int64_t channel_blocks(const Tensor& dst) { return (dst.ne[0] + kChannels - 1) / kChannels; }

// The shapes are sx [taps - 1 + tokens, inner, sequences], c [taps, inner], dst [inner, tokens,
// sequences].
void run_conv(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& sx = *call.src[0];
  const Tensor& c = *call.src[1];
  const Tensor& dst = call.dst;
  const int64_t blocks = channel_blocks(dst);
  float tile[kChannels][kTokens];
  for (int64_t item = begin; item < end; ++item) {
    const int64_t seq = item / blocks;
    const int64_t first = (item - seq * blocks) * kChannels;
    const int64_t n = min64(kChannels, dst.ne[0] - first);
    for (int64_t t = 0; t < dst.ne[1]; t += kTokens) {
      const int64_t n_tokens = min64(kTokens, dst.ne[1] - t);
      for (int64_t i = 0; i < n; ++i) {
        const float* x = floats(sx.data + (first + i) * sx.nb[1] + seq * sx.nb[2]) + t;
        convolve(x, floats(c.data + (first + i) * c.nb[1]), c.ne[0], n_tokens, tile[i]);
      }
      for (int64_t j = 0; j < n_tokens; ++j) {
        char* out = dst.data + first * dst.nb[0] + (t + j) * dst.nb[1] + seq * dst.nb[2];
        for (int64_t i = 0; i < n; ++i) {
          store_element(out + i * dst.nb[0], DType::kF32, tile[i][j]);
        }
      }
    }
  }
}

const char* check_conv(const Call& call) {
  const Tensor& sx = *call.src[0];
  const Tensor& c = *call.src[1];
  const Tensor& dst = call.dst;
  if (!is_f32_rows(sx) || !is_f32_rows(c) || dst.type != DType::kF32) {
    return "needs f32 with contiguous rows";
  }
  if (c.ne[0] < 1 || dst.ne[3] != 1 ||
      !has_shape(sx, c.ne[0] - 1 + dst.ne[1], dst.ne[0], dst.ne[2])) {
    return "the source must be [taps - 1 + tokens, inner, sequences] and the result [inner, "
           "tokens, "
           "sequences]";
  }
  return has_shape(c, c.ne[0], dst.ne[0]) ? nullptr : "the kernel must be [taps, inner]";
}

int64_t items_conv(const Call& call) { return channel_blocks(call.dst) * call.dst.ne[2]; }
int64_t grain_conv(const Call& call) {
  return row_grain(kChannels * call.dst.ne[1] * call.src[1]->ne[0]);
}

// ---- SSM_SCAN -----------------------------------------------------------------------------------

// An item is kRows rows of the state of a sequence, of consecutive heads. Rows do not depend on
// each other. In Mamba 1 a head has one row, so an item spans several heads.
constexpr int64_t kRows = 16;

struct Scan {
  int64_t d_state, head_dim, n_head, n_tokens, n_seqs;
  int64_t blocks;     // items per sequence
  int64_t snapshots;  // the number of states that are kept, newest first
  int64_t outputs;    // elements of the outputs, which come before the states

  int64_t rows() const { return head_dim * n_head; }
  int64_t state_size() const { return d_state * rows() * n_seqs; }
};

Scan scan_of(const Call& call) {
  const Tensor& s = *call.src[0];
  const Tensor& x = *call.src[1];
  Scan scan;
  scan.d_state = s.ne[0];
  scan.head_dim = s.ne[1];
  scan.n_head = s.ne[2];
  scan.n_tokens = x.ne[2];
  scan.n_seqs = x.ne[3];
  scan.blocks = (scan.rows() + kRows - 1) / kRows;
  scan.snapshots = call.i(SsmScanSlot::kK);
  scan.outputs = scan.rows() * scan.n_tokens * scan.n_seqs;
  return scan;
}

// Does a token for one row of the state: state = state * decay + b * dx. Returns the sum of
// state * c. Where each number of the state has its own rate, `rates` holds them and the decays are
// exp(step * rate).
float update_row(float* state, float decay, const float* rates, float step, const float* b,
                 const float* c, float dx, int64_t n) {
  vf sums = vf{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const vf kept = rates == nullptr ? splat(decay) : exp(splat(step) * load(rates + i));
    const vf next = fma(load(b + i), splat(dx), load(state + i) * kept);
    store(state + i, next);
    sums = fma(next, load(c + i), sums);
  }
  float sum = hsum(sums);
  if (i == n) return sum;
  const vf tail = rates == nullptr ? splat(decay) : exp(splat(step) * load_part(rates + i, n - i));
  for (int64_t lane = 0; i < n; ++i, ++lane) {
    state[i] = state[i] * tail[lane] + b[i] * dx;
    sum += state[i] * c[i];
  }
  return sum;
}

// Loads the initial states of the rows first..first + n; a slot that does not exist gives zeros.
void load_states(const Call& call, const Scan& scan, int64_t seq, int64_t first, int64_t n,
                 float* state) {
  const Tensor& s = *call.src[0];
  const Tensor& ids = *call.src[6];
  int32_t slot;
  std::memcpy(&slot, ids.data + seq * ids.nb[0], 4);
  const auto bytes = static_cast<size_t>(n * scan.d_state) * 4;
  if (slot < 0 || slot >= s.ne[3]) {
    std::memset(state, 0, bytes);
    return;
  }
  std::memcpy(state, s.data + first * s.nb[1] + slot * s.nb[3], bytes);
}

// Does one item. The newest state is updated in place in the result. Older snapshots are copies of
// it; those of times before the first token are zeros.
void scan_rows(const Call& call, const Scan& scan, int64_t item) {
  const Tensor& x = *call.src[1];
  const Tensor& dt = *call.src[2];
  const Tensor& a = *call.src[3];
  const Tensor& b = *call.src[4];
  const Tensor& c = *call.src[5];
  const int64_t seq = item / scan.blocks;
  const int64_t first = (item - seq * scan.blocks) * kRows;
  const int64_t n = min64(kRows, scan.rows() - first);
  const int64_t first_head = first / scan.head_dim;
  const int64_t heads = (first + n - 1) / scan.head_dim - first_head + 1;
  const int64_t heads_per_group = scan.n_head / b.ne[1];
  const bool one_rate = a.ne[0] == 1;

  auto* y = reinterpret_cast<float*>(call.dst.data);
  float* states = y + scan.outputs + (seq * scan.rows() + first) * scan.d_state;
  const auto state_bytes = static_cast<size_t>(n * scan.d_state) * 4;
  load_states(call, scan, seq, first, n, states);
  for (int64_t k = max64(1, scan.n_tokens); k < scan.snapshots; ++k) {
    std::memset(states + k * scan.state_size(), 0, state_bytes);
  }

  float rates[kRows], steps[kRows], decays[kRows] = {};
  load_floats(a.data + first_head * a.nb[1], DType::kF32, a.nb[1], heads, rates);
  for (int64_t t = 0; t < scan.n_tokens; ++t) {
    map(floats(dt.data + t * dt.nb[1] + seq * dt.nb[2]) + first_head, steps, heads,
        [](vf v) { return softplus(v); });
    if (one_rate) {
      map(steps, rates, decays, heads, [](vf step, vf rate) { return exp(step * rate); });
    }
    const char* in = x.data + t * x.nb[2] + seq * x.nb[3];
    const char* bt = b.data + t * b.nb[2] + seq * b.nb[3];
    const char* ct = c.data + t * c.nb[2] + seq * c.nb[3];
    float* out = y + (seq * scan.n_tokens + t) * scan.rows() + first;
    int64_t head = first_head, i = first - first_head * scan.head_dim;
    for (int64_t r = 0; r < n; ++r) {
      const int64_t h = head - first_head;
      const int64_t group = head / heads_per_group;
      const float* own = one_rate ? nullptr : floats(a.data + head * a.nb[1]);
      const float dx = floats(in + head * x.nb[1])[i] * steps[h];
      out[r] =
          update_row(states + r * scan.d_state, decays[h], own, steps[h],
                     floats(bt + group * b.nb[1]), floats(ct + group * c.nb[1]), dx, scan.d_state);
      if (++i < scan.head_dim) continue;
      i = 0;
      ++head;
    }
    const int64_t age = scan.n_tokens - 1 - t;
    if (age > 0 && age < scan.snapshots) {
      std::memcpy(states + age * scan.state_size(), states, state_bytes);
    }
  }
}

void run_scan(const Call& call, int64_t begin, int64_t end, char*) {
  const Scan scan = scan_of(call);
  for (int64_t item = begin; item < end; ++item) scan_rows(call, scan, item);
}

// The sources are s [d_state, head_dim, heads, slots], x [head_dim, heads, tokens, sequences],
// dt [heads, tokens, sequences], A [d_state or 1, heads], B and C [d_state, groups, tokens,
// sequences], ids [sequences].
const char* check_scan(const Call& call) {
  const Tensor& s = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dt = *call.src[2];
  const Tensor& a = *call.src[3];
  const Tensor& ids = *call.src[6];
  if (!is_count(call, SsmScanSlot::kK, 1)) return "the number of snapshots must be at least 1";
  for (int i = 0; i < 6; ++i) {
    if (call.src[i]->type != DType::kF32) return "needs f32 sources";
    if (!is_f32_rows(*call.src[i])) return "rows of the sources must be contiguous";
  }
  if (call.dst.type != DType::kF32 || call.dst.nb[0] != 4)
    return "the result must be contiguous f32";
  if (ids.type != DType::kI32) return "slot numbers must be i32";
  if (!is_packed(s)) return "states must be contiguous";
  if (x.ne[0] != s.ne[1] || x.ne[1] != s.ne[2]) {
    return "inputs and states differ in their heads or the length of a head";
  }
  if (!has_shape(dt, x.ne[1], x.ne[2], x.ne[3])) {
    return "time steps must be [heads, tokens, sequences]";
  }
  if (!has_shape(a, 1, s.ne[2]) && !has_shape(a, s.ne[0], s.ne[2])) {
    return "rates must be [d_state or 1, heads]";
  }
  for (int i = 4; i < 6; ++i) {
    const Tensor& t = *call.src[i];
    if (t.ne[0] != s.ne[0] || t.ne[1] < 1 || t.ne[2] != x.ne[2] || t.ne[3] != x.ne[3] ||
        s.ne[2] % t.ne[1] != 0) {
      return "B and C must be [d_state, a divisor of heads, tokens, sequences]";
    }
  }
  if (call.src[4]->ne[1] != call.src[5]->ne[1]) return "B and C differ in groups";
  if (!has_shape(ids, x.ne[3])) return "there must be one slot number per sequence";
  const Scan scan = scan_of(call);
  if (!has_shape(call.dst, scan.outputs + scan.snapshots * scan.state_size())) {
    return "the result must hold the outputs, then the states";
  }
  return nullptr;
}

int64_t items_scan(const Call& call) {
  const Scan scan = scan_of(call);
  return scan.blocks * scan.n_seqs;
}

int64_t grain_scan(const Call& call) {
  const Scan scan = scan_of(call);
  return row_grain(min64(kRows, scan.rows()) * scan.d_state * max64(1, scan.n_tokens));
}

}  // namespace

void register_ssm(KernelTable& table) {
  table[Op::kSsmConv] = {
      .check = check_conv, .items = items_conv, .run = run_conv, .grain = grain_conv};
  table[Op::kSsmScan] = {
      .check = check_scan, .items = items_scan, .run = run_scan, .grain = grain_scan};
}

}  // namespace weft::WEFT_TARGET
