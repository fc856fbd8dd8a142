/* unit_ functions decode 32 consecutive elements (a unit) of a row in each weight format, as two
   vectors of floats. Blocks have the layouts of ggml's files. A format is compiled only when USE_
   and its name are defined, because every machine compiles anew. */

typedef const __global char* chars_t;

static inline float half_at(bytes_t p) { return load_f16(p); }
static inline float16 floats(uchar16 q) { return convert_float16(q); }

#ifdef USE_f32
static inline void unit_f32(bytes_t row, int u, float16* lo, float16* hi) {
  const __global float* x = (const __global float*)row + 32 * u;
  *lo = vload16(0, x);
  *hi = vload16(1, x);
}
#endif

#ifdef USE_f16
static inline void unit_f16(bytes_t row, int u, float16* lo, float16* hi) {
  const __global half* x = (const __global half*)row + 32 * u;
#ifdef NATIVE_HALF
  *lo = convert_float16(vload16(0, x));
  *hi = convert_float16(vload16(1, x));
#else
  *lo = vload_half16(0, x);
  *hi = vload_half16(1, x);
#endif
}
#endif

#ifdef USE_bf16
static inline void unit_bf16(bytes_t row, int u, float16* lo, float16* hi) {
  const __global ushort* x = (const __global ushort*)row + 32 * u;
  *lo = as_float16(convert_uint16(vload16(0, x)) << 16);
  *hi = as_float16(convert_uint16(vload16(1, x)) << 16);
}
#endif

#ifdef USE_q4_0
static inline void unit_q4_0(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 18 * u;
  float d = half_at(b);
  uchar16 q = vload16(0, b + 2);
  *lo = (floats(q & (uchar)15) - 8.0f) * d;
  *hi = (floats(q >> (uchar)4) - 8.0f) * d;
}
#endif

#ifdef USE_q4_1
static inline void unit_q4_1(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 20 * u;
  float d = half_at(b), m = half_at(b + 2);
  uchar16 q = vload16(0, b + 4);
  *lo = floats(q & (uchar)15) * d + m;
  *hi = floats(q >> (uchar)4) * d + m;
}
#endif

