// GATED_LINEAR_ATTN (arXiv 2312.06635) and GATED_DELTA_NET (arXiv 2412.06464).
#include <math.h>

#include "kernels/recurrent/recurrence.h"
#include "kernels/simd/square.h"

namespace weft::WEFT_TARGET {

void register_gated(KernelTable& table);

namespace {

// ---- GATED_LINEAR_ATTN --------------------------------------------------------------------------

// The vectors of one head at one token, and its state [key][value]. A token does
//     state = gate * state + k v;  y = scale * sum over keys of q * state.
struct Gla {
  const float* k;
  const float* v;
  const float* q;
  const float* gate;
  float* y;
  float* state;
  int64_t size;
  float scale;
};

// Does a token for the values of kVectors vectors from `at` on; gla_value for a single value.
template <int kVectors>
void gla_values(const Gla& g, int64_t at) {
  vf v[kVectors], sum[kVectors] = {};
  for (int c = 0; c < kVectors; ++c) v[c] = load(g.v + at + c * kLanes);
  for (int64_t i = 0; i < g.size; ++i) {
    const vf k = splat(g.k[i]), q = splat(g.q[i]), gate = splat(g.gate[i]);
    float* row = g.state + i * g.size + at;
    for (int c = 0; c < kVectors; ++c) {
      const vf state = fma(gate, load(row + c * kLanes), k * v[c]);
      store(row + c * kLanes, state);
      sum[c] = fma(q, state, sum[c]);
    }
  }
  for (int c = 0; c < kVectors; ++c) store(g.y + at + c * kLanes, sum[c] * splat(g.scale));
}

void gla_value(const Gla& g, int64_t at) {
  float sum = 0;
  for (int64_t i = 0; i < g.size; ++i) {
    float& state = g.state[i * g.size + at];
    state = g.gate[i] * state + g.k[i] * g.v[at];
    sum += g.q[i] * state;
  }
  g.y[at] = sum * g.scale;
}

// The sources are k, v, q, gate, state.
void run_gla(const Call& call, int64_t begin, int64_t end, char*) {
  for_tokens<4>(call, begin, end,
                [&](const Recurrence& r, int64_t, int64_t at, float* y, float* state) {
                  const Gla g = {source(call, 0, at),
                                 source(call, 1, at),
                                 source(call, 2, at),
                                 source(call, 3, at),
                                 y,
                                 state,
                                 r.size,
                                 call.f(LinearAttnSlot::kScale)};
                  int64_t j = 0;
                  for (; j + 4 * kLanes <= r.size; j += 4 * kLanes) gla_values<4>(g, j);
                  for (; j + kLanes <= r.size; j += kLanes) gla_values<1>(g, j);
                  for (; j < r.size; ++j) gla_value(g, j);
                });
}

const char* check_gla(const Call& call) { return check_recurrence(call, 4, 4); }

// ---- GATED_DELTA_NET ----------------------------------------------------------------------------

const float* row_floats(const Tensor& t, int64_t i1, int64_t i2, int64_t i3) {
  return reinterpret_cast<const float*>(row_data(t, {i1, i2, i3}));
}

// The sizes of the recurrence, from v [size, heads, tokens, sequences].
Recurrence delta_of(const Call& call) {
  const Tensor& v = *call.src[2];
  return {.size = v.ne[0], .n_head = v.ne[1], .n_tokens = v.ne[2], .n_seqs = v.ne[3]};
}

// An item is up to kDeltaRows rows of the state of a head, which stay in the first-level cache.
constexpr int64_t kDeltaRows = 32;

// Numbers of a state that no cache holds. It is copied before the first token: a copy does not read
// the memory that it overwrites, stores among loads do.
constexpr int64_t kLargeStates = 1 << 21;

int64_t delta_blocks(const Recurrence& r) { return (r.size + kDeltaRows - 1) / kDeltaRows; }

// A token for rows of the state [value][key]:
//     state *= decay;  state += beta * (v - state . k) k;  y = state . q.
struct Delta {
  const float* from;   // rows, one behind the other
  float* state;        // where they go; may be `from`
  const float* decay;  // one number per key, or one for all
  const float* k;
  const float* q;
  int64_t n;  // keys
};

// Calls f(i, get, put) for each vector of `n` numbers.
template <typename F>
inline void for_vectors(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, load, store);
  if (i == n) return;
  const int64_t left = n - i;
  f(
      i, [left](const float* p) { return load_part(p, left); },
      [left](float* p, vf v) { store_part(p, v, left); });
}

// The lanes of sums[r] add up to decayed state . k.
template <bool kPerKey, int kCount>
inline void find_known(Delta d, int64_t first, vf* sums) {
  const vf one = splat(*d.decay);
  vf sum[kCount] = {};
  for_vectors(d.n, [&](int64_t i, const auto& get, const auto&) {
    const vf k = get(d.k + i), decay = kPerKey ? get(d.decay + i) : one;
    for (int r = 0; r < kCount; ++r) {
      sum[r] = fma(get(d.from + (first + r) * d.n + i) * decay, k, sum[r]);
    }
  });
  for (int r = 0; r < kCount; ++r) sums[first + r] = sum[r];
}

// Adds correction[r] k to row r of the decayed state. The lanes of sums[r] add up to state . q.
template <bool kPerKey, int kCount>
inline void correct(Delta d, int64_t first, const float* correction, vf* sums) {
  const vf one = splat(*d.decay);
  vf sum[kCount] = {}, by[kCount];
  for (int r = 0; r < kCount; ++r) by[r] = splat(correction[first + r]);
  for_vectors(d.n, [&](int64_t i, const auto& get, const auto& put) {
    const vf k = get(d.k + i), q = get(d.q + i);
    const vf decay = kPerKey ? get(d.decay + i) : one;
    for (int r = 0; r < kCount; ++r) {
      const int64_t at = (first + r) * d.n + i;
      const vf next = fma(by[r], k, get(d.from + at) * decay);
      put(d.state + at, next);
      sum[r] = fma(next, q, sum[r]);
    }
  });
  for (int r = 0; r < kCount; ++r) sums[first + r] = sum[r];
}

// Does a token for `rows` rows with the values `v`; `out` is theirs.
template <bool kPerKey>
void delta_rows(const Delta& d, int64_t rows, const float* v, float beta, float scale, float* out) {
  vf sums[kDeltaRows] = {};
  float known[kDeltaRows], correction[kDeltaRows];
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) find_known<kPerKey, 4>(d, r, sums);
  for (; r < rows; ++r) find_known<kPerKey, 1>(d, r, sums);
  store_sums(sums, rows, known);
  map(v, known, correction, rows, [beta](vf value, vf x) { return beta * (value - x); });
  for (r = 0; r + 4 <= rows; r += 4) correct<kPerKey, 4>(d, r, correction, sums);
  for (; r < rows; ++r) correct<kPerKey, 1>(d, r, correction, sums);
  store_sums(sums, rows, known);
  map(known, out, rows, [scale](vf x) { return scale * x; });
}

