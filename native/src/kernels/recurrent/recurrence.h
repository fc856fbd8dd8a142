// What the linear-attention recurrences share: sources [head, n_head, n_tokens] of all sequences
// one after the other, a state [head, head] per head, a result of outputs, then states.
#pragma once

#include "kernels/elements.h"
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

struct Recurrence {
  int64_t size;  // of a head
  int64_t n_head;
  int64_t n_tokens;  // of a sequence
  int64_t n_seqs;

  // A head of a token in a source or in the outputs, in elements.
  int64_t vector(int64_t seq, int64_t token, int64_t head) const {
    return ((seq * n_tokens + token) * n_head + head) * size;
  }
  // The state of a head of a sequence.
  int64_t state(int64_t seq, int64_t head) const { return (seq * n_head + head) * size * size; }
  int64_t outputs() const { return size * n_head * n_tokens * n_seqs; }
};

// The sizes, from a source and the state.
static inline Recurrence recurrence(const Tensor& x, const Tensor& state) {
  Recurrence r;
  r.size = x.ne[0];
  r.n_head = x.ne[1];
  const int64_t per_seq = r.size * r.size * r.n_head;
  r.n_seqs = per_seq == 0 ? 0 : n_elements(state) / per_seq;
  r.n_tokens = r.n_seqs == 0 ? 0 : x.ne[2] / r.n_seqs;
  return r;
}

// For ops whose sources 0 .. n-1 are vectors and whose source `state` is the state.
static inline const char* check_recurrence(const Call& call, int n_vectors, int state) {
  const Tensor& x = *call.src[0];
  for (int i = 0; i <= state; ++i) {
    if (!is_packed_f32(*call.src[i])) return "needs contiguous f32 sources";
  }
  if (!is_packed_f32(call.dst)) return "gives contiguous f32";
  for (int i = 1; i < n_vectors; ++i) {
    if (!same_shape(*call.src[i], x)) return "sources differ in shape";
  }
  const Recurrence r = recurrence(x, *call.src[state]);
  if (x.ne[3] != 1 || r.n_seqs * r.size * r.size * r.n_head != n_elements(*call.src[state])) {
    return "the state must be [head * head * n_head, sequences]";
  }
  if (r.n_seqs * r.n_tokens != x.ne[2]) return "tokens do not divide among sequences";
  if (n_elements(call.dst) != r.outputs() + n_elements(*call.src[state])) {
    return "the result must hold the outputs, then the states";
  }
  return nullptr;
}

// The vector of source `i` at element `at`.
static inline const float* source(const Call& call, int i, int64_t at) {
  return reinterpret_cast<const float*>(call.src[i]->data) + at;
}

static inline float dot(const float* a, const float* b, int64_t n) {
  vf sums = vf{};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sums = fma(load(a + i), load(b + i), sums);
  float sum = hsum(sums);
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace weft::WEFT_TARGET
