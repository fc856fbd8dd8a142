/* Makes activations bytes with a scale for each 32 (codes.h, bytes_of), as weights in blocks meet
   them.

   A unit with a number that is not finite has a scale that is not, so that all sums with it are NaN
   or infinite, too. */

/* Stores unit `unit` of `n`, where eight neighbouring lanes have four elements each. All lanes of a
   warp call it; units that are not valid are not stored. */
static __device__ __forceinline__ void store_unit(const float v[4], uchar* to, long unit, long n,
                                                  bool valid) {
  const int lane = (int)threadIdx.x % 8;
  uint most = 0; /* sizes as bits, of which a NaN has the largest */
#pragma unroll
  for (int i = 0; i < 4; i++) most = max(most, __float_as_uint(v[i]) & 0x7fffffffu);
#pragma unroll
  for (int m = 1; m < 8; m *= 2) most = max(most, __shfl_xor_sync(0xffffffffu, most, m));
  const float d = __uint_as_float(most) / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
  uint codes = 0;
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float scaled = v[i] * inverse;
    /* a scale so small that its inverse is infinite, or a NaN */
    const int code = fabsf(scaled) <= 127.5f ? min(127, max(-127, __float2int_rn(scaled))) : 0;
    sum += code;
    codes |= (uint)(code & 255) << (8 * i);
  }
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  const int other = __shfl_xor_sync(0xffffffffu, sum, 4);
  if (!valid) return;
  ((uint*)(to + 32 * unit))[lane] = codes;
  if (lane == 0) {
    const uint sums = (uint)(sum & 0xffff) | (uint)other << 16;
    ((uint2*)(to + 32 * n))[unit] = make_uint2(__float_as_uint(d), sums);
  }
}
