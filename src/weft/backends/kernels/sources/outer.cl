/* Outer products and triangular systems. */

/* dst[n, m] = the sum over k of b[k, n] * a[k, m]; grid (ne0, ne1, ne2 * ne3) of the result. */
__kernel void out_prod(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, __global uchar* pd,
                       tensor_t d) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2];
  if (i0 >= d.ne[0]) return;
  bytes_t ca = pa + at4(&a, i0, 0, i2 / (d.ne[2] / a.ne[2]), i3 / (d.ne[3] / a.ne[3]));
  bytes_t cb = pb + at4(&b, i1, 0, i2, i3);
  float sum = 0.0f;
  for (int k = 0; k < a.ne[1]; k++)
    sum += load(ca + k * a.nb[1], a.type) * load(cb + k * b.nb[1], b.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, sum);
}

#ifdef W
/* The same with a in blocks of format W. An item is a unit of 32 results of a column. */
__kernel void out_prod_of_blocks(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, __global uchar* pd,
                                 tensor_t d) {
  const int u = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2];
  if (u >= d.ne[0] / 32) return;
  bytes_t plane = pa + at4(&a, 0, 0, i2 / (d.ne[2] / a.ne[2]), i3 / (d.ne[3] / a.ne[3]));
  bytes_t cb = pb + at4(&b, i1, 0, i2, i3);
  float16 sum0 = 0.0f, sum1 = 0.0f;
  for (int k = 0; k < a.ne[1]; k++) {
    const float16 x = (float16)load(cb + k * b.nb[1], b.type);
    float16 lo, hi;
    JOIN(unit_, W)(plane + k * a.nb[1], u, &lo, &hi);
    sum0 = fma(lo, x, sum0);
    sum1 = fma(hi, x, sum1);
  }
  float sums[32];
  vstore16(sum0, 0, sums);
  vstore16(sum1, 1, sums);
  for (int i = 0; i < 32; i++) store(pd + at4(&d, 32 * u + i, i1, i2, i3), d.type, sums[i]);
}
#endif

/* Solves A X = B for X, with a lower triangular A, by forward substitution. An item is a column of
   B; grid (columns, ne2 * ne3). */
__kernel void solve_tri(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, __global uchar* pd,
                        tensor_t d) {
  const int i0 = get_global_id(0);
  const int i2 = get_global_id(1) % d.ne[2], i3 = get_global_id(1) / d.ne[2];
  if (i0 >= d.ne[0]) return;
  for (int row = 0; row < a.ne[1]; row++) {
    float sum = load(pb + at4(&b, i0, row, i2, i3), b.type);
    for (int k = 0; k < row; k++) {
      sum -= load(pa + at4(&a, k, row, i2, i3), a.type) * load(pd + at4(&d, i0, k, i2, i3), d.type);
    }
    store(pd + at4(&d, i0, row, i2, i3), d.type,
          sum / load(pa + at4(&a, row, row, i2, i3), a.type));
  }
}
