/* Products of rows of weights with columns of activations. Built for a format of the weights (W;
   with PLANES, one of planes.h) and of the activations (X). Both are decoded unit by unit. Where
   all rows of weights or of activations begin at multiples of 16 bytes (W_ALIGNED, X_ALIGNED), a
   load may have 16 bytes. */

#ifdef W_ALIGNED
#define OF_WEIGHTS const __global uint4*
#else
#define OF_WEIGHTS bytes_t
#endif
#ifdef X_ALIGNED
#define OF_ACTIVATIONS const __global uint4*
#else
#define OF_ACTIVATIONS bytes_t
#endif

#define UNIT JOIN(unit_, W)
#define XUNIT JOIN(unit_, X)

#ifdef WIDE
typedef float16 sum_t; /* for devices whose registers are vectors */
#define ADD_UP(acc, lo, hi, x0, x1) acc = fma(hi, x1, fma(lo, x0, acc))
#define TOTAL(acc) sum16(acc)
#else
typedef float sum_t;
#define ADD_UP(acc, lo, hi, x0, x1) acc += sum16(fma(hi, x1, lo * x0))
#define TOTAL(acc) acc
#endif

/* The product of the elements behind the last whole unit of a row; only float types have such. */
#ifdef PLANES
#define rest(w, wtype, wnb, x, xtype, xnb, n, first, step) 0.0f
#else
static inline float rest(bytes_t w, int wtype, long wnb, bytes_t x, int xtype, long xnb, int n,
                         int first, int step) {
  float sum = 0.0f;
  for (int i = n / 32 * 32 + first; i < n; i += step) {
    sum += load(w + i * wnb, wtype) * load(x + i * xnb, xtype);
  }
  return sum;
}
#endif

/* LANES items compute COLS columns of a row; grid (rows * LANES, columns / COLS, ne2 * ne3). */
__kernel void columns(OF_WEIGHTS pw, tensor_t w, OF_ACTIVATIONS px, tensor_t x, bytes_t pb,
                      tensor_t bias, __global uchar* pd, tensor_t d, int has_bias,
                      LOCAL(float) tmp) {
  const int lane = ITEM % LANES, row = ITEM_OF_GRID / LANES;
  const int first = get_global_id(1) * COLS;
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2];
  weights_t wr = WEIGHTS_ROW((bytes_t)pw, &w, min(row, d.ne[0] - 1), i2 / (d.ne[2] / w.ne[2]),
                             i3 / (d.ne[3] / w.ne[3]));
  bytes_t xc[COLS];
  sum_t acc[COLS];
  for (int c = 0; c < COLS; c++) {
    xc[c] = (bytes_t)px + at4(&x, 0, min(first + c, d.ne[1] - 1), i2, i3);
    acc[c] = 0.0f;
  }
  const int n_units = w.ne[0] / 32;
  for (int u = lane; u < n_units; u += LANES) {
    float16 lo, hi, x0, x1;
    UNIT(wr, u, &lo, &hi);
    for (int c = 0; c < COLS; c++) {
      XUNIT(xc[c], u, &x0, &x1);
      ADD_UP(acc[c], lo, hi, x0, x1);
    }
  }
  for (int c = 0; c < COLS; c++) {
    float sum = TOTAL(acc[c]);
    if (w.ne[0] % 32)
      sum += rest(wr, w.type, w.nb[0], xc[c], x.type, x.nb[0], w.ne[0], lane, LANES);
    sum = sum_over(sum, LANES, tmp);
    if (lane == 0 && row < d.ne[0] && first + c < d.ne[1]) {
      if (has_bias) sum += load(pb + bias.at + row * bias.nb[0], bias.type);
      store(pd + at4(&d, row, first + c, i2, i3), d.type, sum);
    }
  }
}

/* Each slot of a token has a column and an expert; w has the experts from `of_w` on, of n_experts,
   and results of others are left as they are. Grid (rows * LANES, slots, tokens). */
