/* Activations as signed bytes with a scale for each 32 (codes.h, bytes_of), as weights in blocks
   meet them. Built for the type of the activations (X). Eight threads make a unit, each of four
   elements; grid (units / 16), groups of 128. `to` has 40 bytes a unit.

   A unit with a number that is not finite has a scale that is not, so that all sums with it are NaN
   or infinite, too. */

extern "C" __global__ void __launch_bounds__(128)
    quantize(const uchar* px, tensor_t x, uchar* to) {
  const int units = x.ne[0] / 32, lane = threadIdx.x % 8;
  const long n = (long)units * x.ne[1] * x.ne[2] * x.ne[3];
  const long at = (long)blockIdx.x * 16 + threadIdx.x / 8;
  /* units behind the end are computed again and not stored: shuffles need all threads */
  const long unit = at < n ? at : n - 1, column = unit / units;
  const int i1 = (int)(column % x.ne[1]), i2 = (int)(column / x.ne[1] % x.ne[2]);
  const int i3 = (int)(column / x.ne[1] / x.ne[2]), i0 = (int)(unit % units) * 32 + 4 * lane;
  const uchar* from = px + x.at + i1 * x.nb[1] + i2 * x.nb[2] + i3 * x.nb[3];
  float v[4];
  load_4(from, i0, v);
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
  if (at >= n) return;
  ((uint*)(to + 32 * unit))[lane] = codes;
  if (lane == 0) {
    const uint sums = (uint)(sum & 0xffff) | (uint)other << 16;
    ((uint2*)(to + 32 * n))[unit] = make_uint2(__float_as_uint(d), sums);
  }
}
