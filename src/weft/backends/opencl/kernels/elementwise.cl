/* One item an element of the result: grid (ne0, ne1, ne2 * ne3). */

#define PLACE                                                          \
  const int i0 = get_global_id(0), i1 = get_global_id(1);              \
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2]; \
  if (i0 >= d.ne[0]) return;

enum { ADD, SUB, MUL, DIV };

/* the second source is repeated to the size of the first */
__kernel void binary(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, __global uchar *pd, tensor_t d,
                     int op) {
  PLACE
  float x = load(pa + at4(&a, i0, i1, i2, i3), a.type);
  float y = load(pb + at4(&b, b.ne[0] == 1 ? 0 : i0 % b.ne[0], i1 % b.ne[1], i2 % b.ne[2],
                          i3 % b.ne[3]), b.type);
  float r = op == ADD ? x + y : op == SUB ? x - y : op == MUL ? x * y : x / y;
  store(pd + at4(&d, i0, i1, i2, i3), d.type, r);
}

/* row ids[i1, i2] of b is added */
__kernel void add_id(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, bytes_t pi, tensor_t ids,
                     __global uchar *pd, tensor_t d, __global int *fault, int step) {
  PLACE
  long row = checked_index(pi + at4(&ids, i1, i2, 0, 0), ids.type, b.ne[1], fault, step);
  if (row < 0) return;
  float x = load(pa + at4(&a, i0, i1, i2, i3), a.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, x + load(pb + at4(&b, i0, row, 0, 0), b.type));
}

/* numbers of UNARY below 100, then ops of their own */
inline float apply(int op, float x, float4 p) {
  switch (op) {
    case 0: return fabs(x);
    case 1: return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
    case 2: return -x;
    case 3: return x > 0 ? 1.0f : 0.0f;
    case 4: return tanh(x);
    case 5: return x > 0 ? x : expm1(x);
    case 6: return x > 0 ? x : 0.0f;
    case 7: return sigmoid(x);
    case 8: return gelu(x);
    case 9: return gelu_quick(x);
    case 10: return silu(x);
    case 11: return x * hard_sigmoid(x);
    case 12: return hard_sigmoid(x);
    case 13: return exp(x);
    case 14: return expm1(x);
    case 15: return x > 20.0f ? x : log1p(exp(x));
    case 16: return gelu_erf(x);
    case 17: return (x > 0 ? p.y * x * x : (expm1(fmin(x, p.w)) - x) * p.x) + p.z * x;
    case 18: return floor(x);
    case 19: return ceil(x);
    case 20: return round(x);
    case 21: return trunc(x);
    case 100: return x * x;
    case 101: return sqrt(x);
    case 102: return log(x);
    case 103: return sin(x);
    case 104: return cos(x);
    case 105: return x * p.x + p.y;
    case 106: return x < p.x ? p.x : x > p.y ? p.y : x;
    case 107: return p.x;
    default: return fmax(x, 0.0f) + p.x * fmin(x, 0.0f);
  }
}

__kernel void unary(bytes_t pa, tensor_t a, __global uchar *pd, tensor_t d, int op, float4 p) {
  PLACE
  float x = load(pa + at4(&a, i0, i1, i2, i3), a.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, apply(op, x, p));
}

/* activation(x) * gate; both may be halves of one tensor's rows, `from_x` and `from_gate` say where */
__kernel void glu(bytes_t px, tensor_t x, bytes_t pg, tensor_t g, __global uchar *pd, tensor_t d,
                  int op, int from_x, int from_gate, float alpha, float limit) {
  PLACE
  float v = load(px + at4(&x, from_x + i0, i1, i2, i3), x.type);
  float gate = load(pg + at4(&g, from_gate + i0, i1, i2, i3), g.type);
  float r;
  switch (op) {
    case 0: r = v > 0 ? v : 0.0f; break;
    case 1: r = gelu(v); break;
    case 2: r = silu(v); break;
    case 3:
      v = fmin(v, limit);
      r = v * sigmoid(alpha * v);
      gate = fmin(fmax(gate, -limit), limit) + 1.0f;
      break;
    case 4: r = gelu_erf(v); break;
    case 5: r = gelu_quick(v); break;
    default:
      r = silu(fmin(v, limit));
      gate = fmin(fmax(gate, -limit), limit);
  }
  store(pd + at4(&d, i0, i1, i2, i3), d.type, r * gate);
}