__kernel void experts(OF_WEIGHTS pw, tensor_t w, OF_ACTIVATIONS px, tensor_t x, bytes_t pi,
                      tensor_t ids, __global uchar* pd, tensor_t d, int of_w, int n_experts,
                      __global int* fault, int step, LOCAL(float) tmp) {
  const int lane = ITEM % LANES, row = ITEM_OF_GRID / LANES;
  const int slot = get_global_id(1), token = get_global_id(2);
  const long expert =
      checked_index(pi + at4(&ids, slot, token, 0, 0), ids.type, n_experts, fault, step) - of_w;
  const int is_here = expert >= 0 && expert < w.ne[2], n = is_here ? w.ne[0] : 0;
  weights_t wr = WEIGHTS_ROW((bytes_t)pw, &w, min(row, d.ne[0] - 1), is_here ? expert : 0L, 0);
  bytes_t xc = (bytes_t)px + at4(&x, 0, slot % x.ne[1], token, 0);
  sum_t acc = 0.0f;
  for (int u = lane; u < n / 32; u += LANES) {
    float16 lo, hi, x0, x1;
    UNIT(wr, u, &lo, &hi);
    XUNIT(xc, u, &x0, &x1);
    ADD_UP(acc, lo, hi, x0, x1);
  }
  float sum = TOTAL(acc);
  if (n % 32) sum += rest(wr, w.type, w.nb[0], xc, x.type, x.nb[0], n, lane, LANES);
  sum = sum_over(sum, LANES, tmp);
  if (lane == 0 && row < d.ne[0] && is_here) store(pd + at4(&d, row, slot, token, 0), d.type, sum);
}

#ifdef TILE
/* A group of (TILE / 4)^2 items computes TILE x TILE results, each item 4 x 4 of them. Units of
   weights and activations are decoded once per group into local memory. Grid (rows / 4, columns /
   4, ne2 * ne3). */
__kernel void tiles(OF_WEIGHTS pw, tensor_t w, OF_ACTIVATIONS px, tensor_t x, bytes_t pb,
                    tensor_t bias, __global uchar* pd, tensor_t d, int has_bias, LOCAL(float) wt,
                    LOCAL(float) xt) {
  const int tx = get_local_id(0), ty = get_local_id(1);
  const int item = ty * (TILE / 4) + tx, n_items = (TILE / 4) * (TILE / 4);
  const int row0 = get_group_id(0) * TILE, col0 = (get_global_id(1) - ty) * 4;
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2];
  float acc[16];
  for (int i = 0; i < 16; i++) acc[i] = 0.0f;
  for (int u = 0; u < (w.ne[0] + 31) / 32; u++) {
    const int n = min(32, w.ne[0] - 32 * u);
    for (int i = item; i < 2 * TILE; i += n_items) {
      const int of_x = i >= TILE, k = of_x ? i - TILE : i;
      __local float* to = of_x ? xt : wt;
      float16 lo = 0.0f, hi = 0.0f;
      bytes_t xc = (bytes_t)px + at4(&x, 0, min(col0 + k, d.ne[1] - 1), i2, i3);
      weights_t wr = WEIGHTS_ROW((bytes_t)pw, &w, min(row0 + k, d.ne[0] - 1),
                                 i2 / (d.ne[2] / w.ne[2]), i3 / (d.ne[3] / w.ne[3]));
      float v[32];
      if (n == 32) {
        if (of_x)
          XUNIT(xc, u, &lo, &hi);
        else
          UNIT(wr, u, &lo, &hi);
        vstore16(lo, 0, v);
        vstore16(hi, 1, v);
      }
#ifndef PLANES
      else {
        bytes_t from = of_x ? xc : wr;
        const int type = of_x ? x.type : w.type;
        const long nb = of_x ? x.nb[0] : w.nb[0];
        for (int e = 0; e < 32; e++) v[e] = e < n ? load(from + (32 * u + e) * nb, type) : 0.0f;
      }
#endif
      for (int e = 0; e < 32; e++) to[e * TILE + k] = v[e];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int e = 0; e < 32; e++) {
      float4 a = vload4(tx, wt + e * TILE), b = vload4(ty, xt + e * TILE);
      acc[0] += a.x * b.x;
      acc[1] += a.y * b.x;
      acc[2] += a.z * b.x;
      acc[3] += a.w * b.x;
      acc[4] += a.x * b.y;
      acc[5] += a.y * b.y;
      acc[6] += a.z * b.y;
      acc[7] += a.w * b.y;
      acc[8] += a.x * b.z;
      acc[9] += a.y * b.z;
      acc[10] += a.z * b.z;
      acc[11] += a.w * b.z;
      acc[12] += a.x * b.w;
      acc[13] += a.y * b.w;
      acc[14] += a.z * b.w;
      acc[15] += a.w * b.w;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int i = 0; i < 16; i++) {
    const int row = row0 + 4 * tx + i % 4, col = col0 + 4 * ty + i / 4;
    if (row >= d.ne[0] || col >= d.ne[1]) continue;
    float sum = acc[i];
    if (has_bias) sum += load(pb + bias.at + row * bias.nb[0], bias.type);
    store(pd + at4(&d, row, col, i2, i3), d.type, sum);
  }
}
#endif
