/* Makes activations bytes (activations.h). A group has whole blocks, grid (elements / 4). */

__kernel void quantize(bytes_t px, tensor_t x, __global uchar* to, LOCAL(uint) tmp) {
  const int l = get_local_id(0), spans = x.ne[0] / SPAN;
  const long n = (long)spans * x.ne[1] * x.ne[2] * x.ne[3], at = get_global_id(0) / MEMBERS;
  /* blocks behind the end are computed again and not stored: barriers need all items */
  const long span = at < n ? at : n - 1, column = span / spans;
  const int i1 = column % x.ne[1], i2 = column / x.ne[1] % x.ne[2];
  bytes_t from =
      px + at4(&x, span % spans * SPAN + 4 * (l % MEMBERS), i1, i2, column / x.ne[1] / x.ne[2]);
  const long nb = x.nb[0];
  const float4 four = make_float4(load(from, x.type), load(from + nb, x.type),
                                  load(from + 2 * nb, x.type), load(from + 3 * nb, x.type));
  put_bytes(four, span, n, at < n, l, to, tmp);
}
