/* Activations as bytes. Built for the type of the activations (X). Eight threads make a unit, each
   of four elements; grid (units / 16), groups of 128. `to` has 40 bytes a unit. */

extern "C" __global__ void __launch_bounds__(128) quantize(const uchar* px, tensor_t x, uchar* to) {
  const int units = x.ne[0] / 32;
  const long n = (long)units * x.ne[1] * x.ne[2] * x.ne[3];
  const long at = (long)blockIdx.x * 16 + threadIdx.x / 8;
  /* units behind the end are computed again and not stored: shuffles need all threads */
  const long unit = at < n ? at : n - 1, column = unit / units;
  const int i1 = (int)(column % x.ne[1]), i2 = (int)(column / x.ne[1] % x.ne[2]);
  const int i3 = (int)(column / x.ne[1] / x.ne[2]),
            i0 = (int)(unit % units) * 32 + 4 * ((int)threadIdx.x % 8);
  const uchar* from = px + x.at + i1 * x.nb[1] + i2 * x.nb[2] + i3 * x.nb[3];
  float v[4];
  load_4(from, i0, v);
  store_unit(v, to, unit, n, at < n);
}
