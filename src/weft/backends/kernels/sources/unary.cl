/* Functions of one element: UnaryOp (graph/ops/activations.py) and Elementwise (enums.py). */
static inline float apply(int op, float x, float4 p) {
  switch (op) {
    case ABS:
      return fabs(x);
    case SGN:
      return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f;
    case NEG:
      return -x;
    case STEP:
      return x > 0 ? 1.0f : 0.0f;
    case TANH:
      return tanh(x);
    case ELU:
      return x > 0 ? x : expm1(x);
    case RELU:
      return x > 0 ? x : 0.0f;
    case SIGMOID:
      return sigmoid(x);
    case GELU:
      return gelu(x);
    case GELU_QUICK:
      return gelu_quick(x);
    case SILU:
      return silu(x);
    case HARDSWISH:
      return x * hard_sigmoid(x);
    case HARDSIGMOID:
      return hard_sigmoid(x);
    case EXP:
      return exp(x);
    case EXPM1:
      return expm1(x);
    case SOFTPLUS:
      return x > 20.0f ? x : log1p(exp(x));
    case GELU_ERF:
      return gelu_erf(x);
    case XIELU:
      return (x > 0 ? p.y * x * x : (expm1(fmin(x, p.w)) - x) * p.x) + p.z * x;
    case FLOOR:
      return floor(x);
    case CEIL:
      return ceil(x);
    case ROUND:
      return round(x);
    case TRUNC:
      return trunc(x);
    case SQRT:
      return sqrt(x);
    case LOG:
      return log(x);
    case SIN:
      return sin(x);
    case COS:
      return cos(x);
    case SCALE:
      return x * p.x + p.y;
    case CLAMP:
      return x < p.x ? p.x : x > p.y ? p.y : x;
    case FILL:
      return p.x;
    default: /* LEAKY_RELU */
      return fmax(x, 0.0f) + p.x * fmin(x, 0.0f);
  }
}

__kernel void unary(bytes_t pa, tensor_t a, __global uchar* pd, tensor_t d, int op, float4 p) {
  PLACE
  float x = load(pa + at4(&a, i0, i1, i2, i3), a.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, apply(op, x, p));
}
