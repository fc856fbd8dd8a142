/* Weights in planes as signed bytes with scales, and activations as bytes with a scale for each 32
   (weft.backends.kernels.ops.bytes). Built for a format of the weights (CODES_ and its name).
   Element e of a unit of weights is

     d[e / 16] * (code - OFFSET) + m[e / 16],  d[0] = d[1] unless TWO

   MIN: how many m there are; where there is one, it counts for all elements. WHOLE: there is one m,
   no offset, and activations are of the form q8_1. */

typedef struct {
  uint4 lo, hi; /* the codes of elements 0..15 and 16..31, four a word */
  float d0, d1, m0, m1;
} unit_t;

/* c + the sum of four products of signed bytes. */
#ifdef BUILT_IN_DOT4
#define dot4(a, b, c) (built_in_dot4(a, b) + (c))
#elif defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
#define dot4(a, b, c) (dot_4x8packed_ss_int(a, b) + (c))
#else
static inline int dot4(uint a, uint b, int c) {
  const char4 x = as_char4(a), y = as_char4(b);
  return (int)x.x * y.x + (int)x.y * y.y + (int)x.z * y.z + (int)x.w * y.w + c;
}
#endif

static inline int dot16(uint4 a, uint4 b) {
  return dot4(a.w, b.w, dot4(a.z, b.z, dot4(a.y, b.y, dot4(a.x, b.x, 0))));
}

#define NIBBLES 0x0f0f0f0fu

static inline uint4 nibbles(planes_t row, long i) { return ((const __global uint4*)row.all)[i]; }

/* Bits 0..15 to bit 4 of each of 16 bytes. */
static inline uint4 fifths(uint bits) {
  const uint4 fours = make_uint4(bits, bits >> 4, bits >> 8, bits >> 12) & 15u;
  return ((fours * 0x00204081u) & 0x01010101u) << 4;
}

/* Two bits of elements 0..15 and 16..31, of which byte b has those of b, b + 8, ... */
static inline uint4 first_twos(uint2 q) {
  return make_uint4(q.x, q.y, q.x >> 2, q.y >> 2) & 0x03030303u;
}
static inline uint4 second_twos(uint2 q) {
  return make_uint4(q.x >> 4, q.y >> 4, q.x >> 6, q.y >> 6) & 0x03030303u;
}

/* Nibbles that name one of 16 levels. A table in local memory has, for each byte of two nibbles,
   the level of the low one in byte 0 and that of the high one in byte 2. */
#if defined(CODES_iq4_nl) || defined(CODES_iq4_xs)
#define LEVELS CODES_IQ4
#elif defined(CODES_mxfp4)
#define LEVELS CODES_FP4
#endif

#ifdef LEVELS
#define TABLE , levels
#define TABLE_PARAM , __local uint* levels
#define KERNEL_TABLE , LOCAL(uint) levels
#define FILL_TABLE(item, items) fill_table(levels, item, items)
static inline void fill_table(__local uint* levels, int item, int items) {
  for (int b = item; b < 256; b += items)
    levels[b] = ((uint)(int)LEVELS[b & 15] & 255u) | (((uint)(int)LEVELS[b >> 4] & 255u) << 16);
  barrier(CLK_LOCAL_MEM_FENCE);
}
/* The levels of eight nibbles: of the low ones of each byte, and of the high ones. */
static inline uint2 levels_of(uint word, __local uint* levels) {
  const uint x = levels[word & 255u] | (levels[(word >> 8) & 255u] << 8);
  const uint y = levels[(word >> 16) & 255u] | (levels[word >> 24] << 8);
  return make_uint2((x & 0xffffu) | (y << 16), (x >> 16) | (y & 0xffff0000u));
}
static inline unit_t named(uint4 q, float d, __local uint* levels) {
  const uint2 a = levels_of(q.x, levels), b = levels_of(q.y, levels);
  const uint2 c = levels_of(q.z, levels), e = levels_of(q.w, levels);
  unit_t unit = {make_uint4(a.x, b.x, c.x, e.x), make_uint4(a.y, b.y, c.y, e.y), d, d, 0.0f, 0.0f};
  return unit;
}
#else
#define TABLE
#define TABLE_PARAM
#define KERNEL_TABLE
#define FILL_TABLE(item, items)
#endif

