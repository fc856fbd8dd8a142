/* Functions of an element of a plain tensor, numbered as MAP numbers them. */

/* log(1 + exp(x)) */
static inline float soft_plus(float x) { return fmax(x, 0.0f) + log1p(exp(-fabs(x))); }

static inline float mapped(int op, float x, float4 p) {
  switch (op) {
    case 0:
      return fabs(x);
    case 1:
      return -x;
    case 2:
      return (x > 0.0f) - (x < 0.0f);
    case 4:
      return isnan(x) ? x : fmin(fmax(x, p.x), p.y);
    case 5:
      return rint(x);
    case 6:
      return exp2(x);
    case 7:
      return log2(x);
    case 8:
      return log10(x);
    case 9:
      return log1p(x);
    case 10:
      return 1.0f / sqrt(x);
    case 11:
      return 1.0f / x;
    case 12:
      return tan(x);
    case 13:
      return asin(x);
    case 14:
      return acos(x);
    case 15:
      return atan(x);
    case 16:
      return sinh(x);
    case 17:
      return cosh(x);
    case 18:
      return asinh(x);
    case 19:
      return acosh(x);
    case 20:
      return atanh(x);
    case 21:
      return erf(x);
    case 22:
      return erfc(x);
    case 23:
      return x > 0.0f ? x * p.y : p.x * p.y * expm1(x * p.z);
    case 24:
      return x * p.x > p.y ? x : soft_plus(x * p.x) / p.x;
    case 25:
      return x > p.x ? x - p.x : x < -p.x ? x + p.x : x * 0.0f;
    case 26:
      return x >= -p.x && x <= p.x ? 0.0f : x;
    case 27:
      return x <= p.x ? p.y : x;
    case 28:
      return isnan(x) ? x : hard_sigmoid(x);
    case 29:
      return x * tanh(soft_plus(x));
    case 30:
      return -soft_plus(-x);
    case 31:
      return x > 0.0f ? x : x * p.x;
    case 32:
      return pow(x, p.x);
    case 33:
      return gelu_erf(x);
    default:
      return gelu(x);
  }
}

/* `low`, `high`: the limits of CLAMP as whole numbers */
static inline long mapped_whole(int op, long x, long low, long high) {
  switch (op) {
    case 0:
      return x < 0 ? (long)(0 - (ulong)x) : x;
    case 1:
      return (long)(0 - (ulong)x);
    case 2:
      return (x > 0) - (x < 0);
    case 3:
      return ~x;
    case 4:
      return min(max(x, low), high);
    case 35:
      return x == 0;
    default:
      return op == 38; /* whole numbers are finite, and numbers */
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
  if (op < 35)
    store(to, d.type, mapped(op, x, p));
  else
    *(__global char*)to = op == 35   ? x == 0.0f
                          : op == 36 ? isnan(x)
                          : op == 37 ? isinf(x)
                                     : isfinite(x);
}
