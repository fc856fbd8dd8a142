/* State-space models and linear attention. An item goes through the tokens of its sequence and
   updates its part of the state in place in the result, which holds the outputs, then the states.
   All tensors are f32 with contiguous rows. */

typedef const __global float* row_t;

static inline row_t row_of(bytes_t p, const tensor_t* t, int i1, int i2, int i3) {
  return (row_t)(p + at4(t, 0, i1, i2, i3));
}

/* Mamba's convolution of each channel with its taps; grid (channels, tokens, sequences). */
__kernel void ssm_conv(bytes_t px, tensor_t x, bytes_t pc, tensor_t c, __global uchar* pd,
                       tensor_t d) {
  PLACE
  row_t from = row_of(px, &x, i0, i2, i3) + i1, taps = row_of(pc, &c, i0, 0, 0);
  float sum = 0.0f;
  for (int k = 0; k < c.ne[0]; k++) sum += from[k] * taps[k];
  store(pd + at4(&d, i0, i1, i2, i3), d.type, sum);
}

/* Mamba's scan. An item is a dimension of a head; grid (dimensions, heads, sequences). The result
   keeps `k` states, the newest first; those of times before the first token are zeros. */
__kernel void ssm_scan(bytes_t ps, tensor_t s, bytes_t px, tensor_t x, bytes_t pt, tensor_t dt,
                       bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, bytes_t pc, tensor_t c,
                       bytes_t pi, tensor_t ids, __global uchar* pd, tensor_t d, int k,
                       __global int* fault, int step) {
  const int i = get_global_id(0), head = get_global_id(1), seq = get_global_id(2);
  const int n = s.ne[0], dim = s.ne[1], heads = s.ne[2], n_tokens = x.ne[2], n_seq = x.ne[3];
  if (i >= dim) return;
  const int group = head / (heads / b.ne[1]);
  const long outputs = (long)dim * heads * n_tokens * n_seq,
             snapshot = (long)n * dim * heads * n_seq;
  __global float* y = (__global float*)(pd + d.at);
  __global float* state = y + outputs + n * (i + dim * (head + (long)heads * seq));
  long slot = checked_index(pi + ids.at + seq * ids.nb[0], ids.type, s.ne[3], fault, step);
  if (slot < 0) return;
  row_t start = row_of(ps, &s, i, head, slot), rate = row_of(pa, &a, head, 0, 0);
  for (int j = 0; j < n; j++) {
    state[j] = start[j];
    for (int old = max(n_tokens, 1); old < k; old++) state[old * snapshot + j] = 0.0f;
  }
  for (int t = 0; t < n_tokens; t++) {
    float by = row_of(pt, &dt, t, seq, 0)[head];
    by = by > 20.0f ? by : log1p(exp(by));
    const float in = row_of(px, &x, head, t, seq)[i] * by;
    row_t bt = row_of(pb, &b, group, t, seq), ct = row_of(pc, &c, group, t, seq);
    const int old = n_tokens - 1 - t;
    float sum = 0.0f;
    for (int j = 0; j < n; j++) {
      float now = state[j] * exp(by * rate[a.ne[0] == 1 ? 0 : j]) + bt[j] * in;
      state[j] = now;
      if (old > 0 && old < k) state[old * snapshot + j] = now;
      sum += now * ct[j];
    }
    y[i + dim * (head + heads * (t + (long)n_tokens * seq))] = sum;
  }
}

/* RWKV-6 and gated linear attention, with states [key, value]. An item is a value; grid (size,
   heads, sequences). Sources are contiguous [size, heads, tokens]. With has_first (RWKV-6), the
   output reads the state before the token plus `first` times the token's own product; otherwise it
   reads the state after the token. */
__kernel void by_values(bytes_t pk, tensor_t k, bytes_t pv, tensor_t v, bytes_t pr, tensor_t r,
                        bytes_t pf, tensor_t first, bytes_t pw, tensor_t w, bytes_t ps, tensor_t s,
                        __global uchar* pd, tensor_t d, int has_first, int n_seq, float scale) {
  const int j = get_global_id(0), head = get_global_id(1), seq = get_global_id(2);
  const int n = k.ne[0], heads = k.ne[1], n_tokens = k.ne[2] / n_seq;
  if (j >= n) return;
  __global float* y = (__global float*)(pd + d.at);
  const long at = (long)n * n * (head + (long)heads * seq);
  __global float* state = y + (long)n * heads * k.ne[2] + at + j;
  row_t start = (row_t)(ps + s.at) + at + j, bonus = row_of(pf, &first, head, 0, 0);
  for (int i = 0; i < n; i++) state[i * n] = start[i * n];
  for (int t = seq * n_tokens; t < (seq + 1) * n_tokens; t++) {
    row_t kt = row_of(pk, &k, head, t, 0), rt = row_of(pr, &r, head, t, 0);
    row_t wt = row_of(pw, &w, head, t, 0);
    const float value = row_of(pv, &v, head, t, 0)[j];
    float sum = 0.0f;
    for (int i = 0; i < n; i++) {
      float was = state[i * n], kv = kt[i] * value, now = was * wt[i] + kv;
      state[i * n] = now;
      sum += rt[i] * (has_first ? bonus[i] * kv + was : now);
    }
    y[j + n * (head + (long)heads * t)] = sum * scale;
  }
}

