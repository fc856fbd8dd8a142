// SSM_CONV, SSM_SCAN: the convolution and the selective scan of Mamba 1 and 2.
#include "kernels/elements.h"
#include "kernels/layout.h"
#include "kernels/matmul/activations.h"
#include "kernels/simd/square.h"

namespace weft::WEFT_TARGET {

void register_ssm(KernelTable& table);

namespace {

const float* floats(const char* p) { return reinterpret_cast<const float*>(p); }

// ---- SSM_CONV -----------------------------------------------------------------------------------

// An item is kChannels channels of a sequence. In sx the tokens of a channel are adjacent, in the
// result the channels of a token: kLanes tokens of kLanes channels are transposed between them.
constexpr int64_t kChannels = 16;

// The sum over all taps of x[t + tap] * c[tap] for t < n, n <= kLanes. A token does not depend on
// how many are computed together.
vf convolve(const float* x, const float* c, int64_t taps, int64_t n) {
  vf sum = vf{};
  if (n == kLanes) {
    for (int64_t k = 0; k < taps; ++k) sum = fma(splat(c[k]), load(x + k), sum);
  } else {
    for (int64_t k = 0; k < taps; ++k) sum = fma(splat(c[k]), load_part(x + k, n), sum);
  }
  return sum;
}

int64_t channel_blocks(const Tensor& dst) { return (dst.ne[0] + kChannels - 1) / kChannels; }

// The shapes are sx [taps - 1 + tokens, inner, sequences], c [taps, inner], dst [inner, tokens,
// sequences].
void run_conv(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& sx = *call.src[0];
  const Tensor& c = *call.src[1];
  const Tensor& dst = call.dst;
  const int64_t blocks = channel_blocks(dst);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t seq = item / blocks;
    const int64_t first = (item - seq * blocks) * kChannels;
    const int64_t last = min64(first + kChannels, dst.ne[0]);
    for (int64_t i = first; i < last; i += kLanes) {
      const char* x = sx.data + i * sx.nb[1] + seq * sx.nb[2];
      char* out = dst.data + i * dst.nb[0] + seq * dst.nb[2];
      const int64_t channels = min64(kLanes, last - i);
      for (int64_t t = 0; t < dst.ne[1]; t += kLanes) {
        const int64_t tokens = min64(kLanes, dst.ne[1] - t);
        vf v[kLanes] = {};
        for (int64_t j = 0; j < channels; ++j) {
          v[j] = convolve(floats(x + j * sx.nb[1]) + t, floats(c.data + (i + j) * c.nb[1]), c.ne[0],
                          tokens);
        }
        transpose(v);
        for (int64_t j = 0; j < tokens; ++j) {
          auto* to = reinterpret_cast<float*>(out + (t + j) * dst.nb[1]);
          channels == kLanes ? store(to, v[j]) : store_part(to, v[j], channels);
        }
      }
    }
  }
}

const char* check_conv(const Call& call) {
  const Tensor& sx = *call.src[0];
  const Tensor& c = *call.src[1];
  const Tensor& dst = call.dst;
  if (!is_f32_rows(sx) || !is_f32_rows(c) || !is_f32_rows(dst)) {
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

// An item is some rows of the state of a sequence, of consecutive heads. Rows do not depend on each
// other. In Mamba 1 a head has one row, so an item spans several heads.
constexpr int64_t kRows = 64;          // at most
constexpr int64_t kItemStates = 2048;  // numbers of the state, which stay in the first-level cache
constexpr int64_t kAhead = 8;          // tokens whose steps are computed together: steps wait for
                                       // nothing, updates wait for those of the token before

struct Scan {
  int64_t d_state, head_dim, n_head, n_tokens, n_seqs;
  int64_t item_rows;
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
  scan.item_rows = kItemStates / max64(1, scan.d_state) / kLanes * kLanes;
  scan.item_rows = min64(kRows, max64(kLanes, scan.item_rows));
  scan.blocks = (scan.rows() + scan.item_rows - 1) / scan.item_rows;
  scan.snapshots = call.i(SsmScanSlot::kK);
  scan.outputs = scan.rows() * scan.n_tokens * scan.n_seqs;
  return scan;
}

// A token of kCount rows of the state that share `b` and `c`:
//     state = state * decay + b * dx.
// Where each number of the state has its own rate, the decays are exp(step * rate).
struct Update {
  const float* from;    // rows of `n` numbers, one behind the other
  float* state;         // where they go; may be `from`
  int64_t n;            // numbers of a row
  const float* b;       // [n]
  const float* c;       // [n]
  const float* dx;      // one per row; so are the next ones
  const float* decays;  // where a row has one rate
  const float* steps;   // otherwise, with the n rates of each row
  const float* const* rates;
};

// The lanes of sums[r] add up to the sum of state * c of row r.
template <bool kRates, int kCount>
inline void update_rows(Update u, int64_t first, vf* sums) {
  const float* from = u.from + first * u.n;
  float* state = u.state + first * u.n;
  vf sum[kCount] = {}, dx[kCount], by[kCount];
  for (int r = 0; r < kCount; ++r) {
    dx[r] = splat(u.dx[first + r]);
    by[r] = splat((kRates ? u.steps : u.decays)[first + r]);
  }
  const auto update = [&](int64_t i, const auto& get, const auto& put) {
    const vf b = get(u.b + i), c = get(u.c + i);
    for (int r = 0; r < kCount; ++r) {
      const vf kept = kRates ? exp(by[r] * get(u.rates[first + r] + i)) : by[r];
      const vf next = fma(b, dx[r], get(from + r * u.n + i) * kept);
      put(state + r * u.n + i, next);
      sum[r] = fma(next, c, sum[r]);
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= u.n; i += kLanes) update(i, load, store);
  if (i < u.n) {
    const int64_t left = u.n - i;
    update(
        i, [left](const float* p) { return load_part(p, left); },
        [left](float* p, vf v) { store_part(p, v, left); });
  }
  for (int r = 0; r < kCount; ++r) sums[first + r] = sum[r];
}

// The initial states of a sequence from row `first` on; nullptr, for zeros, where its slot does not
// exist.
const float* initial_states(const Call& call, int64_t seq, int64_t first) {
  const Tensor& s = *call.src[0];
  const Tensor& ids = *call.src[6];
  int32_t slot;
  std::memcpy(&slot, ids.data + seq * ids.nb[0], 4);
  if (slot < 0 || slot >= s.ne[3]) return nullptr;
  return floats(s.data + first * s.nb[1] + slot * s.nb[3]);
}

// Rows of an item: of each its head, where its inputs are (in bytes), and its rates.
struct Rows {
  int64_t n;
  int64_t heads[kRows], inputs[kRows];
  const float* rates[kRows];
  float rate[kRows];
};

Rows rows_of(const Call& call, const Scan& scan, int64_t first) {
  Rows rows;
  rows.n = min64(scan.item_rows, scan.rows() - first);
  int64_t head = first / scan.head_dim, i = first - head * scan.head_dim;
  for (int64_t r = 0; r < rows.n; ++r) {
    rows.heads[r] = head;
    rows.inputs[r] = head * call.src[1]->nb[1] + i * 4;
    rows.rates[r] = floats(call.src[3]->data + head * call.src[3]->nb[1]);
    rows.rate[r] = *rows.rates[r];
    if (++i < scan.head_dim) continue;
    i = 0;
    ++head;
  }
  return rows;
}

// The factors by which a token updates each row.
struct Steps {
  float steps[kRows], decays[kRows], dx[kRows];
};

// Computes the steps of the tokens t..t + count.
template <bool kRates>
void compute_steps(const Call& call, const Rows& rows, int64_t seq, int64_t t, int64_t count,
                   Steps* out) {
  const Tensor& x = *call.src[1];
  const Tensor& dt = *call.src[2];
  for (int64_t j = 0; j < count; ++j) {
    const float* step = floats(dt.data + (t + j) * dt.nb[1] + seq * dt.nb[2]);
    const char* in = x.data + (t + j) * x.nb[2] + seq * x.nb[3];
    for (int64_t r = 0; r < rows.n; ++r) {
      out[j].steps[r] = step[rows.heads[r]];
      out[j].dx[r] = *floats(in + rows.inputs[r]);
    }
  }
  for (int64_t j = 0; j < count; ++j) {
    Steps& o = out[j];
    map(o.steps, o.steps, rows.n, [](vf v) { return softplus(v); });
    map(o.dx, o.steps, o.dx, rows.n, [](vf v, vf step) { return v * step; });
    if (kRates) continue;
    map(o.steps, rows.rate, o.decays, rows.n, [](vf step, vf rate) { return exp(step * rate); });
  }
}

// Does one item. The newest state is updated in place in the result. Older snapshots are copies of
// it; snapshots of times before the first token are zeros.
template <bool kRates>
void scan_rows(const Call& call, const Scan& scan, int64_t item) {
  const Tensor& b = *call.src[4];
  const Tensor& c = *call.src[5];
  const int64_t seq = item / scan.blocks;
  const int64_t first = (item - seq * scan.blocks) * scan.item_rows;
  const int64_t rows_of_group = scan.rows() / b.ne[1];
  const int64_t first_group = first / rows_of_group;
  const Rows rows = rows_of(call, scan, first);

  auto* y = reinterpret_cast<float*>(call.dst.data);
  float* states = y + scan.outputs + (seq * scan.rows() + first) * scan.d_state;
  const auto state_bytes = static_cast<size_t>(rows.n * scan.d_state) * 4;
  const float* from = initial_states(call, seq, first);
  if (from == nullptr || scan.n_tokens == 0) {
    from == nullptr ? std::memset(states, 0, state_bytes) : std::memcpy(states, from, state_bytes);
    from = states;
  }
  for (int64_t k = max64(1, scan.n_tokens); k < scan.snapshots; ++k) {
    std::memset(states + k * scan.state_size(), 0, state_bytes);
  }

  Steps steps[kAhead];
  vf sums[kRows] = {};
  for (int64_t t = 0; t < scan.n_tokens; ++t) {
    const Steps& now = steps[t % kAhead];
    if (t % kAhead == 0) {
      compute_steps<kRates>(call, rows, seq, t, min64(kAhead, scan.n_tokens - t), steps);
    }
    int64_t group = first_group;
    for (int64_t r = 0; r < rows.n; ++group) {
      const Update u = {from,
                        states,
                        scan.d_state,
                        floats(b.data + group * b.nb[1] + t * b.nb[2] + seq * b.nb[3]),
                        floats(c.data + group * c.nb[1] + t * c.nb[2] + seq * c.nb[3]),
                        now.dx,
                        now.decays,
                        now.steps,
                        rows.rates};
      const int64_t end = min64(rows.n, (group + 1) * rows_of_group - first);
      for (; r + 4 <= end; r += 4) update_rows<kRates, 4>(u, r, sums);
      for (; r < end; ++r) update_rows<kRates, 1>(u, r, sums);
    }
    from = states;
    store_sums(sums, rows.n, y + (seq * scan.n_tokens + t) * scan.rows() + first);
    const int64_t age = scan.n_tokens - 1 - t;
    if (age > 0 && age < scan.snapshots) {
      std::memcpy(states + age * scan.state_size(), states, state_bytes);
    }
  }
}

void run_scan(const Call& call, int64_t begin, int64_t end, char*) {
  const Scan scan = scan_of(call);
  const auto rows = call.src[3]->ne[0] == 1 ? scan_rows<false> : scan_rows<true>;
  for (int64_t item = begin; item < end; ++item) rows(call, scan, item);
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
  return row_grain(min64(scan.item_rows, scan.rows()) * scan.d_state * max64(1, scan.n_tokens));
}

}  // namespace

void register_ssm(KernelTable& table) {
  table[Op::kSsmConv] = {
      .check = check_conv, .items = items_conv, .run = run_conv, .grain = grain_conv};
  table[Op::kSsmScan] = {
      .check = check_scan, .items = items_scan, .run = run_scan, .grain = grain_scan};
}

}  // namespace weft::WEFT_TARGET
