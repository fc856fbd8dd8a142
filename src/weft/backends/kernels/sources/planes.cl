/* Converts blocks of weights, as in files, to planes (planes.h); built for a format F. An item
   converts a unit of 32 elements. In formats with blocks of 256, the first of the eight units also
   converts the head of the block. */

/* The 4-bit codes of unit `k`, elements 0..15 in the low halves and 16..31 in the high halves, out
   of bytes that hold two units each. */
static inline uchar16 low_bits(bytes_t q, int k) {
  uchar16 a = vload16(0, q + 32 * (k / 2)), b = vload16(1, q + 32 * (k / 2));
  if (k % 2) return (a >> (uchar)4) | (b & (uchar)0xf0);
  return (a & (uchar)15) | (b << (uchar)4);
}

/* Write the bytes at `from`, aligned or not, to element `i` of the plane behind planes that have
   `before` bytes per unit altogether. */
#define PUT16(before, i, from) \
  ((__global uint4*)(to + (before) * n))[i] = as_uint4(vload16(0, from))
#define PUT8(before, i, from) ((__global uint2*)(to + (before) * n))[i] = as_uint2(vload8(0, from))
#define PUT4(before, i, from) ((__global uint*)(to + (before) * n))[i] = as_uint(vload4(0, from))
#define PUT2(before, i, from) \
  ((__global ushort*)(to + (before) * n))[i] = as_ushort(vload2(0, from))

#define BLOCK_q4_0 18
static inline void pack_q4_0(bytes_t b, __global uchar* to, long n, long i) {
  PUT16(0, i, b + 2);
  PUT2(16, i, b);
}

#define BLOCK_q4_1 20
static inline void pack_q4_1(bytes_t b, __global uchar* to, long n, long i) {
  PUT16(0, i, b + 4);
  PUT4(16, i, b);
}

#define BLOCK_q5_0 22
static inline void pack_q5_0(bytes_t b, __global uchar* to, long n, long i) {
  PUT16(0, i, b + 6);
  PUT4(16, i, b + 2);
  PUT2(20, i, b);
}

#define BLOCK_q5_1 24
static inline void pack_q5_1(bytes_t b, __global uchar* to, long n, long i) {
  PUT16(0, i, b + 8);
  PUT4(16, i, b + 4);
  PUT4(20, i, b);
}

#define BLOCK_q8_0 34
static inline void pack_q8_0(bytes_t b, __global uchar* to, long n, long i) {
  PUT16(0, i, b + 2);
  PUT16(16, i, b + 18);
  PUT2(32, i, b);
}

#define BLOCK_iq4_nl 18
#define pack_iq4_nl pack_q4_0

#define BLOCK_mxfp4 17
static inline void pack_mxfp4(bytes_t b, __global uchar* to, long n, long i) {
  PUT16(0, i, b + 1);
  to[16 * n + i] = b[0];
}

#define BLOCK_q4_K 144
static inline void pack_q4_K(bytes_t b, __global uchar* to, long n, long i) {
  vstore16(low_bits(b + 16, i % 8), i, to);
  if (i % 8 == 0) PUT16(16, i / 8, b);
}

/* The two bits of 32 elements that are at bit `at` of the bytes at `from`: byte b of the result has
   those of elements b, b + 8, b + 16 and b + 24. */
static inline uchar8 two_bits(bytes_t from, uchar at) {
  uchar8 bits = 0;
  for (int e = 0; e < 4; e++) bits |= ((vload8(e, from) >> at) & (uchar)3) << (uchar)(2 * e);
  return bits;
}

/* The bit `k` of 32 bytes. */
static inline uint bits_across(bytes_t from, int k) {
  uint bits = 0;
  for (int e = 0; e < 32; e++) bits |= (uint)((from[e] >> k) & 1) << e;
  return bits;
}

#define BLOCK_q5_K 176
static inline void pack_q5_K(bytes_t b, __global uchar* to, long n, long i) {
  const int k = i % 8;
  vstore16(low_bits(b + 48, k), i, to);
  if (k == 0) PUT16(16, i / 8, b);
  *(__global uint*)(to + 18 * n + 4 * i) = bits_across(b + 16, k);
}

#define BLOCK_q6_K 210
static inline void pack_q6_K(bytes_t b, __global uchar* to, long n, long i) {
  const int half_of_block = (i % 8) / 4, k = i % 4;
  const uchar down = 4 * (k >> 1);
  bytes_t low = b + 64 * half_of_block + 32 * (k & 1), high = b + 128 + 32 * half_of_block;
  uchar16 q0 = (vload16(0, low) >> down) & (uchar)15, q1 = vload16(1, low) >> down;
  vstore16(q0 | (q1 << (uchar)4), i, to);
  vstore8(two_bits(high, (uchar)(2 * k)), i, to + 16 * n);
  PUT2(24, i, b + 192 + 8 * half_of_block + 2 * k);
  if (i % 8 == 0) PUT2(26, i / 8, b + 208);
}

#define BLOCK_q2_K 84
static inline void pack_q2_K(bytes_t b, __global uchar* to, long n, long i) {
  const int k = i % 8;
  vstore8(two_bits(b + 16 + 32 * (k / 4), (uchar)(2 * (k % 4))), i, to);
  PUT2(8, i, b + 2 * k);
  if (k == 0) PUT4(10, i / 8, b + 80);
}

#define BLOCK_q3_K 110
static inline void pack_q3_K(bytes_t b, __global uchar* to, long n, long i) {
  const int k = i % 8;
  vstore8(two_bits(b + 32 + 32 * (k / 4), (uchar)(2 * (k % 4))), i, to);
  *(__global uint*)(to + 8 * n + 4 * i) = bits_across(b, k);
  if (k > 0) return;
  __global uchar* scales = to + 12 * n + 12 * (i / 8);
  for (int e = 0; e < 12; e++) scales[e] = b[96 + e];
  *(__global ushort*)(to + 12 * n + n / 8 * 12 + 2 * (i / 8)) = as_ushort(vload2(0, b + 108));
}

#define BLOCK_iq4_xs 136
static inline void pack_iq4_xs(bytes_t b, __global uchar* to, long n, long i) {
  PUT16(0, i, b + 8 + 16 * (i % 8));
  if (i % 8 == 0) PUT8(16, i / 8, b);
}

/* Converts the units first..first+n_units of `n`; their blocks begin at `from`. */
__kernel void pack(bytes_t from, __global uchar* to, long n, long first, long n_units,
                   int units_a_block) {
  const long u = get_global_id(0);
  if (u >= n_units) return;
  JOIN(pack_, F)(from + u / units_a_block * JOIN(BLOCK_, F), to, n, first + u);
}