/* RWKV-7, with states [value, key]. An item is a value; grid (size, heads, sequences). */
__kernel void rwkv7(bytes_t pr, tensor_t r, bytes_t pw, tensor_t w, bytes_t pk, tensor_t k,
                    bytes_t pv, tensor_t v, bytes_t pa, tensor_t a, bytes_t pb, tensor_t b,
                    bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int n_seq) {
  const int i = get_global_id(0), head = get_global_id(1), seq = get_global_id(2);
  const int n = k.ne[0], heads = k.ne[1], n_tokens = k.ne[2] / n_seq;
  if (i >= n) return;
  __global float* y = (__global float*)(pd + d.at);
  const long at = n * (i + n * (head + (long)heads * seq));
  __global float* state = y + (long)n * heads * k.ne[2] + at;
  row_t start = (row_t)(ps + s.at) + at;
  for (int j = 0; j < n; j++) state[j] = start[j];
  for (int t = seq * n_tokens; t < (seq + 1) * n_tokens; t++) {
    row_t rt = row_of(pr, &r, head, t, 0), wt = row_of(pw, &w, head, t, 0);
    row_t kt = row_of(pk, &k, head, t, 0), at_ = row_of(pa, &a, head, t, 0);
    row_t bt = row_of(pb, &b, head, t, 0);
    const float value = row_of(pv, &v, head, t, 0)[i];
    float removed = 0.0f, sum = 0.0f;
    for (int j = 0; j < n; j++) removed += state[j] * at_[j];
    for (int j = 0; j < n; j++) {
      float now = state[j] * wt[j] + value * kt[j] + removed * bt[j];
      state[j] = now;
      sum += now * rt[j];
    }
    y[i + n * (head + (long)heads * t)] = sum;
  }
}

/* The gated delta rule, with states [value, key]. An item is a value; grid (size, heads,
   sequences). The result keeps `kept` states, the newest first. */
__kernel void delta_net(bytes_t pq, tensor_t q, bytes_t pk, tensor_t k, bytes_t pv, tensor_t v,
                        bytes_t pg, tensor_t g, bytes_t pb, tensor_t beta, bytes_t ps, tensor_t s,
                        __global uchar* pd, tensor_t d, int kept) {
  const int i = get_global_id(0), head = get_global_id(1), seq = get_global_id(2);
  const int n = v.ne[0], heads = v.ne[1], n_tokens = v.ne[2], n_seq = v.ne[3];
  if (i >= n) return;
  const int shared = head % k.ne[1], of = seq / (n_seq / k.ne[3]);
  __global float* y = (__global float*)(pd + d.at);
  const long at = n * (i + n * (head + (long)heads * seq)), snapshot = (long)n * n * heads * n_seq;
  __global float* state = y + (long)n * heads * n_tokens * n_seq + at;
  row_t start = (row_t)(ps + s.at) + at;
  for (int j = 0; j < n; j++) {
    state[j] = start[j];
    for (int old = max(n_tokens, 1); old < kept; old++) state[old * snapshot + j] = 0.0f;
  }
  for (int t = 0; t < n_tokens; t++) {
    row_t qt = row_of(pq, &q, shared, t, of), kt = row_of(pk, &k, shared, t, of);
    row_t gt = row_of(pg, &g, head, t, seq);
    const int old = n_tokens - 1 - t;
    float known = 0.0f, sum = 0.0f;
    for (int j = 0; j < n; j++) {
      state[j] *= exp(gt[g.ne[0] == 1 ? 0 : j]);
      known += state[j] * kt[j];
    }
    const float error =
        (row_of(pv, &v, head, t, seq)[i] - known) * row_of(pb, &beta, head, t, seq)[0];
    for (int j = 0; j < n; j++) {
      float now = state[j] + error * kt[j];
      state[j] = now;
      if (old > 0 && old < kept) state[old * snapshot + j] = now;
      sum += now * qt[j];
    }
    y[i + n * (head + heads * (t + (long)n_tokens * seq))] = sum / sqrt((float)n);
  }
}
