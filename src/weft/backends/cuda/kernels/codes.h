/* Weights in planes (weft.backends.kernels.planes describes the layout) as signed bytes and scales.
   A format is a struct of this form; element e of a unit of 32 is

     d[e / 16] * (code - OFFSET) + m[e / 16],  d[0] = d[1] unless TWO

   MIN: how many m there are; where there is one, it counts for all elements. CODES: planes of 16
   bytes a unit; codes(): from word t of each, elements 4 t .. 4 t + 3 and 16 + 4 t .. of the unit
   as bytes. EXTRA: bytes of a unit in a plane behind, which has the other bits, four a plane; a
   format with 12 has eight and then four, which are the word `bits` of codes(). extra_word(): the
   number of the word that codes() takes as `extra`. head_t: what is loaded for the scales. */

struct planes_of {
  const uchar* all;
  long n; /* units of the whole tensor */
};

struct scales_t {
  float d0, d1, m0, m1;
};

static __device__ __forceinline__ scales_t one_scale(float d) {
  scales_t s = {d, d, 0.0f, 0.0f};
  return s;
}

static __device__ __forceinline__ uint low_nibbles(uint w) { return w & 0x0f0f0f0fu; }

/* Bit i of `bits`, of four, to bit 4 of byte i. */
static __device__ __forceinline__ uint fifths(uint bits) {
  return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4;
}

/* What most formats have in common: 16 bytes of nibbles and nothing else. */
struct nibbles {
  enum { CODES = 1, OFFSET = 0, TWO = 0, MIN = 0, EXTRA = 0, EXTRA_AT = 0 };
  static __device__ __forceinline__ void codes(uint w0, uint, uint, uint, int, uint& lo, uint& hi) {
    lo = low_nibbles(w0);
    hi = low_nibbles(w0 >> 4);
  }
  static __device__ __forceinline__ int extra_word(int) { return 0; }
};

/* The same with a fifth bit, in four bytes a unit. */
struct fives : nibbles {
  enum { EXTRA = 4 };
  static __device__ __forceinline__ void codes(uint w0, uint, uint extra, uint, int t, uint& lo,
                                               uint& hi) {
    lo = low_nibbles(w0) | fifths(extra >> (4 * t));
    hi = low_nibbles(w0 >> 4) | fifths(extra >> (16 + 4 * t));
  }
};

/* A scale of two bytes, or a scale and a minimum of four, behind AT bytes a unit. */
template <int AT>
struct half_scale {
  typedef half_t head_t;
  static __device__ __forceinline__ head_t head(planes_of p, long i) {
    return ((const half_t*)(p.all + AT * p.n))[i];
  }
  static __device__ __forceinline__ scales_t scales(head_t head, long) {
    return one_scale(half_to_float(head));
  }
};

template <int AT>
struct half_scale_min {
  typedef uint head_t;
  static __device__ __forceinline__ head_t head(planes_of p, long i) {
    return ((const uint*)(p.all + AT * p.n))[i];
  }
  static __device__ __forceinline__ scales_t scales(head_t head, long) {
    scales_t s = {low_half(head), low_half(head), high_half(head), 0.0f};
    return s;
  }
};

struct q4_0 : nibbles, half_scale<16> {
  enum { OFFSET = 8 };
};

struct q4_1 : nibbles, half_scale_min<16> {
  enum { MIN = 1 };
};

struct q5_0 : fives, half_scale<20> {
  enum { OFFSET = 16, EXTRA_AT = 16 };
};

struct q5_1 : fives, half_scale_min<20> {
  enum { MIN = 1, EXTRA_AT = 16 };
};

struct q8_0 : nibbles, half_scale<32> {
  enum { CODES = 2 };
  static __device__ __forceinline__ void codes(uint w0, uint w1, uint, uint, int, uint& lo,
                                               uint& hi) {
    lo = w0;
    hi = w1;
  }
};

