// RWKV_WKV6, RWKV_WKV7: the recurrences of RWKV 6 (arXiv 2404.05892) and 7 (arXiv 2503.14456).
//
// An item is a head of a sequence, walked along its tokens. The state is worked on where the
// result keeps it.
#include "kernels/recurrent/recurrence.h"

namespace weft::WEFT_TARGET {

void register_rwkv(KernelTable& table);

namespace {

// ---- RWKV_WKV6 ----------------------------------------------------------------------------------

// Vectors of one head at one token. State [key][value]:
// y = sum over keys of r * (first * k v + state);  state = decay * state + k v.
struct Wkv6 {
  const float* k;
  const float* v;
  const float* r;
  const float* first;
  const float* decay;
  float* y;
  float* state;
  int64_t size;
};

template <int kVectors>
void wkv6_values(const Wkv6& w, int64_t at) {
  vf v[kVectors], sum[kVectors] = {};
  for (int c = 0; c < kVectors; ++c) v[c] = load(w.v + at + c * kLanes);
  for (int64_t i = 0; i < w.size; ++i) {
    const vf k = splat(w.k[i]), r = splat(w.r[i]), first = splat(w.first[i]);
    const vf decay = splat(w.decay[i]);
    float* row = w.state + i * w.size + at;
    for (int c = 0; c < kVectors; ++c) {
      const vf state = load(row + c * kLanes);
      const vf kv = k * v[c];
      sum[c] = fma(r, fma(first, kv, state), sum[c]);
      store(row + c * kLanes, fma(decay, state, kv));
    }
  }
  for (int c = 0; c < kVectors; ++c) store(w.y + at + c * kLanes, sum[c]);
}

void wkv6_value(const Wkv6& w, int64_t at) {
  float sum = 0;
  for (int64_t i = 0; i < w.size; ++i) {
    float& state = w.state[i * w.size + at];
    const float kv = w.k[i] * w.v[at];
    sum += w.r[i] * (w.first[i] * kv + state);
    state = w.decay[i] * state + kv;
  }
  w.y[at] = sum;
}

void run_wkv6(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& initial = *call.src[5];
  const Recurrence r = recurrence(*call.src[0], initial);
  auto* y = reinterpret_cast<float*>(call.dst.data);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t seq = item / r.n_head;
    const int64_t head = item - seq * r.n_head;
    float* state = y + r.outputs() + r.state(seq, head);
    std::memcpy(state, source(call, 5, r.state(seq, head)),
                static_cast<size_t>(r.size * r.size) * 4);
    for (int64_t t = 0; t < r.n_tokens; ++t) {
      const int64_t at = r.vector(seq, t, head);
      const Wkv6 w = {source(call, 0, at),
                      source(call, 1, at),
                      source(call, 2, at),
                      source(call, 3, head * r.size),
                      source(call, 4, at),
                      y + at,
                      state,
                      r.size};
      int64_t j = 0;
      for (; j + 4 * kLanes <= r.size; j += 4 * kLanes) wkv6_values<4>(w, j);
      for (; j + kLanes <= r.size; j += kLanes) wkv6_values<1>(w, j);
      for (; j < r.size; ++j) wkv6_value(w, j);
    }
  }
}

// k, v, r, first (without tokens), decay, state.
const char* check_wkv6(const Call& call) {
  const Tensor& k = *call.src[0];
  const Tensor& first = *call.src[3];
  for (int i = 1; i < 5; ++i) {
    if (i != 3 && !same_shape(*call.src[i], k)) return "sources differ in shape";
  }
  if (first.ne[0] != k.ne[0] || first.ne[1] != k.ne[1] || first.ne[2] != 1 || first.ne[3] != 1) {
    return "the first-token weights must be [head, n_head]";
  }
  return check_recurrence(call, 1, 5);
}

// ---- RWKV_WKV7 ----------------------------------------------------------------------------------

// One row of the state [value][key] with the vectors of a token:
// state = state * w + v k + (state a) b;  returns state r.
float wkv7_row(float* state, const float* w, const float* k, float v, const float* a,
               const float* b, const float* r, int64_t n) {
  const float removed = dot(state, a, n);
  vf sums = vf{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    vf next = load(state + i) * load(w + i);
    next = fma(splat(v), load(k + i), next);
    next = fma(splat(removed), load(b + i), next);
    store(state + i, next);
    sums = fma(next, load(r + i), sums);
  }
  float sum = hsum(sums);
  for (; i < n; ++i) {
    state[i] = state[i] * w[i] + v * k[i] + removed * b[i];
    sum += state[i] * r[i];
  }
  return sum;
}

// Sources r, w, k, v, a, b, state.
void run_wkv7(const Call& call, int64_t begin, int64_t end, char*) {
  const Recurrence r = recurrence(*call.src[0], *call.src[6]);
  auto* y = reinterpret_cast<float*>(call.dst.data);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t seq = item / r.n_head;
    const int64_t head = item - seq * r.n_head;
    float* state = y + r.outputs() + r.state(seq, head);
    std::memcpy(state, source(call, 6, r.state(seq, head)),
                static_cast<size_t>(r.size * r.size) * 4);
    for (int64_t t = 0; t < r.n_tokens; ++t) {
      const int64_t at = r.vector(seq, t, head);
      const float* v = source(call, 3, at);
      for (int64_t i = 0; i < r.size; ++i) {
        y[at + i] = wkv7_row(state + i * r.size, source(call, 1, at), source(call, 2, at), v[i],
                             source(call, 4, at), source(call, 5, at), source(call, 0, at), r.size);
      }
    }
  }
}

const char* check_wkv7(const Call& call) { return check_recurrence(call, 6, 6); }

// ---- both ---------------------------------------------------------------------------------------

template <int kState>
int64_t items(const Call& call) {
  const Recurrence r = recurrence(*call.src[0], *call.src[kState]);
  return r.n_head * r.n_seqs;
}

template <int kState>
int64_t grain(const Call& call) {
  const Recurrence r = recurrence(*call.src[0], *call.src[kState]);
  return row_grain(r.size * r.size * max64(1, r.n_tokens));
}

}  // namespace

void register_rwkv(KernelTable& table) {
  table[Op::kRwkvWkv6] = {
      .check = check_wkv6, .items = items<5>, .run = run_wkv6, .grain = grain<5>};
  table[Op::kRwkvWkv7] = {
      .check = check_wkv7, .items = items<6>, .run = run_wkv7, .grain = grain<6>};
}

}  // namespace weft::WEFT_TARGET
