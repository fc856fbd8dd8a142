/* Activations as bytes (weft.backends.kernels.ops.bytes). Eight neighbouring items make a unit, each
   of four elements; a group has whole units, grid (8 * units). A unit with a number that is not
   finite has a scale that is not, so that all sums with it are NaN or infinite, too. */
__kernel void quantize(bytes_t px, tensor_t x, __global uchar* to, LOCAL(uint) tmp) {
  const int l = get_local_id(0), first = l / 8 * 8, units = x.ne[0] / 32;
  const long n = (long)units * x.ne[1] * x.ne[2] * x.ne[3], at = get_global_id(0) / 8;
  /* units behind the end are computed again and not stored: barriers need all items */
  const long unit = at < n ? at : n - 1, column = unit / units;
  const int i1 = column % x.ne[1], i2 = column / x.ne[1] % x.ne[2];
  bytes_t from = px + at4(&x, unit % units * 32 + 4 * (l - first), i1, i2,
                          column / x.ne[1] / x.ne[2]);
  float v[4];
  uint most = 0; /* sizes as bits, of which a NaN has the largest */
  for (int i = 0; i < 4; i++) {
    v[i] = load(from + i * x.nb[0], x.type);
    most = max(most, as_uint(v[i]) & 0x7fffffffu);
  }
  tmp[l] = most;
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < 8; i++) most = max(most, tmp[first + i]);
  barrier(CLK_LOCAL_MEM_FENCE);
  const int is_finite = most < 0x7f800000u;
  const float d = as_float(most) / 127.0f;
  const float inverse = is_finite && d > 0.0f ? 1.0f / d : 0.0f;
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
  if (at >= n) return;
  ((__global uint*)(to + 32 * unit))[l - first] = codes;
  if (l == first) {
    int s0 = 0, s1 = 0;
    for (int i = 0; i < 4; i++) {
      s0 += as_int(tmp[l + i]);
      s1 += as_int(tmp[l + 4 + i]);
    }
    __global uint* head = (__global uint*)(to + 32 * n + 8 * unit);
    head[0] = is_finite ? as_uint(d) : most;
    head[1] = (uint)(s0 & 0xffff) | ((uint)s1 << 16);
  }
}
