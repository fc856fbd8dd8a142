/* MAP: the functions of MapOp (graph/ops/elements.py) on elements of plain tensors. */

/* log(1 + exp(x)) */
static inline float soft_plus(float x) { return fmax(x, 0.0f) + log1p(exp(-fabs(x))); }

static inline float mapped(int op, float x, float4 p) {
  switch (op) {
    case ABS:
      return fabs(x);
    case NEG:
      return -x;
    case SIGN:
      return (x > 0.0f) - (x < 0.0f);
    case CLAMP:
      return isnan(x) ? x : fmin(fmax(x, p.x), p.y);
    case ROUND_EVEN:
      return rint(x);
    case EXP2:
      return exp2(x);
    case LOG2:
      return log2(x);
    case LOG10:
      return log10(x);
    case LOG1P:
      return log1p(x);
    case RSQRT:
      return 1.0f / sqrt(x);
    case RECIPROCAL:
      return 1.0f / x;
    case TAN:
      return tan(x);
    case ASIN:
      return asin(x);
    case ACOS:
      return acos(x);
    case ATAN:
      return atan(x);
    case SINH:
      return sinh(x);
    case COSH:
      return cosh(x);
    case ASINH:
      return asinh(x);
    case ACOSH:
      return acosh(x);
    case ATANH:
      return atanh(x);
    case ERF:
      return erf(x);
    case ERFC:
      return erfc(x);
    case ELU:
      return x > 0.0f ? x * p.y : p.x * p.y * expm1(x * p.z);
    case SOFTPLUS:
      return x * p.x > p.y ? x : soft_plus(x * p.x) / p.x;
    case SOFTSHRINK:
      return x > p.x ? x - p.x : x < -p.x ? x + p.x : x * 0.0f;
    case HARDSHRINK:
      return x >= -p.x && x <= p.x ? 0.0f : x;
    case THRESHOLD:
      return x <= p.x ? p.y : x;
    case HARDSIGMOID:
      return isnan(x) ? x : hard_sigmoid(x);
    case MISH:
      return x * tanh(soft_plus(x));
    case LOG_SIGMOID:
      return -soft_plus(-x);
    case LEAKY_RELU:
      return x > 0.0f ? x : x * p.x;
    case POW:
      return p.x == 2.0f ? x * x : pow(x, p.x);
    case GELU:
      return gelu_erf(x);
    default: /* GELU_TANH */
      return gelu(x);
  }
}

/* The functions that exist for integers; `low` and `high` are the limits of CLAMP. */
static inline long mapped_whole(int op, long x, long low, long high) {
  switch (op) {
    case ABS:
      return x < 0 ? (long)(0 - (ulong)x) : x;
    case NEG:
      return (long)(0 - (ulong)x);
    case SIGN:
      return (x > 0) - (x < 0);
    case BIT_NOT:
      return ~x;
    case CLAMP:
      return min(max(x, low), high);
    case LOGICAL_NOT:
      return x == 0;
    default:
      return op == IS_FINITE; /* every integer is finite, none is a NaN or infinite */
  }
}

__kernel void map_nd(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int op, float4 p,
                     long low, long high) {
  PLACE
  bytes_t from = ps + at4(&s, i0, i1, i2, i3);
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  if (is_whole(s.type)) {
    store_whole(to, d.type, mapped_whole(op, load_whole(from, s.type), low, high));
    return;
  }
  float x = load(from, s.type);
  if (op < LOGICAL_NOT)
    store(to, d.type, mapped(op, x, p));
  else
    *(__global char*)to = op == LOGICAL_NOT ? x == 0.0f
                          : op == IS_NAN    ? isnan(x)
                          : op == IS_INF    ? isinf(x)
                                            : isfinite(x);
}
