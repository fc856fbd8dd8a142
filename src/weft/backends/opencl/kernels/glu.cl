/* Gates. */

/* activation(x) * gate; both may be halves of one tensor's rows, `from_x` and `from_gate` say where
 */
__kernel void glu(bytes_t px, tensor_t x, bytes_t pg, tensor_t g, __global uchar* pd, tensor_t d,
                  int op, int from_x, int from_gate, float alpha, float limit) {
  PLACE
  float v = load(px + at4(&x, from_x + i0, i1, i2, i3), x.type);
  float gate = load(pg + at4(&g, from_gate + i0, i1, i2, i3), g.type);
  float r;
  switch (op) {
    case 0:
      r = v > 0 ? v : 0.0f;
      break;
    case 1:
      r = gelu(v);
      break;
    case 2:
      r = silu(v);
      break;
    case 3:
      v = fmin(v, limit);
      r = v * sigmoid(alpha * v);
      gate = fmin(fmax(gate, -limit), limit) + 1.0f;
      break;
    case 4:
      r = gelu_erf(v);
      break;
    case 5:
      r = gelu_quick(v);
      break;
    default:
      r = silu(fmin(v, limit));
      gate = fmin(fmax(gate, -limit), limit);
  }
  store(pd + at4(&d, i0, i1, i2, i3), d.type, r * gate);
}
