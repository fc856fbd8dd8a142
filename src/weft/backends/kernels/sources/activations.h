/* Activations as bytes (weft.backends.kernels.ops.bytes), in the blocks of the cpu that its
   products with the same weights read: q8_0, q8_1 or q8_K. Built for one of them (TO_ and its
   name), which has SPAN elements with one scale. A block with a number that is not finite has a
   scale that is not, so that all sums with it are NaN or infinite, too. */

#if defined(TO_q8_0) || defined(TO_q8_1) || defined(TO_q8_K)
#define TO_BYTES

#ifdef TO_q8_K
#define SPAN 256
#else
#define SPAN 32
#endif
#define MEMBERS (SPAN / 4)

#define SIZE(bits) ((bits) & 0x7fffffffu) /* of which a NaN has the largest */
#define FRACTION(bits) (((bits) & 0x7fffffu) | 0x800000u)

/* a / b to the nearest float, of positive normal numbers: devices may be off by a few units. Digits
   of the quotient are made eight or seven at a time. Too large a result is infinite, and one below
   the normal numbers is 0. */
static inline float divided(float a, float b) {
  const uint x = as_uint(a), y = as_uint(b), by = FRACTION(y);
  uint left = FRACTION(x);
  int exponent = (int)(x >> 23) - (int)(y >> 23) + 127;
  if (left < by) {
    left <<= 1;
    exponent -= 1;
  }
  left -= by;
  uint digits = 1;
  for (int i = 0; i < 3; i++) {
    const uint n = i < 2 ? 8 : 7;
    left <<= n;
    digits = (digits << n) | (left / by);
    left %= by;
  }
  if (2 * left > by) digits += 1; /* they are never equal */
  if (exponent >= 255) return as_float(0x7f800000u);
  return exponent > 0 ? as_float(((uint)exponent << 23) + digits - 0x800000u) : 0.0f;
}

/* The nearest number of f16, halves to even. */
static inline float near_half(float x) {
  const uint bits = as_uint(x), size = SIZE(bits);
  if (size < 0x38800000u) return rint(x * 16777216.0f) / 16777216.0f;
  const uint near = (size + 0xfffu + ((size >> 13) & 1u)) & 0xffffe000u;
  return as_float((bits ^ size) | (near < 0x47800000u ? near : 0x7f800000u));
}

/* Of `n` numbers `step` apart, the first one of the largest size. */
static inline uint largest(__local const uint* from, int n, int step) {
  uint peak = from[0];
  for (int i = 1; i < n; i++)
    if (SIZE(from[i * step]) > SIZE(peak)) peak = from[i * step];
  return peak;
}

/* Stores block `span` of `n`, of which MEMBERS neighbouring items of a group have four elements
   each: item l has `four`. All items of the group call it; blocks that are not valid are not
   stored. `tmp` has a place for each item, which others may write to behind a barrier. */
static inline void put_bytes(float4 four, long span, long n, int valid, int l, __global uchar* to,
                             __local uint* tmp) {
  const int first = l / 8 * 8, member = l % MEMBERS;
  const float v[4] = {four.x, four.y, four.z, four.w};
  uint peak = 0;
  for (int i = 0; i < 4; i++)
    if (SIZE(as_uint(v[i])) > SIZE(peak)) peak = as_uint(v[i]);
  tmp[l] = peak;
  barrier(CLK_LOCAL_MEM_FENCE);
  peak = largest(tmp + first, 8, 1);
#ifdef TO_q8_K
  barrier(CLK_LOCAL_MEM_FENCE);
  tmp[l] = peak;
  barrier(CLK_LOCAL_MEM_FENCE);
  peak = largest(tmp + (l - member), 8, 8);
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  const uint most = SIZE(peak);
  const int is_finite = most < 0x7f800000u, is_normal = is_finite && most >= 0x800000u;
  float inverse = is_normal ? divided(127.0f, as_float(most)) : 0.0f;
#ifdef TO_q8_K
  if (peak == most) inverse = -inverse; /* the first value of the largest size becomes -127 */
  const float scale = inverse == 0.0f ? 0.0f : divided(1.0f, fabs(inverse));
  const float d = inverse < 0.0f ? -scale : scale;
#else
  const float scale = is_normal ? divided(as_float(most), 127.0f) : 0.0f, d = near_half(scale);
#endif
  uint codes = 0;
  int sum = 0;
  for (int i = 0; i < 4; i++) {
    const float scaled = is_finite ? v[i] * inverse : 0.0f;
    /* a scale so small that its inverse is infinite */
    const int code = fabs(scaled) <= 127.5f ? clamp((int)rint(scaled), -127, 127) : 0;
    sum += code;
    codes |= (uint)(code & 255) << (8 * i);
  }
  tmp[l] = as_uint(sum);
  barrier(CLK_LOCAL_MEM_FENCE);
  if (!valid) return;
  const long unit = span * (SPAN / 32) + member / 8;
  ((__global uint*)(to + 32 * unit))[l - first] = codes;
  if (l == first) {
    int s0 = 0, s1 = 0;
    for (int i = 0; i < 4; i++) {
      s0 += as_int(tmp[l + i]);
      s1 += as_int(tmp[l + 4 + i]);
    }
    __global uint* head = (__global uint*)(to + 32 * (n * (SPAN / 32)) + 8 * unit);
    head[0] = is_finite ? as_uint(d) : most;
#ifdef TO_q8_1
    head[1] = as_uint(near_half(scale * (float)(s0 + s1)));
#else
    head[1] = (uint)(s0 & 0xffff) | ((uint)s1 << 16);
#endif
  }
}
#endif
