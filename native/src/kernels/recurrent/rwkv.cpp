// RWKV_WKV6, RWKV_WKV7: the recurrences of RWKV 6 (arXiv 2404.05892) and 7 (arXiv 2503.14456).
#include "kernels/recurrent/recurrence.h"

namespace weft::WEFT_TARGET {

void register_rwkv(KernelTable& table);

namespace {

// ---- RWKV_WKV6 ----------------------------------------------------------------------------------

// The vectors of one head at one token, and its state [key][value]. A token does
//     y = sum over keys of r * (first * k v + state);  state = decay * state + k v.
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

// Does a token for the values of kVectors vectors from `at` on; wkv6_value for a single value.
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

// The sources are k, v, r, first (the same for all tokens), decay, state.
void run_wkv6(const Call& call, int64_t begin, int64_t end, char*) {
  for_tokens<5>(call, begin, end,
                [&](const Recurrence& r, int64_t head, int64_t at, float* y, float* state) {
                  const Wkv6 w = {source(call, 0, at),
                                  source(call, 1, at),
                                  source(call, 2, at),
                                  source(call, 3, head * r.size),
                                  source(call, 4, at),
                                  y,
                                  state,
                                  r.size};
                  int64_t j = 0;
                  for (; j + 4 * kLanes <= r.size; j += 4 * kLanes) wkv6_values<4>(w, j);
                  for (; j + kLanes <= r.size; j += kLanes) wkv6_values<1>(w, j);
                  for (; j < r.size; ++j) wkv6_value(w, j);
                });
}

const char* check_wkv6(const Call& call) {
  const Tensor& k = *call.src[0];
  const Tensor& first = *call.src[3];
  for (int i = 1; i < 5; ++i) {
    if (i != 3 && !same_shape(*call.src[i], k)) return "sources differ in shape";
  }
  if (first.ne[0] != k.ne[0] || first.ne[1] != k.ne[1] || first.ne[2] != 1 || first.ne[3] != 1) {
    return "the first-token weights must be [size, heads]";
  }
  return check_recurrence(call, 1, 5);
}

// ---- RWKV_WKV7 ----------------------------------------------------------------------------------

// Does a token for one row of the state [value][key]:
//     state = state * w + v k + (state . a) b.
// Returns state . r.
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

// The sources are r, w, k, v, a, b, state.
void run_wkv7(const Call& call, int64_t begin, int64_t end, char*) {
  for_tokens<6>(
      call, begin, end, [&](const Recurrence& r, int64_t, int64_t at, float* y, float* state) {
        const float* v = source(call, 3, at);
        for (int64_t i = 0; i < r.size; ++i) {
          y[i] = wkv7_row(state + i * r.size, source(call, 1, at), source(call, 2, at), v[i],
                          source(call, 4, at), source(call, 5, at), source(call, 0, at), r.size);
        }
      });
}

const char* check_wkv7(const Call& call) { return check_recurrence(call, 6, 6); }

}  // namespace

void register_rwkv(KernelTable& table) {
  table[Op::kRwkvWkv6] = {.check = check_wkv6,
                          .items = recurrence_items<5>,
                          .run = run_wkv6,
                          .grain = recurrence_grain<5>};
  table[Op::kRwkvWkv7] = {.check = check_wkv7,
                          .items = recurrence_items<6>,
                          .run = run_wkv7,
                          .grain = recurrence_grain<6>};
}

}  // namespace weft::WEFT_TARGET
