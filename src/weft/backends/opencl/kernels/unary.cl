/* Functions of an element. */

/* numbers of UNARY below 100, then ops of their own */
static inline float apply(int op, float x, float4 p) {
  switch (op) {
    case 0:
      return fabs(x);
    case 1:
      return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
    case 2:
      return -x;
    case 3:
      return x > 0 ? 1.0f : 0.0f;
    case 4:
      return tanh(x);
    case 5:
      return x > 0 ? x : expm1(x);
    case 6:
      return x > 0 ? x : 0.0f;
    case 7:
      return sigmoid(x);
    case 8:
      return gelu(x);
    case 9:
      return gelu_quick(x);
    case 10:
      return silu(x);
    case 11:
      return x * hard_sigmoid(x);
    case 12:
      return hard_sigmoid(x);
    case 13:
      return exp(x);
    case 14:
      return expm1(x);
    case 15:
      return x > 20.0f ? x : log1p(exp(x));
    case 16:
      return gelu_erf(x);
    case 17:
      return (x > 0 ? p.y * x * x : (expm1(fmin(x, p.w)) - x) * p.x) + p.z * x;
    case 18:
      return floor(x);
    case 19:
      return ceil(x);
    case 20:
      return round(x);
    case 21:
      return trunc(x);
    case 100:
      return x * x;
    case 101:
      return sqrt(x);
    case 102:
      return log(x);
    case 103:
      return sin(x);
    case 104:
      return cos(x);
    case 105:
      return x * p.x + p.y;
    case 106:
      return x < p.x ? p.x : x > p.y ? p.y : x;
    case 107:
      return p.x;
    default:
      return fmax(x, 0.0f) + p.x * fmin(x, 0.0f);
  }
}

__kernel void unary(bytes_t pa, tensor_t a, __global uchar* pd, tensor_t d, int op, float4 p) {
  PLACE
  float x = load(pa + at4(&a, i0, i1, i2, i3), a.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, apply(op, x, p));
}
