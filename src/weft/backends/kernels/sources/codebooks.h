/* unit_ functions of the formats whose codes name vectors of a codebook. Python puts the GRID_
   arrays in front of the source: each entry has the levels of a vector in two bits each (iq3:
   three), the first level in the lowest bits. */

#if defined(USE_iq2_xxs) || defined(USE_iq2_xs) || defined(USE_iq2_s)
__constant float LEVELS_IQ2[4] = {8, 25, 43, 0};
#endif
#ifdef USE_iq3_xxs
__constant float LEVELS_IQ3[8] = {4, 12, 20, 28, 36, 44, 52, 62};
#endif

/* Eight signs: -1 where bit i is set, otherwise 1. */
static inline float8 minus(uint bits) {
  const uint8 place = make_uint8(0, 1, 2, 3, 4, 5, 6, 7);
  return 1.0f - 2.0f * convert_float8(((uint8)bits >> place) & 1u);
}

/* The same from seven bits; the eighth sign makes the number of minuses even. */
static inline float8 even_minus(uint bits) { return minus(bits | ((popcount(bits) & 1u) << 7)); }

static inline uint ushort_at(bytes_t p) { return p[0] | ((uint)p[1] << 8); }

#define TWO_BITS(t, c)                                                                        \
  make_float8(t[(c) & 3], t[(c) >> 2 & 3], t[(c) >> 4 & 3], t[(c) >> 6 & 3], t[(c) >> 8 & 3], \
              t[(c) >> 10 & 3], t[(c) >> 12 & 3], t[(c) >> 14 & 3])
#define THREE_BITS(t, c) make_float4(t[(c) & 7], t[(c) >> 3 & 7], t[(c) >> 6 & 7], t[(c) >> 9 & 7])

#ifdef USE_iq2_xxs
static inline void unit_iq2_xxs(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 66 * (u / 8), q = b + 2 + 8 * (u % 8);
  uint more = ushort_at(q + 4) | (ushort_at(q + 6) << 16);
  float d = half_at(b) * (0.5f + (float)(more >> 28)) * 0.25f;
  float8 v[4];
  for (int i = 0; i < 4; i++) {
    uint code = GRID_iq2_xxs[q[i]];
    v[i] = TWO_BITS(LEVELS_IQ2, code) * even_minus((more >> (7 * i)) & 127u) * d;
  }
  *lo = make_float16(v[0], v[1]);
  *hi = make_float16(v[2], v[3]);
}
#endif

#ifdef USE_iq2_xs
static inline void unit_iq2_xs(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 74 * (u / 8), q = b + 2 + 8 * (u % 8);
  uint scales = b[66 + u % 8];
  float d = half_at(b) * 0.25f;
  float8 v[4];
  for (int i = 0; i < 4; i++) {
    uint entry = ushort_at(q + 2 * i), code = GRID_iq2_xs[entry & 511u];
    float scale = d * (0.5f + (float)(scales >> (4 * (i / 2)) & 15u));
    v[i] = TWO_BITS(LEVELS_IQ2, code) * even_minus(entry >> 9) * scale;
  }
  *lo = make_float16(v[0], v[1]);
  *hi = make_float16(v[2], v[3]);
}
#endif

#ifdef USE_iq2_s
static inline void unit_iq2_s(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 82 * (u / 8), q = b + 2 + 4 * (u % 8), signs = b + 34 + 4 * (u % 8);
  uint high = b[66 + u % 8], scales = b[74 + u % 8];
  float d = half_at(b) * 0.25f;
  float8 v[4];
  for (int i = 0; i < 4; i++) {
    uint code = GRID_iq2_s[q[i] | ((high >> (2 * i) & 3u) << 8)];
    float scale = d * (0.5f + (float)(scales >> (4 * (i / 2)) & 15u));
    v[i] = TWO_BITS(LEVELS_IQ2, code) * minus(signs[i]) * scale;
  }
  *lo = make_float16(v[0], v[1]);
  *hi = make_float16(v[2], v[3]);
}
#endif

