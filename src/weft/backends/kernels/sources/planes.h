/* unit_ functions, as in formats.h, for weights in planes (weft.backends.kernels.planes describes
   the layout). A row is given by the number of its first unit. Neighbouring items read neighbouring
   words, each with one aligned load. */

typedef struct {
  bytes_t all; /* the first plane */
  long n;      /* units in the whole tensor */
  long first;  /* the first unit of the row */
} planes_t;

static inline planes_t row_of_planes(bytes_t p, const tensor_t* t, long i1, long i2, long i3) {
  const long units = t->ne[0] / 32;
  planes_t row = {p + t->at, units * t->ne[1] * t->ne[2] * t->ne[3],
                  ((i3 * t->ne[2] + i2) * t->ne[1] + i1) * units};
  return row;
}

/* The 16 bytes of unit `i` in plane `plane`, where all planes before it have 16 bytes per unit. */
static inline uchar16 quants(planes_t row, int plane, long i) {
  return as_uchar16(((const __global uint4*)row.all)[plane * row.n + i]);
}

/* The plane behind planes that have `bytes` bytes per unit altogether. */
static inline bytes_t behind(planes_t row, int bytes) { return row.all + bytes * row.n; }

static inline float half_of(bytes_t plane, long i) { return half_at(plane + 2 * i); }

#ifdef USE_q4_0_planes
static inline void unit_q4_0_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i);
  float d = half_of(behind(row, 16), i);
  *lo = (floats(q & (uchar)15) - 8.0f) * d;
  *hi = (floats(q >> (uchar)4) - 8.0f) * d;
}
#endif

#ifdef USE_q4_1_planes
static inline void unit_q4_1_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i);
  bytes_t dm = behind(row, 16) + 4 * i;
  float d = half_at(dm), m = half_at(dm + 2);
  *lo = floats(q & (uchar)15) * d + m;
  *hi = floats(q >> (uchar)4) * d + m;
}
#endif

static inline uint bits_of(bytes_t plane, long i) { return ((const __global uint*)plane)[i]; }

#ifdef USE_q5_0_planes
static inline void unit_q5_0_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i);
  uint high = bits_of(behind(row, 16), i);
  float d = half_of(behind(row, 20), i);
  *lo = (floats((q & (uchar)15) | fifth_bits(high)) - 16.0f) * d;
  *hi = (floats((q >> (uchar)4) | fifth_bits(high >> 16)) - 16.0f) * d;
}
#endif

#ifdef USE_q5_1_planes
static inline void unit_q5_1_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i);
  uint high = bits_of(behind(row, 16), i);
  bytes_t dm = behind(row, 20) + 4 * i;
  float d = half_at(dm), m = half_at(dm + 2);
  *lo = floats((q & (uchar)15) | fifth_bits(high)) * d + m;
  *hi = floats((q >> (uchar)4) | fifth_bits(high >> 16)) * d + m;
}
#endif

#ifdef USE_q8_0_planes
static inline void unit_q8_0_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  float d = half_of(behind(row, 32), i);
  *lo = convert_float16(as_char16(quants(row, 0, i))) * d;
  *hi = convert_float16(as_char16(quants(row, 1, i))) * d;
}
#endif

/* Scale and minimum `k` of a block of q4_K or q5_K. `head` is the first 16 bytes of the block; y, z
   and w hold the six-bit scales and minima. */
static inline uchar2 scale_min_of(uint4 head, int k) {
  const uint at = 8 * (k & 3);
  const uint y = head.y >> at, z = head.z >> at, w = head.w >> at;
  if (k < 4) return make_uchar2(y & 63, z & 63);
  return make_uchar2((w & 15) | ((y >> 2) & 48), ((w >> 4) & 15) | ((z >> 2) & 48));
}

/* Scale and minimum of unit `i`, times those of its block, whose head is in plane `heads`. */
static inline float2 scales_of(bytes_t heads, long i) {
  bytes_t b = heads + 16 * (i / 8);
  uchar2 sm = scale_min_of(*(const __global uint4*)b, (int)(i % 8));
  return make_float2(half_at(b) * sm.x, half_at(b + 2) * sm.y);
}

#ifdef USE_q4_K_planes
static inline void unit_q4_K_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i);
  float2 dm = scales_of(behind(row, 16), i);
  *lo = floats(q & (uchar)15) * dm.x - dm.y;
  *hi = floats(q >> (uchar)4) * dm.x - dm.y;
}
#endif

