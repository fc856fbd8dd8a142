/* Ops of DeepSeek: index scores, and hyper-connections (hc residual streams). */

/* The scores of cells: the sum over heads of relu(q . k) * weight, plus the mask; grid (cells,
   tokens, streams). Built for the format of the keys (K). */
#ifdef K
__kernel void indexer(bytes_t pq, tensor_t q, bytes_t pk, tensor_t k, bytes_t pw, tensor_t w,
                      bytes_t pm, tensor_t mask, __global uchar* pd, tensor_t d) {
  const int cell = get_global_id(0), token = get_global_id(1), stream = get_global_id(2);
  if (cell >= d.ne[0]) return;
  bytes_t key = pk + at4(&k, 0, 0, cell, stream);
  const int n = k.ne[0];
  float total = 0.0f;
  for (int head = 0; head < q.ne[1]; head++) {
    bytes_t row = pq + at4(&q, 0, head, token, stream);
    float sum = 0.0f;
    for (int u = 0; u < n / 32; u++) {
      float16 lo, hi, x0, x1;
      JOIN(unit_, K)(key, u, &lo, &hi);
      x0 = vload16(2 * u, (const __global float*)row);
      x1 = vload16(2 * u + 1, (const __global float*)row);
      sum += sum16(fma(hi, x1, lo * x0));
    }
    for (int i = n / 32 * 32; i < n; i++)
      sum += load(row + i * q.nb[0], q.type) * load(key + i * k.nb[0], k.type);
    total += fmax(sum, 0.0f) * load(pw + at4(&w, head, token, 0, stream), w.type);
  }
  total += load(pm + at4(&mask, cell, token, 0, stream % mask.ne[3]), mask.type);
  store(pd + at4(&d, cell, token, 0, stream), d.type, total);
}
#endif

/* A nearly doubly stochastic matrix [to, from] for each token, by Sinkhorn's iteration. An item is
   a token. All sources are contiguous f32. */
__kernel void hc_comb(bytes_t pm, tensor_t m, bytes_t ps, tensor_t s, bytes_t pb, tensor_t b,
                      __global uchar* pd, tensor_t d, float eps, int n_iter) {
  const int token = get_global_id(0), hc = d.ne[0];
  if (token >= d.ne[2]) return;
  const __global float* mixes = (const __global float*)(pm + at4(&m, 2 * hc, token, 0, 0));
  const __global float* base = (const __global float*)(pb + b.at) + 2 * hc;
  const float scale = ((const __global float*)(ps + s.at))[2];
  __global float* c = (__global float*)(pd + at4(&d, 0, 0, token, 0));
  for (int i = 0; i < hc; i++) {
    float top = -INFINITY, sum = 0.0f;
    for (int j = 0; j < hc; j++) {
      c[i * hc + j] = mixes[i * hc + j] * scale + base[i * hc + j];
      top = fmax(top, c[i * hc + j]);
    }
    for (int j = 0; j < hc; j++) sum += c[i * hc + j] = exp(c[i * hc + j] - top);
    for (int j = 0; j < hc; j++) c[i * hc + j] = c[i * hc + j] / sum + eps;
  }
  for (int round = 0; round < n_iter; round++) {
    for (int i = 0; i < hc && round > 0; i++) {
      float sum = eps;
      for (int j = 0; j < hc; j++) sum += c[i * hc + j];
      for (int j = 0; j < hc; j++) c[i * hc + j] /= sum;
    }
    for (int j = 0; j < hc; j++) {
      float sum = eps;
      for (int i = 0; i < hc; i++) sum += c[i * hc + j];
      for (int i = 0; i < hc; i++) c[i * hc + j] /= sum;
    }
  }
}

/* Joins the streams: a weighted sum, or a sum through gates; grid (dimensions, tokens). */
__kernel void hc_pre(bytes_t px, tensor_t x, bytes_t pw, tensor_t w, __global uchar* pd, tensor_t d,
                     int gated, float scale) {
  PLACE
  float sum = 0.0f;
  for (int h = 0; h < x.ne[1]; h++) {
    float v = load(px + at4(&x, i0, h, i1, 0), x.type);
    if (gated)
      sum += v / (1.0f + exp(-load(pw + at4(&w, i0, h, i1, 0), w.type)));
    else
      sum += v * load(pw + at4(&w, h, i1, 0, 0), w.type);
  }
  store(pd + at4(&d, i0, i1, i2, i3), d.type, gated ? sum * scale : sum);
}

/* Adds a result to the streams; grid (dimensions, streams, tokens). */
__kernel void hc_post(bytes_t px, tensor_t x, bytes_t pr, tensor_t r, bytes_t pp, tensor_t post,
                      bytes_t pc, tensor_t comb, __global uchar* pd, tensor_t d, int has_comb) {
  PLACE
  float sum =
      load(px + at4(&x, i0, i2, 0, 0), x.type) * load(pp + at4(&post, i1, i2, 0, 0), post.type);
  if (!has_comb) sum += load(pr + at4(&r, i0, i1, i2, 0), r.type);
  for (int h = 0; h < r.ne[1] && has_comb; h++) {
    sum +=
        load(pr + at4(&r, i0, h, i2, 0), r.type) * load(pc + at4(&comb, i1, h, i2, 0), comb.type);
  }
  store(pd + at4(&d, i0, i1, i2, i3), d.type, sum);
}