#ifdef USE_iq3_xxs
static inline void unit_iq3_xxs(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 98 * (u / 8), q = b + 2 + 8 * (u % 8), s = b + 66 + 4 * (u % 8);
  uint more = ushort_at(s) | (ushort_at(s + 2) << 16);
  float d = half_at(b) * (0.5f + (float)(more >> 28)) * 0.5f;
  float8 v[4];
  for (int i = 0; i < 4; i++) {
    uint first = GRID_iq3_xxs[q[2 * i]], second = GRID_iq3_xxs[q[2 * i + 1]];
    float8 levels = make_float8(THREE_BITS(LEVELS_IQ3, first), THREE_BITS(LEVELS_IQ3, second));
    v[i] = levels * even_minus((more >> (7 * i)) & 127u) * d;
  }
  *lo = make_float16(v[0], v[1]);
  *hi = make_float16(v[2], v[3]);
}
#endif

#ifdef USE_iq3_s
/* The levels are odd numbers. */
static inline float4 odd_levels(uint code) {
  const uint4 place = make_uint4(0, 3, 6, 9);
  return convert_float4((((uint4)code >> place) & 7u) * 2u + 1u);
}

static inline void unit_iq3_s(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 110 * (u / 8), q = b + 2 + 8 * (u % 8), signs = b + 74 + 4 * (u % 8);
  uint high = b[66 + u % 8], scale = b[106 + u % 8 / 2] >> (4 * (u % 2)) & 15u;
  float d = half_at(b) * (float)(1 + 2 * scale);
  float8 v[4];
  for (int i = 0; i < 4; i++) {
    uint first = GRID_iq3_s[q[2 * i] | ((high >> (2 * i) & 1u) << 8)];
    uint second = GRID_iq3_s[q[2 * i + 1] | ((high >> (2 * i + 1) & 1u) << 8)];
    v[i] = make_float8(odd_levels(first), odd_levels(second)) * minus(signs[i]) * d;
  }
  *lo = make_float16(v[0], v[1]);
  *hi = make_float16(v[2], v[3]);
}
#endif

#if defined(USE_iq1_s) || defined(USE_iq1_m)
/* The levels are -1, 0, 1. */
static inline float8 three_levels(uint code) {
  const uint8 place = make_uint8(0, 2, 4, 6, 8, 10, 12, 14);
  return convert_float8(((uint8)code >> place) & 3u) - 1.0f;
}
#endif

#ifdef USE_iq1_s
static inline void unit_iq1_s(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 50 * (u / 8), q = b + 2 + 4 * (u % 8);
  uint high = ushort_at(b + 34 + 2 * (u % 8));
  float d = half_at(b) * (float)(2 * (high >> 12 & 7u) + 1);
  float delta = high & 0x8000u ? -0.125f : 0.125f;
  float8 v[4];
  for (int i = 0; i < 4; i++) {
    uint code = GRID_iq1_s[q[i] | ((high >> (3 * i) & 7u) << 8)];
    v[i] = (three_levels(code) + delta) * d;
  }
  *lo = make_float16(v[0], v[1]);
  *hi = make_float16(v[2], v[3]);
}
#endif

#ifdef USE_iq1_m
static inline float half_of_bits(uint bits) {
  ushort short_bits = (ushort)bits;
  return vload_half(0, (const half*)&short_bits);
}

static inline void unit_iq1_m(bytes_t row, int u, float16* lo, float16* hi) {
  bytes_t b = row + 56 * (u / 8), q = b + 4 * (u % 8), s = b + 48;
  /* The top four bits of each of the four scale words make up the f16 d, the first word lowest. */
  float d =
      half_of_bits((uint)(s[1] >> 4) | (s[3] & 240u) | ((s[5] & 240u) << 4) | ((s[7] & 240u) << 8));
  uint scales = ushort_at(s + 2 * (u % 8 / 2)) >> (6 * (u % 2));
  float8 v[4];
  for (int i = 0; i < 4; i++) {
    uint high = b[32 + 2 * (u % 8) + i / 2] >> (4 * (i % 2)) & 15u;
    uint code = GRID_iq1_s[q[i] | ((high & 7u) << 8)];
    float scale = d * (float)(2 * (scales >> (3 * (i / 2)) & 7u) + 1);
    v[i] = (three_levels(code) + (high & 8u ? -0.125f : 0.125f)) * scale;
  }
  *lo = make_float16(v[0], v[1]);
  *hi = make_float16(v[2], v[3]);
}
#endif
