/* GLU: activation(x) * gate. x and gate may be halves of the rows of one tensor; they begin at the
   elements `from_x` and `from_gate` of a row. */
__kernel void glu(bytes_t px, tensor_t x, bytes_t pg, tensor_t g, __global uchar* pd, tensor_t d,
                  int op, int from_x, int from_gate, float alpha, float limit) {
  PLACE
  float v = load(px + at4(&x, from_x + i0, i1, i2, i3), x.type);
  float gate = load(pg + at4(&g, from_gate + i0, i1, i2, i3), g.type);
  float r;
  switch (op) {
    case REGLU:
      r = v > 0 ? v : 0.0f;
      break;
    case GEGLU:
      r = gelu(v);
      break;
    case SWIGLU:
      r = silu(v);
      break;
    case SWIGLU_OAI:
      v = fmin(v, limit);
      r = v * sigmoid(alpha * v);
      gate = fmin(fmax(gate, -limit), limit) + 1.0f;
      break;
    case GEGLU_ERF:
      r = gelu_erf(v);
      break;
    case GEGLU_QUICK:
      r = gelu_quick(v);
      break;
    default: /* SWIGLU_CLAMP */
      r = silu(fmin(v, limit));
      gate = fmin(fmax(gate, -limit), limit);
  }
  store(pd + at4(&d, i0, i1, i2, i3), d.type, r * gate);
}
