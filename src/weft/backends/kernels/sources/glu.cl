/* GLU: activation(x) * gate. x and gate may be halves of the rows of one tensor; they begin at the
   elements `from_x` and `from_gate` of a row. */
__kernel void glu(bytes_t px, tensor_t x, bytes_t pg, tensor_t g, __global uchar* pd, tensor_t d,
                  int op, int from_x, int from_gate, float alpha, float limit) {
  PLACE
  float v = load(px + at4(&x, from_x + i0, i1, i2, i3), x.type);
  float gate = load(pg + at4(&g, from_gate + i0, i1, i2, i3), g.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, gated(op, v, gate, alpha, limit));
}