/* The head of a block of 256 of q4_K and q5_K: d, dmin, six-bit scales and minima. */
struct k_head {
  enum { MIN = 1 };
  typedef uint4 head_t;
  static __device__ __forceinline__ head_t head(planes_of p, long i) {
    return ((const uint4*)(p.all + 16 * p.n))[i / 8];
  }
  static __device__ __forceinline__ scales_t scales(head_t head, long i) {
    const int k = (int)(i % 8), at = 8 * (k & 3);
    const uint y = head.y >> at, z = head.z >> at, w = head.w >> at;
    const uint scale = k < 4 ? y & 63u : (w & 15u) | (y >> 2 & 48u);
    const uint least = k < 4 ? z & 63u : (w >> 4 & 15u) | (z >> 2 & 48u);
    const float d = low_half(head.x) * (float)scale;
    scales_t s = {d, d, -(high_half(head.x) * (float)least), 0.0f};
    return s;
  }
};

struct q4_K : nibbles, k_head {
  enum { MIN = 1 };
};

struct q5_K : fives, k_head {
  enum { MIN = 1, EXTRA_AT = 18 };
};

/* Two bits of the elements of a word's bytes: word t % 2 of a unit has those of 4 t .. 4 t + 3 at
   bit 2 (t / 2), those of 16 + 4 t .. four bits on. */
static __device__ __forceinline__ void twos(uint extra, int t, uint& lo, uint& hi) {
  const uint two = extra >> (2 * (t >> 1));
  lo = two & 0x03030303u;
  hi = two >> 4 & 0x03030303u;
}

struct q6_K : nibbles {
  enum { OFFSET = 32, TWO = 1, EXTRA = 8, EXTRA_AT = 16 };
  struct head_t {
    uint scales;
    half_t d;
  };
  static __device__ __forceinline__ head_t head(planes_of p, long i) {
    head_t head = {((const ushort*)(p.all + 24 * p.n))[i],
                   ((const half_t*)(p.all + 26 * p.n))[i / 8]};
    return head;
  }
  static __device__ __forceinline__ scales_t scales(head_t head, long) {
    const float d = half_to_float(head.d);
    scales_t s = {d * (float)(signed char)(head.scales & 255u),
                  d * (float)(signed char)(head.scales >> 8), 0.0f, 0.0f};
    return s;
  }
  static __device__ __forceinline__ int extra_word(int t) { return t & 1; }
  static __device__ __forceinline__ void codes(uint w0, uint, uint extra, uint, int t, uint& lo,
                                               uint& hi) {
    twos(extra, t, lo, hi);
    lo = low_nibbles(w0) | lo << 4;
    hi = low_nibbles(w0 >> 4) | hi << 4;
  }
};

struct q2_K : nibbles {
  enum { CODES = 0, TWO = 1, MIN = 2, EXTRA = 8 };
  struct head_t {
    uint scales, d;
  };
  static __device__ __forceinline__ head_t head(planes_of p, long i) {
    head_t head = {((const ushort*)(p.all + 8 * p.n))[i], ((const uint*)(p.all + 10 * p.n))[i / 8]};
    return head;
  }
  static __device__ __forceinline__ scales_t scales(head_t head, long) {
    const float d = low_half(head.d), m = -high_half(head.d);
    scales_t s = {d * (float)(head.scales & 15u), d * (float)(head.scales >> 8 & 15u),
                  m * (float)(head.scales >> 4 & 15u), m * (float)(head.scales >> 12)};
    return s;
  }
  static __device__ __forceinline__ int extra_word(int t) { return t & 1; }
  static __device__ __forceinline__ void codes(uint, uint, uint extra, uint, int t, uint& lo,
                                               uint& hi) {
    twos(extra, t, lo, hi);
  }
};

