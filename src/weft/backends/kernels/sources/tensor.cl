/* Elementwise ops on plain tensors, as PyTorch defines them: numbers of any type; either source may
   be broadcast. Integers wrap around. */

/* The place of an element; a source of size 1 along a dimension is repeated there. */
static inline long spread(const tensor_t* t, int i0, int i1, int i2, int i3) {
  return at4(t, t->ne[0] == 1 ? 0 : i0, t->ne[1] == 1 ? 0 : i1, t->ne[2] == 1 ? 0 : i2,
             t->ne[3] == 1 ? 0 : i3);
}

/* x as it is read back after it was stored as `type`. */
static inline float rounded(float x, int type) {
  if (type == BF16) return bf16_to_float(float_to_bf16(x));
  if (type != F16) return x;
  ushort bits;
  vstore_half_rte(x, 0, (half*)&bits);
  return vload_half(0, (const half*)&bits);
}

static inline float floor_divided(float a, float b) {
  float exact = a / b, rest = fmod(a, b);
  if (b == 0.0f) return exact;
  float quotient = (a - rest) / b - (rest != 0.0f && (b < 0.0f) != (rest < 0.0f) ? 1.0f : 0.0f);
  float low = floor(quotient);
  return quotient == 0.0f ? copysign(0.0f, exact) : quotient - low > 0.5f ? low + 1.0f : low;
}

/* The functions of BinaryOp (graph/ops/elements.py) that give a float. */
static inline float of_floats(int op, float a, float b, int type) {
  float r;
  switch (op) {
    case ADD:
      return a + b;
    case SUB:
      return a - b;
    case MUL:
      return a * b;
    case DIV:
      return a / b;
    case FLOOR_DIV:
      return floor_divided(a, b);
    case TRUNC_DIV:
      return trunc(rounded(a / b, type));
    case REMAINDER:
      r = fmod(a, b);
      return r != 0.0f && (b < 0.0f) != (r < 0.0f) ? r + b : r;
    case FMOD:
      return fmod(a, b);
    case POW:
      return pow(a, b);
    case MIN:
      return isnan(a) || a < b ? a : b;
    case MAX:
      return isnan(a) || a > b ? a : b;
    default:
      return atan2(a, b);
  }
}

static inline int compared(int op, float a, float b) {
  switch (op) {
    case EQ:
      return a == b;
    case NE:
      return a != b;
    case LT:
      return a < b;
    case LE:
      return a <= b;
    case GT:
      return a > b;
    case GE:
      return a >= b;
    case LOGICAL_AND:
      return a != 0.0f && b != 0.0f;
    case LOGICAL_OR:
      return a != 0.0f || b != 0.0f;
    default:
      return (a != 0.0f) != (b != 0.0f);
  }
}

static inline long to_the_power(long a, long b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
  ulong r = 1, x = (ulong)a;
  for (; b; b >>= 1) {
    if (b & 1) r *= x;
    x *= x;
  }
  return (long)r;
}

/* Integer quotients and remainders. b is not 0. The smallest number divided by -1 is itself; the
   division instruction would trap. */
static inline long divided(int op, long a, long b) {
  long quotient = b == -1 ? (long)(0 - (ulong)a) : a / b;
  long rest = b == -1 ? 0 : a % b;
  int turns = rest != 0 && (rest < 0) != (b < 0);
  switch (op) {
    case FLOOR_DIV:
      return quotient - turns;
    case TRUNC_DIV:
      return quotient;
    case REMAINDER:
      return turns ? rest + b : rest;
    default:
      return rest;
  }
}

static inline long of_wholes(int op, long a, long b, int bits) {
  int inside = b >= 0 && b < bits;
  switch (op) {
    case ADD:
      return (long)((ulong)a + (ulong)b);
    case SUB:
      return (long)((ulong)a - (ulong)b);
    case MUL:
      return (long)((ulong)a * (ulong)b);
    case POW:
      return to_the_power(a, b);
    case MIN:
      return min(a, b);
    case MAX:
      return max(a, b);
    case EQ:
      return a == b;
    case NE:
      return a != b;
    case LT:
      return a < b;
    case LE:
      return a <= b;
    case GT:
      return a > b;
    case GE:
      return a >= b;
    case LOGICAL_AND:
      return a != 0 && b != 0;
    case LOGICAL_OR:
      return a != 0 || b != 0;
    case LOGICAL_XOR:
      return (a != 0) != (b != 0);
    case BIT_AND:
      return a & b;
    case BIT_OR:
      return a | b;
    case BIT_XOR:
      return a ^ b;
    case SHIFT_LEFT:
      return inside ? (long)((ulong)a << b) : 0;
    default:
      return a >> (inside ? b : bits - 1);
  }
}

__kernel void binary_nd(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, __global uchar* pd,
                        tensor_t d, int op, int bits, __global int* fault, int step) {
  PLACE
  bytes_t from_a = pa + spread(&a, i0, i1, i2, i3), from_b = pb + spread(&b, i0, i1, i2, i3);
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  if (is_whole(a.type)) {
    long x = load_whole(from_a, a.type), y = load_whole(from_b, a.type), r = 0;
    if (op < FLOOR_DIV || op > FMOD)
      r = of_wholes(op, x, y, bits);
    else if (y != 0)
      r = divided(op, x, y);
    else
      note(fault, step, 0, 0, DIVISION_BY_ZERO);
    store_whole(to, d.type, r);
    return;
  }
  float x = load(from_a, a.type), y = load(from_b, b.type);
  if (op >= EQ)
    *(__global char*)to = compared(op, x, y);
  else
    store(to, d.type, of_floats(op, x, y, d.type));
}

/* a where the condition is not 0, otherwise b; grid over the result. */
__kernel void where(bytes_t pc, tensor_t c, bytes_t pa, tensor_t a, bytes_t pb, tensor_t b,
                    __global uchar* pd, tensor_t d, int bytes) {
  PLACE
  int first = *(const __global char*)(pc + spread(&c, i0, i1, i2, i3)) != 0;
  bytes_t from = first ? pa + spread(&a, i0, i1, i2, i3) : pb + spread(&b, i0, i1, i2, i3);
  move_unit(pd + at4(&d, i0, i1, i2, i3), from, bytes);
}

/* Converts elements to another type; grid over the result. Floats become integers by way of i64, as
   on the processor. With `boolean`, the result is 1 where an element is not 0, otherwise 0. */
__kernel void convert_nd(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int boolean) {
  PLACE
  bytes_t from = ps + at4(&s, i0, i1, i2, i3);
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  if (is_whole(s.type)) {
    long x = load_whole(from, s.type);
    if (is_whole(d.type))
      store_whole(to, d.type, boolean ? x != 0 : x);
    else
      store(to, d.type, boolean ? x != 0 : (float)x);
    return;
  }
  float x = load(from, s.type);
  if (is_whole(d.type))
    store_whole(to, d.type, boolean ? x != 0.0f : (long)x);
  else
    store(to, d.type, boolean ? x != 0.0f : x);
}