/* Element i is 16 where bit i of `bits` is set, otherwise 0. */
static inline uchar16 fifth_bits(uint bits) {
  const uint16 place = make_uint16(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return convert_uchar16((((uint16)bits >> place) & 1u) << 4);
}

static inline uint uint_at(bytes_t p) { return as_uint(vload4(0, p)); }

#ifdef USE_q5_0
static inline void unit_q5_0(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 22 * u;
  float d = half_at(b);
  uint high = uint_at(b + 2);
  uchar16 q = vload16(0, b + 6);
  *lo = (floats((q & (uchar)15) | fifth_bits(high)) - 16.0f) * d;
  *hi = (floats((q >> (uchar)4) | fifth_bits(high >> 16)) - 16.0f) * d;
}
#endif

#ifdef USE_q5_1
static inline void unit_q5_1(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 24 * u;
  float d = half_at(b), m = half_at(b + 2);
  uint high = uint_at(b + 4);
  uchar16 q = vload16(0, b + 8);
  *lo = floats((q & (uchar)15) | fifth_bits(high)) * d + m;
  *hi = floats((q >> (uchar)4) | fifth_bits(high >> 16)) * d + m;
}
#endif

#ifdef USE_q8_0
static inline void unit_q8_0(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 34 * u;
  float d = half_at(b);
  *lo = convert_float16(vload16(0, (chars_t)(b + 2))) * d;
  *hi = convert_float16(vload16(1, (chars_t)(b + 2))) * d;
}
#endif

/* Scale and minimum `i` of q4_K and q5_K: six bits each in twelve bytes. */
static inline uchar2 scale_min(bytes_t s, int i) {
  if (i < 4) return make_uchar2(s[i] & 63, s[i + 4] & 63);
  return make_uchar2((s[i + 4] & 15) | ((s[i - 4] >> 6) << 4),
                     (s[i + 4] >> 4) | ((s[i] >> 6) << 4));
}

#ifdef USE_q4_K
static inline void unit_q4_K(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 144 * (u / 8);
  const int k = u % 8;
  uchar2 sm = scale_min(b + 4, k);
  float d = half_at(b) * sm.x, m = half_at(b + 2) * sm.y;
  uchar shift = 4 * (k & 1);
  *lo = floats((vload16(0, b + 16 + 32 * (k / 2)) >> shift) & (uchar)15) * d - m;
  *hi = floats((vload16(1, b + 16 + 32 * (k / 2)) >> shift) & (uchar)15) * d - m;
}
#endif

#ifdef USE_q5_K
static inline void unit_q5_K(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 176 * (u / 8);
  const int k = u % 8;
  uchar2 sm = scale_min(b + 4, k);
  float d = half_at(b) * sm.x, m = half_at(b + 2) * sm.y;
  uchar shift = 4 * (k & 1), bit = k;
  uchar16 q0 = (vload16(0, b + 48 + 32 * (k / 2)) >> shift) & (uchar)15;
  uchar16 q1 = (vload16(1, b + 48 + 32 * (k / 2)) >> shift) & (uchar)15;
  q0 |= ((vload16(0, b + 16) >> bit) & (uchar)1) << (uchar)4;
  q1 |= ((vload16(1, b + 16) >> bit) & (uchar)1) << (uchar)4;
  *lo = floats(q0) * d - m;
  *hi = floats(q1) * d - m;
}
#endif

#ifdef USE_q6_K
static inline void unit_q6_K(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 210 * (u / 8);
  const int n = (u % 8) / 4, k = u % 4;
  bytes_t low = b + 64 * n + 32 * (k & 1), high = b + 128 + 32 * n;
  chars_t s = (chars_t)(b + 192 + 8 * n + 2 * k);
  float d = half_at(b + 208);
  uchar shift = 4 * (k >> 1), up = 2 * k;
  uchar16 q0 = ((vload16(0, low) >> shift) & (uchar)15) |
               (((vload16(0, high) >> up) & (uchar)3) << (uchar)4);
  uchar16 q1 = ((vload16(1, low) >> shift) & (uchar)15) |
               (((vload16(1, high) >> up) & (uchar)3) << (uchar)4);
  *lo = (floats(q0) - 32.0f) * (d * s[0]);
  *hi = (floats(q1) - 32.0f) * (d * s[1]);
}
#endif

#ifdef USE_q2_K
static inline void unit_q2_K(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 84 * (u / 8);
  const int k = u % 8;
  bytes_t q = b + 16 + 32 * (k / 4), s = b + 2 * k;
  float d = half_at(b + 80), m = half_at(b + 82);
  uchar shift = 2 * (k % 4);
  *lo = floats((vload16(0, q) >> shift) & (uchar)3) * (d * (s[0] & 15)) - m * (s[0] >> 4);
  *hi = floats((vload16(1, q) >> shift) & (uchar)3) * (d * (s[1] & 15)) - m * (s[1] >> 4);
}
#endif

/* Scale `i` of q3_K: its four low bits are in the first eight bytes, its two high bits in the last
   four. */
static inline float scale_q3(bytes_t s, int i) {
  int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4;
  return (float)((low | (((s[8 + i % 4] >> (2 * (i / 4))) & 3) << 4)) - 32);
}

#ifdef USE_q3_K
static inline void unit_q3_K(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 110 * (u / 8);
  const int k = u % 8;
  bytes_t q = b + 32 + 32 * (k / 4);
  float d = half_at(b + 108);
  uchar shift = 2 * (k % 4), bit = k;
  uchar16 q0 = (vload16(0, q) >> shift) & (uchar)3, q1 = (vload16(1, q) >> shift) & (uchar)3;
  q0 |= ((vload16(0, b) >> bit) & (uchar)1) << (uchar)2;
  q1 |= ((vload16(1, b) >> bit) & (uchar)1) << (uchar)2;
  *lo = (floats(q0) - 4.0f) * (d * scale_q3(b + 96, 2 * k));
  *hi = (floats(q1) - 4.0f) * (d * scale_q3(b + 96, 2 * k + 1));
}
#endif

#ifdef USE_tq2_0
static inline void unit_tq2_0(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 66 * (u / 8);
  const int k = u % 8;
  bytes_t q = b + 32 * (k / 4);
  float d = half_at(b + 64);
  uchar shift = 2 * (k % 4);
  *lo = (floats((vload16(0, q) >> shift) & (uchar)3) - 1.0f) * d;
  *hi = (floats((vload16(1, q) >> shift) & (uchar)3) - 1.0f) * d;
}
#endif

/* Digit `n` of the five ternary digits in a byte, most significant first, less 1. */
static inline float16 ternary(uchar16 q, int n) {
  const uchar power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
  uchar16 r = q * power;
  return convert_float16((convert_ushort16(r) * (ushort)3) >> (ushort)8) - 1.0f;
}

#ifdef USE_tq1_0
static inline void unit_tq1_0(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 54 * (u / 8);
  const int k = u % 8;
  float d = half_at(b + 52);
  if (k < 5) {
    *lo = ternary(vload16(0, b), k) * d;
    *hi = ternary(vload16(1, b), k) * d;
    return;
  }
  *lo = ternary(vload16(2, b), 2 * (k - 5)) * d;
  if (k < 7) {
    *hi = ternary(vload16(2, b), 2 * (k - 5) + 1) * d;
    return;
  }
  uchar4 q = vload4(12, b);
  uchar16 all = make_uchar16(q, q, q, q);
  float4 first = LOW(LOW(ternary(all, 0))), second = LOW(LOW(ternary(all, 1)));
  float4 third = LOW(LOW(ternary(all, 2))), fourth = LOW(LOW(ternary(all, 3)));
  *hi = make_float16(first, second, third, fourth) * d;
}
#endif

#if defined(USE_iq4_nl) || defined(USE_iq4_xs) || defined(USE_mxfp4) || defined(USE_nvfp4) || \
    defined(USE_iq4_nl_planes) || defined(USE_iq4_xs_planes) || defined(USE_mxfp4_planes) ||  \
    defined(CODES_iq4_nl) || defined(CODES_iq4_xs) || defined(CODES_mxfp4)
__constant float CODES_IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
__constant float CODES_FP4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

#define LOOK_UP(t, q)                                                                           \
  make_float16(t[q.s0], t[q.s1], t[q.s2], t[q.s3], t[q.s4], t[q.s5], t[q.s6], t[q.s7], t[q.s8], \
               t[q.s9], t[q.sa], t[q.sb], t[q.sc], t[q.sd], t[q.se], t[q.sf])
#endif

#ifdef USE_iq4_nl
static inline void unit_iq4_nl(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 18 * u;
  float d = half_at(b);
  uchar16 q = vload16(0, b + 2), q0 = q & (uchar)15, q1 = q >> (uchar)4;
  *lo = LOOK_UP(CODES_IQ4, q0) * d;
  *hi = LOOK_UP(CODES_IQ4, q1) * d;
}
#endif

#ifdef USE_iq4_xs
static inline void unit_iq4_xs(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 136 * (u / 8);
  const int k = u % 8;
  uint high = b[2] | ((uint)b[3] << 8);
  int scale = ((b[4 + k / 2] >> (4 * (k % 2))) & 15) | (((high >> (2 * k)) & 3) << 4);
  float d = half_at(b) * (scale - 32);
  uchar16 q = vload16(k, b + 8), q0 = q & (uchar)15, q1 = q >> (uchar)4;
  *lo = LOOK_UP(CODES_IQ4, q0) * d;
  *hi = LOOK_UP(CODES_IQ4, q1) * d;
}
#endif

/* Half of 2^(e - 127), exact even where it is subnormal. */
static inline float half_e8m0(uchar e) {
  return as_float(e < 2 ? 0x00200000u << e : (uint)(e - 1) << 23);
}

#ifdef USE_mxfp4
static inline void unit_mxfp4(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 17 * u;
  float d = half_e8m0(b[0]);
  uchar16 q = vload16(0, b + 1), q0 = q & (uchar)15, q1 = q >> (uchar)4;
  *lo = LOOK_UP(CODES_FP4, q0) * d;
  *hi = LOOK_UP(CODES_FP4, q1) * d;
}
#endif

#ifdef USE_nvfp4
/* Half of an unsigned E4M3 number with bias 7. Its sign bit is ignored; a NaN counts as 0. */
static inline float half_e4m3(uint bits) {
  bits &= 127u;
  if (bits == 127u) return 0.0f;
  uint exponent = bits >> 3, mantissa = bits & 7u;
  float normal = as_float(((exponent + 119u) << 23) | (mantissa << 20));
  return exponent ? normal : (float)mantissa * 0x1p-10f;
}

static inline void unit_nvfp4(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 36 * (u / 2), q = b + 4 + 16 * (u % 2);
  float d0 = half_e4m3(b[2 * (u % 2)]), d1 = half_e4m3(b[2 * (u % 2) + 1]);
  uchar8 p0 = vload8(0, q), p1 = vload8(1, q);
  uchar16 q0 = make_uchar16(p0 & (uchar)15, p0 >> (uchar)4);
  uchar16 q1 = make_uchar16(p1 & (uchar)15, p1 >> (uchar)4);
  *lo = LOOK_UP(CODES_FP4, q0) * d0;
  *hi = LOOK_UP(CODES_FP4, q1) * d1;
}
#endif

#ifdef USE_q1_0
static inline void unit_q1_0(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 18 * (u / 4), q = b + 2 + 4 * (u % 4);
  float d = half_at(b);
  *lo = (floats(fifth_bits(q[0] | ((uint)q[1] << 8))) * 0.125f - 1.0f) * d;
  *hi = (floats(fifth_bits(q[2] | ((uint)q[3] << 8))) * 0.125f - 1.0f) * d;
}
#endif

#ifdef USE_q2_0
#define FOUR_EACH(a, b, c, d) make_uchar16(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d)

static inline void unit_q2_0(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 18 * (u / 2);
  float d = half_at(b);
  uchar8 q = vload8(u % 2, b + 2);
  const uchar16 place = make_uchar16(0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6, 0, 2, 4, 6);
  uchar16 q0 = FOUR_EACH(q.s0, q.s1, q.s2, q.s3), q1 = FOUR_EACH(q.s4, q.s5, q.s6, q.s7);
  *lo = (floats((q0 >> place) & (uchar)3) - 1.0f) * d;
  *hi = (floats((q1 >> place) & (uchar)3) - 1.0f) * d;
}
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

static inline float sum16(float16 v) {
  float8 a = LOW(v) + HIGH(v);
  float4 b = LOW(a) + HIGH(a);
  float2 c = LOW(b) + HIGH(b);
  return c.x + c.y;
}