/* ---- codes(): unit `i` of all units of the weights ---- */

#ifdef CODES_q4_0
#define OFFSET 8
static inline unit_t codes(planes_t row, long i) {
  const uint4 q = nibbles(row, i);
  const float d = half_of(behind(row, 16), i);
  unit_t unit = {q & NIBBLES, (q >> 4) & NIBBLES, d, d, 0.0f, 0.0f};
  return unit;
}
#endif

#ifdef CODES_q4_1
#define WHOLE
static inline unit_t codes(planes_t row, long i) {
  const uint4 q = nibbles(row, i);
  bytes_t dm = behind(row, 16) + 4 * i;
  const float d = half_at(dm);
  unit_t unit = {q & NIBBLES, (q >> 4) & NIBBLES, d, d, half_at(dm + 2), 0.0f};
  return unit;
}
#endif

#ifdef CODES_q5_0
#define OFFSET 16
static inline unit_t codes(planes_t row, long i) {
  const uint4 q = nibbles(row, i);
  const uint high = bits_of(behind(row, 16), i);
  const float d = half_of(behind(row, 20), i);
  unit_t unit = {
      (q & NIBBLES) | fifths(high), ((q >> 4) & NIBBLES) | fifths(high >> 16), d, d, 0.0f, 0.0f};
  return unit;
}
#endif

#ifdef CODES_q5_1
#define WHOLE
static inline unit_t codes(planes_t row, long i) {
  const uint4 q = nibbles(row, i);
  const uint high = bits_of(behind(row, 16), i);
  bytes_t dm = behind(row, 20) + 4 * i;
  const float d = half_at(dm);
  unit_t unit = {(q & NIBBLES) | fifths(high),
                 ((q >> 4) & NIBBLES) | fifths(high >> 16),
                 d,
                 d,
                 half_at(dm + 2),
                 0.0f};
  return unit;
}
#endif

#ifdef CODES_q8_0
static inline unit_t codes(planes_t row, long i) {
  const float d = half_of(behind(row, 32), i);
  unit_t unit = {nibbles(row, i), nibbles(row, row.n + i), d, d, 0.0f, 0.0f};
  return unit;
}
#endif

#ifdef CODES_q4_K
#define MIN 1
static inline unit_t codes(planes_t row, long i) {
  const uint4 q = nibbles(row, i);
  const float2 dm = scales_of(behind(row, 16), i);
  unit_t unit = {q & NIBBLES, (q >> 4) & NIBBLES, dm.x, dm.x, -dm.y, 0.0f};
  return unit;
}
#endif

#ifdef CODES_q5_K
#define MIN 1
static inline unit_t codes(planes_t row, long i) {
  const uint4 q = nibbles(row, i);
  const float2 dm = scales_of(behind(row, 16), i);
  const uint high = bits_of(behind(row, 18), i);
  unit_t unit = {(q & NIBBLES) | fifths(high),
                 ((q >> 4) & NIBBLES) | fifths(high >> 16),
                 dm.x,
                 dm.x,
                 -dm.y,
                 0.0f};
  return unit;
}
#endif

#ifdef CODES_q6_K
#define OFFSET 32
#define TWO
static inline unit_t codes(planes_t row, long i) {
  const uint4 q = nibbles(row, i);
  const uint2 up = ((const __global uint2*)behind(row, 16))[i];
  const char2 s = ((const __global char2*)behind(row, 24))[i];
  const float d = half_of(behind(row, 26), i / 8);
  unit_t unit = {(q & NIBBLES) | (first_twos(up) << 4),
                 ((q >> 4) & NIBBLES) | (second_twos(up) << 4),
                 d * s.x,
                 d * s.y,
                 0.0f,
                 0.0f};
  return unit;
}
#endif

