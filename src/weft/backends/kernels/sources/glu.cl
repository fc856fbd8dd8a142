/* GLU: activation(x) * gate. x and gate may be halves of the rows of one tensor; they begin at the
   elements `from_x` and `from_gate` of a row. */
__kernel void glu(bytes_t px, tensor_t x, bytes_t pg, tensor_t g, __global uchar* pd, tensor_t d,
                  int op, int from_x, int from_gate, float alpha, float limit) {
  PLACE
  float v = load(px + at4(&x, from_x + i0, i1, i2, i3), x.type);
  float gate = load(pg + at4(&g, from_gate + i0, i1, i2, i3), g.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, gated(op, v, gate, alpha, limit));
}

#ifdef TO_BYTES
/* The same, whose results are there as bytes, too (activations.h); an item has four elements. */
__kernel void glu_bytes(bytes_t px, tensor_t x, bytes_t pg, tensor_t g, __global uchar* pd,
                        tensor_t d, int op, int from_x, int from_gate, float alpha, float limit,
                        __global uchar* to, LOCAL(uint) tmp) {
  const int l = get_local_id(0), spans = d.ne[0] / SPAN;
  const long n = (long)spans * d.ne[1] * d.ne[2] * d.ne[3], at = get_global_id(0) / MEMBERS;
  const long span = at < n ? at : n - 1, column = span / spans;
  const int i1 = column % d.ne[1], i2 = column / d.ne[1] % d.ne[2];
  const int i3 = column / d.ne[1] / d.ne[2], i0 = span % spans * SPAN + 4 * (l % MEMBERS);
  float v[4];
  for (int e = 0; e < 4; e++) {
    const float value = load(px + at4(&x, from_x + i0 + e, i1, i2, i3), x.type);
    const float gate = load(pg + at4(&g, from_gate + i0 + e, i1, i2, i3), g.type);
    v[e] = gated(op, value, gate, alpha, limit);
    if (at < n) store(pd + at4(&d, i0 + e, i1, i2, i3), d.type, v[e]);
  }
  put_bytes(make_float4(v[0], v[1], v[2], v[3]), span, n, at < n, l, to, tmp);
}
#endif