struct q3_K : nibbles {
  enum { CODES = 0, OFFSET = 4, TWO = 1, EXTRA = 12 };
  struct head_t {
    uint low, high; /* the words with the bits of two scales */
    half_t d;
  };
  static __device__ __forceinline__ head_t head(planes_of p, long i) {
    const uchar* scales = p.all + 12 * p.n;
    const uint* words = (const uint*)(scales + 12 * (i / 8));
    head_t head = {words[i % 4 / 2], words[2], ((const half_t*)(scales + p.n / 8 * 12))[i / 8]};
    return head;
  }
  static __device__ __forceinline__ scales_t scales(head_t head, long i) {
    const int k = (int)(i % 8);
    const uint low = head.low >> (16 * (k % 2) + 4 * (k / 4));
    const uint high = head.high >> (16 * (k % 2) + 2 * (k / 2));
    const float d = half_to_float(head.d);
    scales_t s = {d * (float)((int)((low & 15u) | (high & 3u) << 4) - 32),
                  d * (float)((int)((low >> 8 & 15u) | (high >> 8 & 3u) << 4) - 32), 0.0f, 0.0f};
    return s;
  }
  static __device__ __forceinline__ int extra_word(int t) { return t & 1; }
  static __device__ __forceinline__ void codes(uint, uint, uint extra, uint bits, int t, uint& lo,
                                               uint& hi) {
    twos(extra, t, lo, hi);
    lo |= fifths(bits >> (4 * t)) >> 2;
    hi |= fifths(bits >> (16 + 4 * t)) >> 2;
  }
};

/* Nibbles that name one of 16 bytes: four words of them. */
template <uint T0, uint T1, uint T2, uint T3>
struct looked_up : nibbles {
  /* The bytes that four nibbles name, of which bit 3 chooses the upper eight. */
  static __device__ __forceinline__ uint four(uint named) {
    const uint which = named & 0x7777u, low = __byte_perm(T0, T1, which);
    const uint high = __byte_perm(T2, T3, which);
    /* each nibble takes byte i of `low`, or byte i of `high` where bit 3 is set */
    return __byte_perm(low, high, 0x3210u | (named & 0x8888u) >> 1);
  }
  static __device__ __forceinline__ void codes(uint w0, uint, uint, uint, int, uint& lo, uint& hi) {
    const uint a = four(w0 & 0xffffu), b = four(w0 >> 16);
    lo = __byte_perm(a, b, 0x6420u);
    hi = __byte_perm(a, b, 0x7531u);
  }
};

/* -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113 */
typedef looked_up<0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u> levels_of_iq4;
/* twice 0 .5 1 1.5 2 3 4 6, and the same below zero */
typedef looked_up<0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu> levels_of_fp4;

struct iq4_nl : levels_of_iq4, half_scale<16> {};

struct iq4_xs : levels_of_iq4 {
  typedef uint2 head_t;
  static __device__ __forceinline__ head_t head(planes_of p, long i) {
    return ((const uint2*)(p.all + 16 * p.n))[i / 8];
  }
  static __device__ __forceinline__ scales_t scales(head_t head, long i) {
    const int k = (int)(i % 8);
    const uint scale = (head.y >> (4 * k) & 15u) | (head.x >> (16 + 2 * k) & 3u) << 4;
    return one_scale(low_half(head.x) * (float)((int)scale - 32));
  }
};

struct mxfp4 : levels_of_fp4 {
  typedef uchar head_t;
  static __device__ __forceinline__ head_t head(planes_of p, long i) {
    return (p.all + 16 * p.n)[i];
  }
  /* half of 2^(e - 127), exact where it is subnormal */
  static __device__ __forceinline__ scales_t scales(head_t e, long) {
    return one_scale(__uint_as_float(e < 2 ? 0x00200000u << e : (uint)(e - 1) << 23));
  }
};

/* ---- activations ---- */

/* Activations as bytes, 32 of them with one scale: first the codes of all units, then a unit_t of
   each. quantize.cu makes them. */
struct unit_t {
  float d;
  short s0, s1; /* the sums of the codes of elements 0..15 and 16..31 */
};

struct bytes_of {
  const uchar* all;
  long n; /* units of all columns */
};

static __device__ __forceinline__ unit_t unit_of(uint2 bits) {
  unit_t unit = {__uint_as_float(bits.x), (short)(bits.y & 0xffffu), (short)(bits.y >> 16)};
  return unit;
}

static __device__ __forceinline__ uint word_of(uint4 v, int t) {
  return t == 0 ? v.x : t == 1 ? v.y : t == 2 ? v.z : v.w;
}
