/* softmax(scale * q k^T + slope * mask) v. A group computes one token and head; grid (group,
   tokens, heads * batches). Built for the formats of keys (K) and values (V), the number of CELLS
   in a block, and with or without a soft CAP.

   The softmax is computed online: when a larger score comes, the sums so far are scaled down
   (Milakov and Gimelshein, arXiv 1805.02867). */

__kernel void attention(bytes_t pq, tensor_t q, bytes_t pk, tensor_t k, bytes_t pv, tensor_t v,
                        bytes_t pm, tensor_t mask, bytes_t ps, tensor_t sinks, __global uchar* pd,
                        tensor_t d, int has_mask, int has_sinks, float scale, float cap,
                        const __global float* slopes, LOCAL(float) mem) {
  const int l = ITEM, n_items = get_local_size(0), token = get_global_id(1);
  const int head = get_global_id(2) % q.ne[2], i3 = get_global_id(2) / q.ne[2];
  const int dk = k.ne[0], dv = v.ne[0], n_kv = k.ne[1];
  __local float *tmp = mem, *query = tmp + n_items, *p = query + dk, *out = p + CELLS;
  bytes_t keys = pk + at4(&k, 0, 0, head / (q.ne[2] / k.ne[2]), i3 / (q.ne[3] / k.ne[3]));
  bytes_t values = pv + at4(&v, 0, 0, head / (q.ne[2] / v.ne[2]), i3 / (q.ne[3] / v.ne[3]));
  bytes_t row = pq + at4(&q, 0, token, head, i3);
  bytes_t bias = pm + (has_mask ? at4(&mask, 0, token, head % mask.ne[2], i3 % mask.ne[3]) : 0);
  float slope = slopes[head];
  for (int i = l; i < dk; i += n_items) query[i] = load(row + i * q.nb[0], q.type);
  for (int i = l; i < dv; i += n_items) out[i] = 0.0f;
  barrier(CLK_LOCAL_MEM_FENCE);
  float top = -INFINITY, sum = 0.0f;
  for (int first = 0; first < n_kv; first += CELLS) {
    const int n = min(CELLS, n_kv - first);
    float best = -INFINITY;
    for (int c = l; c < n; c += n_items) {
      float add = has_mask ? slope * load(bias + (first + c) * mask.nb[0], mask.type) : 0.0f;
      float score = -INFINITY;
      if (add != -INFINITY) {
        bytes_t key = keys + (first + c) * k.nb[1];
        float16 acc = 0.0f, lo, hi;
        for (int u = 0; u < dk / 32; u++) {
          JOIN(unit_, K)(key, u, &lo, &hi);
          acc = fma(hi, vload16(2 * u + 1, query), fma(lo, vload16(2 * u, query), acc));
        }
        score = sum16(acc);
        for (int i = dk / 32 * 32; i < dk; i++) score += query[i] * load(key + i * k.nb[0], k.type);
        score *= scale;
#ifdef CAP
        score = cap * tanh(score / cap);
#endif
        score += add;
      }
      p[c] = score;
      best = fmax(best, score);
    }
    best = fmax(top, group_max(best, tmp));
    if (best == -INFINITY) continue; /* all items of the group take this branch */
    float shrink = exp(top - best), part = 0.0f;
    for (int c = l; c < n; c += n_items) {
      p[c] = exp(p[c] - best);
      part += p[c];
    }
    sum = sum * shrink + group_sum(part, tmp);
    top = best;
#ifndef BY_ELEMENT
    for (int u = l; u < dv / 32; u += n_items) {
      float16 a0 = vload16(2 * u, out) * shrink, a1 = vload16(2 * u + 1, out) * shrink, lo, hi;
      for (int c = 0; c < n; c++) {
        if (p[c] == 0.0f) continue;
        JOIN(unit_, V)(values + (first + c) * v.nb[1], u, &lo, &hi);
        a0 = fma(lo, (float16)p[c], a0);
        a1 = fma(hi, (float16)p[c], a1);
      }
      vstore16(a0, 2 * u, out);
      vstore16(a1, 2 * u + 1, out);
    }
    const int by_units = dv / 32 * 32;
#else
    const int by_units = 0;
#endif
    for (int i = by_units + l; i < dv; i += n_items) {
      float acc = out[i] * shrink;
      for (int c = 0; c < n; c++) {
        acc += p[c] * load(values + (first + c) * v.nb[1] + i * v.nb[0], v.type);
      }
      out[i] = acc;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  float shrink = 1.0f;
  if (has_sinks) {
    float sink = load(ps + sinks.at + head * sinks.nb[0], sinks.type), best = fmax(top, sink);
    shrink = exp(top - best);
    sum = sum * shrink + exp(sink - best);
  }
  float factor = sum > 0.0f ? shrink / sum : 0.0f;
  for (int i = l; i < dv; i += n_items) {
    store(pd + at4(&d, i, head, token, i3), d.type, out[i] * factor);
  }
}
