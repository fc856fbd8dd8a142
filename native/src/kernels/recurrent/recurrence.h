// The recurrences of linear attention. Their sources are [size, n_head, tokens of all sequences],
// each head of a sequence has a state [size, size], and the result holds the outputs, then the
// states:
//
//     | outputs [size, n_head, tokens] | states [size, size, n_head, sequences] |
//
// An item is a head of a sequence, whose tokens are walked in order. The state is updated in place
// in the result.
#pragma once

#include "kernels/elements.h"
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

struct Recurrence {
  int64_t size;  // elements of a head
  int64_t n_head;
  int64_t n_tokens;  // tokens per sequence
  int64_t n_seqs;

  // The offset of a head of a token in a source or in the outputs, in elements.
  int64_t vector(int64_t seq, int64_t token, int64_t head) const {
    return ((seq * n_tokens + token) * n_head + head) * size;
  }
  // The offset of the state of a head of a sequence among the states, in elements.
  int64_t state(int64_t seq, int64_t head) const { return (seq * n_head + head) * size * size; }
  // The number of elements of the outputs.
  int64_t outputs() const { return size * n_head * n_tokens * n_seqs; }
};

// The sizes of a recurrence with the source `x` and these states.
static inline Recurrence recurrence(const Tensor& x, const Tensor& state) {
  Recurrence r;
  r.size = x.ne[0];
  r.n_head = x.ne[1];
  const int64_t per_seq = r.size * r.size * r.n_head;
  r.n_seqs = per_seq == 0 ? 0 : n_elements(state) / per_seq;
  r.n_tokens = r.n_seqs == 0 ? 0 : x.ne[2] / r.n_seqs;
  return r;
}

// nullptr when sources 0..n_vectors-1 have the same shape and source `state` fits them, otherwise
// why not.
static inline const char* check_recurrence(const Call& call, int n_vectors, int state) {
  const Tensor& x = *call.src[0];
  for (int i = 0; i <= state; ++i) {
    if (!is_packed_f32(*call.src[i])) return "the sources must be contiguous f32";
  }
  if (!is_packed_f32(call.dst)) return "the result must be contiguous f32";
  for (int i = 1; i < n_vectors; ++i) {
    if (!same_shape(*call.src[i], x)) return "sources differ in shape";
  }
  const Recurrence r = recurrence(x, *call.src[state]);
  if (x.ne[3] != 1 || r.n_seqs * r.size * r.size * r.n_head != n_elements(*call.src[state])) {
    return "the state must be [size * size * heads, sequences]";
  }
  if (r.n_seqs * r.n_tokens != x.ne[2]) {
    return "the number of tokens must be a multiple of the number of sequences";
  }
  if (n_elements(call.dst) != r.outputs() + n_elements(*call.src[state])) {
    return "the result must hold the outputs, then the states";
  }
  return nullptr;
}

// Source `i` from element `at` on.
static inline const float* source(const Call& call, int i, int64_t at) {
  return reinterpret_cast<const float*>(call.src[i]->data) + at;
}

// Calls token(r, head, at, y, state) for each token of each of the items begin..end. `at` is the
// offset of its vectors in the sources, `y` its output and `state` the state of its head.
template <int kState, typename F>
static inline void for_tokens(const Call& call, int64_t begin, int64_t end, const F& token) {
  const Recurrence r = recurrence(*call.src[0], *call.src[kState]);
  auto* y = reinterpret_cast<float*>(call.dst.data);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t seq = item / r.n_head;
    const int64_t head = item - seq * r.n_head;
    float* state = y + r.outputs() + r.state(seq, head);
    std::memcpy(state, source(call, kState, r.state(seq, head)),
                static_cast<size_t>(r.size * r.size) * 4);
    for (int64_t t = 0; t < r.n_tokens; ++t) {
      const int64_t at = r.vector(seq, t, head);
      token(r, head, at, y + at, state);
    }
  }
}

template <int kState>
static inline int64_t recurrence_items(const Call& call) {
  const Recurrence r = recurrence(*call.src[0], *call.src[kState]);
  return r.n_head * r.n_seqs;
}

static inline int64_t head_grain(const Recurrence& r) {
  return row_grain(r.size * r.size * max64(1, r.n_tokens));
}

template <int kState>
static inline int64_t recurrence_grain(const Call& call) {
  return head_grain(recurrence(*call.src[0], *call.src[kState]));
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
