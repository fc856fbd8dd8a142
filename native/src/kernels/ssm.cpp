// SSM_CONV, SSM_SCAN: the convolution and the selective scan of Mamba 1 and 2.
#include <math.h>

#include "kernels/panel.h"

namespace weft::WEFT_TARGET {

void register_ssm(KernelTable& table);

namespace {

bool is_f32_rows(const Tensor& t) {
  return t.type == DType::kF32 && (t.nb[0] == 4 || t.ne[0] <= 1);
}

const float* floats(const char* p) { return reinterpret_cast<const float*>(p); }

// ---- SSM_CONV -----------------------------------------------------------------------------------

// Channels of an item, and tokens computed before they are written across: sx has the tokens of a
// channel side by side, the result the channels of a token.
constexpr int64_t kChannels = 16;
constexpr int64_t kTokens = 64;

// out[t] = sum over taps of x[t + tap] * c[tap].
void convolve(const float* x, const float* c, int64_t taps, int64_t n, float* out) {
  int64_t t = 0;
  for (; t + kLanes <= n; t += kLanes) {
    vf sum = vf{};
    for (int64_t k = 0; k < taps; ++k) sum = fma(splat(c[k]), load(x + t + k), sum);
    store(out + t, sum);
  }
  for (; t < n; ++t) {
    float sum = 0;
    for (int64_t k = 0; k < taps; ++k) sum += x[t + k] * c[k];
    out[t] = sum;
  }
}

int64_t channel_blocks(const Tensor& dst) { return (dst.ne[0] + kChannels - 1) / kChannels; }

// sx [taps - 1 + token, inner, seq], c [taps, inner], dst [inner, token, seq].
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
  if (c.ne[0] < 1 || sx.ne[0] != c.ne[0] - 1 + dst.ne[1] || sx.ne[1] != dst.ne[0] ||
      sx.ne[2] != dst.ne[2] || sx.ne[3] != 1 || dst.ne[3] != 1) {
    return "needs [taps - 1 + tokens, inner, sequences], and gives [inner, tokens, sequences]";
  }
  return c.ne[1] == dst.ne[0] ? nullptr : "the kernel must be [taps, inner]";
}

int64_t items_conv(const Call& call) { return channel_blocks(call.dst) * call.dst.ne[2]; }
int64_t grain_conv(const Call& call) {
  return row_grain(kChannels * call.dst.ne[1] * call.src[1]->ne[0]);
}

// ---- SSM_SCAN -----------------------------------------------------------------------------------

// Rows of the state that make an item: each is walked along the tokens on its own.
constexpr int64_t kRows = 16;

struct Scan {
  int64_t d_state, head_dim, n_head, n_tokens, n_seqs;
  int64_t blocks;     // items of a head
  int64_t snapshots;  // how many states are kept, newest first
  int64_t outputs;    // elements of y, before the states