#ifdef USE_q5_K_planes
static inline void unit_q5_K_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i);
  float2 dm = scales_of(behind(row, 16), i);
  uint high = bits_of(behind(row, 18), i);
  *lo = floats((q & (uchar)15) | fifth_bits(high)) * dm.x - dm.y;
  *hi = floats((q >> (uchar)4) | fifth_bits(high >> 16)) * dm.x - dm.y;
}
#endif

/* Two bits of the elements 0..15 and 16..31, of which byte b has those of b, b + 8, ... */
static inline uchar16 low_twos(uchar8 q) {
  return make_uchar16(q & (uchar)3, (q >> (uchar)2) & (uchar)3);
}
static inline uchar16 high_twos(uchar8 q) {
  return make_uchar16((q >> (uchar)4) & (uchar)3, q >> (uchar)6);
}

#ifdef USE_q6_K_planes
static inline void unit_q6_K_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i);
  uchar8 up = as_uchar8(((const __global uint2*)behind(row, 16))[i]);
  char2 s = ((const __global char2*)behind(row, 24))[i];
  float d = half_of(behind(row, 26), i / 8);
  *lo = (floats((q & (uchar)15) | (low_twos(up) << (uchar)4)) - 32.0f) * (d * s.x);
  *hi = (floats((q >> (uchar)4) | (high_twos(up) << (uchar)4)) - 32.0f) * (d * s.y);
}
#endif

#ifdef USE_q2_K_planes
static inline void unit_q2_K_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar8 q = as_uchar8(((const __global uint2*)row.all)[i]);
  uchar2 s = ((const __global uchar2*)behind(row, 8))[i];
  bytes_t dm = behind(row, 10) + 4 * (i / 8);
  float d = half_at(dm), m = half_at(dm + 2);
  *lo = floats(low_twos(q)) * (d * (s.x & 15)) - m * (s.x >> 4);
  *hi = floats(high_twos(q)) * (d * (s.y & 15)) - m * (s.y >> 4);
}
#endif

#ifdef USE_q3_K_planes
static inline void unit_q3_K_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  const int k = (int)(i % 8);
  uchar8 q = as_uchar8(((const __global uint2*)row.all)[i]);
  uint third = bits_of(behind(row, 8), i);
  bytes_t scales = behind(row, 12) + 12 * (i / 8);
  float d = half_of(behind(row, 12) + 12 * (row.n / 8), i / 8);
  *lo = (floats(low_twos(q) | (fifth_bits(third) >> (uchar)2)) - 4.0f) *
        (d * scale_q3(scales, 2 * k));
  *hi = (floats(high_twos(q) | (fifth_bits(third >> 16) >> (uchar)2)) - 4.0f) *
        (d * scale_q3(scales, 2 * k + 1));
}
#endif

#ifdef USE_iq4_nl_planes
static inline void unit_iq4_nl_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i), q0 = q & (uchar)15, q1 = q >> (uchar)4;
  float d = half_of(behind(row, 16), i);
  *lo = LOOK_UP(CODES_IQ4, q0) * d;
  *hi = LOOK_UP(CODES_IQ4, q1) * d;
}
#endif

#ifdef USE_iq4_xs_planes
static inline void unit_iq4_xs_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  const int k = (int)(i % 8);
  uchar16 q = quants(row, 0, i), q0 = q & (uchar)15, q1 = q >> (uchar)4;
  bytes_t b = behind(row, 16) + 8 * (i / 8);
  uint2 head = *(const __global uint2*)b;
  int scale = ((head.y >> (4 * k)) & 15) | (((head.x >> (16 + 2 * k)) & 3) << 4);
  float d = half_at(b) * (scale - 32);
  *lo = LOOK_UP(CODES_IQ4, q0) * d;
  *hi = LOOK_UP(CODES_IQ4, q1) * d;
}
#endif

#ifdef USE_mxfp4_planes
static inline void unit_mxfp4_planes(planes_t row, int u, float16* lo, float16* hi) {
  const long i = row.first + u;
  uchar16 q = quants(row, 0, i), q0 = q & (uchar)15, q1 = q >> (uchar)4;
  float d = half_e8m0(behind(row, 16)[i]);
  *lo = LOOK_UP(CODES_FP4, q0) * d;
  *hi = LOOK_UP(CODES_FP4, q1) * d;
}
#endif

/* A row of weights, in the form that the unit_ function of their layout takes. */
#ifdef PLANES
typedef planes_t weights_t;
#define WEIGHTS_ROW(p, t, i1, i2, i3) row_of_planes(p, t, i1, i2, i3)
#else
typedef bytes_t weights_t;
#define WEIGHTS_ROW(p, t, i1, i2, i3) ((p) + at4(t, 0, i1, i2, i3))
#endif
