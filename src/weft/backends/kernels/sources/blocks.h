/* Encoders of blocks of 32 numbers, with the rounding of ggml's run-time converters. put_ functions
   read 32 numbers that are `nb` bytes apart into x and write a block. */

#define READ_BLOCK \
  float x[32];     \
  ONE_BY_ONE       \
  for (int i = 0; i < 32; i++) x[i] = load(from + i * nb, type);

#ifdef PUT_q8_0
static inline void put_q8_0(bytes_t from, long nb, int type, __global uchar* to) {
  READ_BLOCK
  float most = 0.0f;
  for (int i = 0; i < 32; i++) most = fmax(most, fabs(x[i]));
  float d = most / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  store_f16(to, d);
  for (int i = 0; i < 32; i++) to[2 + i] = (uchar)(char)round(x[i] * inverse);
}
#endif

/* The number of largest magnitude. */
static inline float farthest(const float* x) {
  float most = 0.0f, number = 0.0f;
  for (int i = 0; i < 32; i++) {
    if (fabs(x[i]) > most) {
      most = fabs(x[i]);
      number = x[i];
    }
  }
  return number;
}

#ifdef PUT_q4_0
static inline void put_q4_0(bytes_t from, long nb, int type, __global uchar* to) {
  READ_BLOCK
  float d = farthest(x) / -8.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  store_f16(to, d);
  for (int i = 0; i < 16; i++) {
    int a = min(15, (int)(char)(x[i] * inverse + 8.5f));
    int b = min(15, (int)(char)(x[i + 16] * inverse + 8.5f));
    to[2 + i] = (uchar)(a | (b << 4));
  }
}
#endif

#ifdef PUT_q4_1
static inline void put_q4_1(bytes_t from, long nb, int type, __global uchar* to) {
  READ_BLOCK
  float low = INFINITY, high = -INFINITY;
  for (int i = 0; i < 32; i++) {
    low = fmin(low, x[i]);
    high = fmax(high, x[i]);
  }
  float d = (high - low) / 15.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  store_f16(to, d);
  store_f16(to + 2, low);
  for (int i = 0; i < 16; i++) {
    int a = min(15, (int)(char)((x[i] - low) * inverse + 0.5f));
    int b = min(15, (int)(char)((x[i + 16] - low) * inverse + 0.5f));
    to[4 + i] = (uchar)(a | (b << 4));
  }
}
#endif

#ifdef PUT_q5_0
static inline void put_q5_0(bytes_t from, long nb, int type, __global uchar* to) {
  READ_BLOCK
  float d = farthest(x) / -16.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  uint high = 0;
  store_f16(to, d);
  for (int i = 0; i < 16; i++) {
    uint a = min(31, (int)(char)(x[i] * inverse + 16.5f));
    uint b = min(31, (int)(char)(x[i + 16] * inverse + 16.5f));
    to[6 + i] = (uchar)((a & 15) | ((b & 15) << 4));
    high |= ((a & 16) >> 4) << i;
    high |= ((b & 16) >> 4) << (i + 16);
  }
  vstore4(as_uchar4(high), 0, to + 2);
}
#endif

#ifdef PUT_q5_1
static inline void put_q5_1(bytes_t from, long nb, int type, __global uchar* to) {
  READ_BLOCK
  float low = INFINITY, most = -INFINITY;
  for (int i = 0; i < 32; i++) {
    low = fmin(low, x[i]);
    most = fmax(most, x[i]);
  }
  float d = (most - low) / 31.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  uint high = 0;
  store_f16(to, d);
  store_f16(to + 2, low);
  for (int i = 0; i < 16; i++) {
    uint a = (uchar)((x[i] - low) * inverse + 0.5f);
    uint b = (uchar)((x[i + 16] - low) * inverse + 0.5f);
    to[8 + i] = (uchar)((a & 15) | ((b & 15) << 4));
    high |= ((a & 16) >> 4) << i;
    high |= ((b & 16) >> 4) << (i + 16);
  }
  vstore4(as_uchar4(high), 0, to + 4);
}
#endif

#ifdef PUT_iq4_nl
__constant float LEVELS_PUT[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

/* The code of the nearest level, the upper one at a midpoint. It compares 2x with sums of levels,
   which are exact. */
static inline int nearest_level(float x) {
  int code = 15;
  ONE_BY_ONE
  for (int i = 0; i < 15; i++) code -= x + x < LEVELS_PUT[i] + LEVELS_PUT[i + 1];
  return code;
}

static inline void put_iq4_nl(bytes_t from, long nb, int type, __global uchar* to) {
  READ_BLOCK
  const float peak = farthest(x);
  float sum_qx = 0.0f, sum_q2 = 0.0f;
  const float inverse = fabs(peak) < 1e-15f ? 0.0f : 1.0f / (peak / -127.0f);
  const int zero = inverse == 0.0f;
  for (int i = 0; i < 16; i++) to[2 + i] = 0;
  ONE_BY_ONE
  for (int i = 0; i < 32; i++) {
    const int code = nearest_level(inverse * x[i]);
    const float q = LEVELS_PUT[code], wq = x[i] * x[i] * q;
    sum_qx += wq * x[i];
    sum_q2 += wq * q;
    if (!zero) to[2 + i % 16] |= (uchar)(code << (4 * (i / 16)));
  }
  store_f16(to, !zero && sum_q2 > 0.0f ? sum_qx / sum_q2 : 0.0f);
}
#endif