  int64_t state_size() const { return d_state * head_dim * n_head * n_seqs; }
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
  scan.blocks = (scan.head_dim + kRows - 1) / kRows;
  scan.snapshots = call.i(0);
  scan.outputs = scan.head_dim * scan.n_head * scan.n_tokens * scan.n_seqs;
  return scan;
}

float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

// state = state * decay + b * dx; the sum of state * c. `decay` steps by `decay_step` (0: shared).
float update_row(float* state, const float* decay, int64_t decay_step, const float* b,
                 const float* c, float dx, int64_t n) {
  vf sums = vf{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const vf kept = load(state + i) * (decay_step == 0 ? splat(*decay) : load(decay + i));
    const vf next = fma(load(b + i), splat(dx), kept);
    store(state + i, next);
    sums = fma(next, load(c + i), sums);
  }
  float sum = hsum(sums);
  for (; i < n; ++i) {
    state[i] = state[i] * decay[i * decay_step] + b[i] * dx;
    sum += state[i] * c[i];
  }
  return sum;
}

// The starting states of rows `first` to `first + n`; a slot that does not exist gives zeros.
void load_states(const Call& call, const Scan& scan, int64_t seq, int64_t head, int64_t first,
                 int64_t n, float* state) {
  const Tensor& s = *call.src[0];
  const Tensor& ids = *call.src[6];
  int32_t slot;
  std::memcpy(&slot, ids.data + seq * ids.nb[0], 4);
  if (slot < 0 || slot >= s.ne[3]) {
    fill_zeros(state, n * scan.d_state);
    return;
  }
  std::memcpy(state, s.data + first * s.nb[1] + head * s.nb[2] + slot * s.nb[3],
              static_cast<size_t>(n * scan.d_state) * 4);
}

// An item: kRows rows of one head of one sequence. Their newest state is worked on where it is
// stored; older snapshots are copies, those from before the first token zeros.
void scan_rows(const Call& call, const Scan& scan, int64_t item, float* decay) {
  const Tensor& x = *call.src[1];
  const Tensor& dt = *call.src[2];
  const Tensor& a = *call.src[3];
  const Tensor& b = *call.src[4];
  const Tensor& c = *call.src[5];
  const int64_t block = item % scan.blocks;
  const int64_t head = item / scan.blocks % scan.n_head;
  const int64_t seq = item / scan.blocks / scan.n_head;
  const int64_t first = block * kRows;
  const int64_t n = min64(kRows, scan.head_dim - first);
  const int64_t group = head / (scan.n_head / b.ne[1]);

  auto* y = reinterpret_cast<float*>(call.dst.data);
  const int64_t at = ((seq * scan.n_head + head) * scan.head_dim + first) * scan.d_state;
  float* states = y + scan.outputs + at;
  load_states(call, scan, seq, head, first, n, states);
  for (int64_t k = max64(1, scan.n_tokens); k < scan.snapshots; ++k) {
    fill_zeros(states + k * scan.state_size(), n * scan.d_state);
  }

  const float* rates = floats(a.data + head * a.nb[1]);
  const int64_t n_rates = a.ne[0];
  for (int64_t t = 0; t < scan.n_tokens; ++t) {
    const float step = softplus(
        load_element(dt.data + head * dt.nb[0] + t * dt.nb[1] + seq * dt.nb[2], DType::kF32));
    for (int64_t i = 0; i < n_rates; ++i) decay[i] = expf(step * rates[i]);
    const float* in = floats(x.data + head * x.nb[1] + t * x.nb[2] + seq * x.nb[3]);
    const float* bt = floats(b.data + group * b.nb[1] + t * b.nb[2] + seq * b.nb[3]);
    const float* ct = floats(c.data + group * c.nb[1] + t * c.nb[2] + seq * c.nb[3]);
    float* out = y + ((seq * scan.n_tokens + t) * scan.n_head + head) * scan.head_dim;
    for (int64_t r = first; r < first + n; ++r) {
      float* row = states + (r - first) * scan.d_state;
      out[r] = update_row(row, decay, n_rates == 1 ? 0 : 1, bt, ct, in[r] * step, scan.d_state);
    }
    const int64_t age = scan.n_tokens - 1 - t;
    if (age > 0 && age < scan.snapshots) {
      std::memcpy(states + age * scan.state_size(), states,
                  static_cast<size_t>(n * scan.d_state) * 4);
    }
  }
}

void run_scan(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Scan scan = scan_of(call);
  for (int64_t item = begin; item < end; ++item) {
    scan_rows(call, scan, item, reinterpret_cast<float*>(scratch));
  }
}

// s [d_state, head_dim, head, slot], x [head_dim, head, token, seq], dt [head, token, seq],
// A [d_state or 1, head], B and C [d_state, group, token, seq], ids [seq].
const char* check_scan(const Call& call) {
  const Tensor& s = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dt = *call.src[2];
  const Tensor& a = *call.src[3];
  const Tensor& ids = *call.src[6];
  if (call.n_params < 1 || !(call.params[0] >= 1 && call.params[0] <= 2147483647.0)) {
    return "needs one snapshot at least";
  }
  for (int i = 0; i < 6; ++i) {
    if (call.src[i]->type != DType::kF32) return "needs f32 sources";
    if (i != 2 && !is_f32_rows(*call.src[i])) return "rows of the sources must be contiguous";
  }
  if (call.dst.type != DType::kF32 || call.dst.nb[0] != 4) return "gives contiguous f32";
  if (ids.type != DType::kI32) return "slot numbers must be i32";
  if (s.nb[1] != s.ne[0] * 4) return "states must be contiguous";
  if (x.ne[0] != s.ne[1] || x.ne[1] != s.ne[2]) return "inputs do not fit the states";
  if (dt.ne[0] != x.ne[1] || dt.ne[1] != x.ne[2] || dt.ne[2] != x.ne[3]) {
    return "time steps must be [heads, tokens, sequences]";
  }
  if ((a.ne[0] != 1 && a.ne[0] != s.ne[0]) || a.ne[1] != s.ne[2]) {
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
  if (ids.ne[0] != x.ne[3]) return "needs a slot number for each sequence";
  const Scan scan = scan_of(call);
  if (call.dst.ne[0] != scan.outputs + scan.snapshots * scan.state_size()) {
    return "the result must hold the outputs, then the states";
  }
  return nullptr;
}

int64_t items_scan(const Call& call) {
  const Scan scan = scan_of(call);
  return scan.blocks * scan.n_head * scan.n_seqs;
}

int64_t grain_scan(const Call& call) {
  const Scan scan = scan_of(call);
  return row_grain(min64(kRows, scan.head_dim) * scan.d_state * max64(1, scan.n_tokens));
}

size_t scratch_scan(const Call& call) {
  return static_cast<size_t>(call.src[3]->ne[0]) * sizeof(float);
}

}  // namespace

void register_ssm(KernelTable& table) {
  table[Op::kSsmConv] = {
      .check = check_conv, .items = items_conv, .run = run_conv, .grain = grain_conv};
  table[Op::kSsmScan] = {.check = check_scan,
                         .items = items_scan,
                         .run = run_scan,
                         .grain = grain_scan,
                         .scratch = scratch_scan};
}

}  // namespace weft::WEFT_TARGET