// The sources are q, k, v, g (the logarithm of the decay), beta, state. q and k may have fewer
// heads (head h takes number h modulo their count) and fewer sequences (consecutive ones share
// one). The result holds the outputs, then `snapshots` sets of states: set s is the state after all
// but the last s tokens, or zeros where there are not that many.
void run_delta(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& q = *call.src[0];
  const Tensor& k = *call.src[1];
  const Tensor& g = *call.src[3];
  const Tensor& beta = *call.src[4];
  const Recurrence r = delta_of(call);
  const int64_t snapshots = call.i(DeltaNetSlot::kK);
  const int64_t state_size = r.size * r.size * r.n_head * r.n_seqs;
  const int64_t blocks = delta_blocks(r);
  const float scale = 1.0f / sqrtf(static_cast<float>(r.size));
  const auto step = g.ne[0] == 1 ? delta_rows<false> : delta_rows<true>;
  auto* y = reinterpret_cast<float*>(call.dst.data);
  auto* decay = reinterpret_cast<float*>(scratch);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t seq = item / (r.n_head * blocks);
    const int64_t head = item / blocks - seq * r.n_head;
    const int64_t first = item % blocks * kDeltaRows;
    const int64_t rows = min64(kDeltaRows, r.size - first);
    const int64_t q_head = head % q.ne[1];
    const int64_t q_seq = seq / (r.n_seqs / q.ne[3]);
    const int64_t at = r.state(seq, head) + first * r.size;
    const auto bytes = static_cast<size_t>(rows * r.size) * 4;
    const float* from = source(call, 5, at);
    float* state = y + r.outputs() + at;
    if (r.n_tokens == 0 || state_size > kLargeStates) {
      std::memcpy(state, from, bytes);
      from = state;
    }
    for (int64_t s = max64(1, r.n_tokens); s < snapshots; ++s) {
      std::memset(state + s * state_size, 0, bytes);
    }
    for (int64_t t = 0; t < r.n_tokens; ++t) {
      map(row_floats(g, head, t, seq), decay, g.ne[0], [](vf x) { return exp(x); });
      const Delta d = {
          from,  state, decay, row_floats(k, q_head, t, q_seq), row_floats(q, q_head, t, q_seq),
          r.size};
      step(d, rows, row_floats(*call.src[2], head, t, seq) + first, *row_floats(beta, head, t, seq),
           scale, y + r.vector(seq, t, head) + first);
      from = state;
      const int64_t age = r.n_tokens - 1 - t;
      if (age > 0 && age < snapshots) std::memcpy(state + age * state_size, state, bytes);
    }
  }
}