#ifdef CODES_q2_K
#define MIN 2
#define TWO
static inline unit_t codes(planes_t row, long i) {
  const uint2 q = ((const __global uint2*)row.all)[i];
  const uchar2 s = ((const __global uchar2*)behind(row, 8))[i];
  bytes_t dm = behind(row, 10) + 4 * (i / 8);
  const float d = half_at(dm), m = -half_at(dm + 2);
  unit_t unit = {first_twos(q),  second_twos(q), d * (s.x & 15),
                 d * (s.y & 15), m * (s.x >> 4), m * (s.y >> 4)};
  return unit;
}
#endif

#ifdef CODES_q3_K
#define OFFSET 4
#define TWO
static inline unit_t codes(planes_t row, long i) {
  const int k = (int)(i % 8);
  const uint2 q = ((const __global uint2*)row.all)[i];
  const uint third = bits_of(behind(row, 8), i);
  bytes_t scales = behind(row, 12) + 12 * (i / 8);
  const float d = half_of(behind(row, 12) + 12 * (row.n / 8), i / 8);
  unit_t unit = {first_twos(q) | (fifths(third) >> 2),
                 second_twos(q) | (fifths(third >> 16) >> 2),
                 d * scale_q3(scales, 2 * k),
                 d * scale_q3(scales, 2 * k + 1),
                 0.0f,
                 0.0f};
  return unit;
}
#endif

#ifdef CODES_iq4_nl
static inline unit_t codes(planes_t row, long i TABLE_PARAM) {
  return named(nibbles(row, i), half_of(behind(row, 16), i) TABLE);
}
#endif

#ifdef CODES_iq4_xs
static inline unit_t codes(planes_t row, long i TABLE_PARAM) {
  const int k = (int)(i % 8);
  bytes_t b = behind(row, 16) + 8 * (i / 8);
  const uint2 head = *(const __global uint2*)b;
  const int scale = ((head.y >> (4 * k)) & 15) | (((head.x >> (16 + 2 * k)) & 3) << 4);
  return named(nibbles(row, i), half_at(b) * (scale - 32) TABLE);
}
#endif

#ifdef CODES_mxfp4
static inline unit_t codes(planes_t row, long i TABLE_PARAM) {
  return named(nibbles(row, i), half_e8m0(behind(row, 16)[i]) TABLE);
}
#endif

#ifndef OFFSET
#define OFFSET 0
#endif
#ifndef MIN
#define MIN 0
#endif

/* ---- units of weights by units of activations ---- */

/* sum + the product of two units: of the sums of products i0 and i1 of their halves (both in i0
   unless TWO), the scales of the weights, and the head of the activations: their scale, and the
   sums of their halves in 16 bits each; with WHOLE the scaled sum of both. */
static inline float scaled(float sum, int i0, int i1, float d0, float d1, float m0, float m1,
                           uint2 head) {
  const float d = as_float(head.x);
#ifdef WHOLE
  return fma(m0, as_float(head.y), fma(d0 * d, (float)i0, sum));
#else
  const int s0 = as_int(head.y << 16) >> 16, s1 = as_int(head.y) >> 16;
#ifdef TWO
  sum = fma(d0 * d, (float)(i0 - OFFSET * s0), sum);
  sum = fma(d1 * d, (float)(i1 - OFFSET * s1), sum);
#else
  sum = fma(d0 * d, (float)(i0 - OFFSET * (s0 + s1)), sum);
#endif
#if MIN == 1
  sum = fma(m0, d * (float)(s0 + s1), sum);
#elif MIN == 2
  sum = fma(m0, d * (float)s0, sum);
  sum = fma(m1, d * (float)s1, sum);
#endif
  return sum;
#endif
}

/* Activations as weights are: `all` codes, `n` units, the `first` one of a column. */
static inline planes_t columns_of(bytes_t p, const tensor_t* x, long column) {
  const long units = x->ne[0] / 32;
  planes_t columns = {p, units * x->ne[1] * x->ne[2] * x->ne[3], column * units};
  return columns;
}

static inline uint2 head_of(planes_t x, long i) {
  return ((const __global uint2*)behind(x, 32))[i];
}