const char* check_delta(const Call& call) {
  const Tensor& q = *call.src[0];
  const Tensor& k = *call.src[1];
  const Tensor& v = *call.src[2];
  const Tensor& g = *call.src[3];
  const Tensor& beta = *call.src[4];
  const Tensor& state = *call.src[5];
  if (!is_count(call, DeltaNetSlot::kK, 1)) return "the number of snapshots must be at least 1";
  for (int i = 0; i < 5; ++i) {
    if (!is_f32_rows(*call.src[i])) return "needs f32 sources with contiguous rows";
  }
  if (!is_packed_f32(state) || !is_packed_f32(call.dst)) {
    return "state and result must be contiguous f32";
  }
  const Recurrence r = delta_of(call);
  if (!same_shape(q, k)) return "queries and keys differ in shape";
  if (q.ne[0] != r.size || q.ne[1] < 1 || q.ne[3] < 1 || r.n_head % q.ne[1] != 0 ||
      q.ne[2] != r.n_tokens || r.n_seqs % q.ne[3] != 0) {
    return "queries and keys must be [size, a divisor of heads, tokens, a divisor of sequences]";
  }
  const Tensor* per_head[2] = {&g, &beta};
  for (const Tensor* t : per_head) {
    if (t->ne[1] != v.ne[1] || t->ne[2] != v.ne[2] || t->ne[3] != v.ne[3]) {
      return "gates and rates must be [., heads, tokens, sequences]";
    }
  }
  if ((g.ne[0] != 1 && g.ne[0] != r.size) || beta.ne[0] != 1) {
    return "there must be one gate per head or one per key, and one rate per head";
  }
  const int64_t state_size = r.size * r.size * r.n_head * r.n_seqs;
  if (n_elements(state) != state_size) return "the state must be [size, size, heads, sequences]";
  if (n_elements(call.dst) != r.outputs() + call.i(DeltaNetSlot::kK) * state_size) {
    return "the result must hold the outputs, then the states";
  }
  return nullptr;
}

int64_t items_delta(const Call& call) {
  const Recurrence r = delta_of(call);
  return r.n_head * r.n_seqs * delta_blocks(r);
}

int64_t grain_delta(const Call& call) {
  const Recurrence r = delta_of(call);
  return row_grain(min64(kDeltaRows, r.size) * r.size * max64(1, r.n_tokens));
}

size_t scratch_delta(const Call& call) {
  return static_cast<size_t>(call.src[3]->ne[0]) * sizeof(float);
}

}  // namespace

void register_gated(KernelTable& table) {
  table[Op::kGatedLinearAttn] = {.check = check_gla,
                                 .items = recurrence_items<4>,
                                 .run = run_gla,
                                 .grain = recurrence_grain<4>};
  table[Op::kGatedDeltaNet] = {.check = check_delta,
                               .items = items_delta,
                               .run = run_delta,
                               .grain = grain_delta,
                               .scratch = scratch_delta};
}

}  // namespace weft::WEFT_TARGET
