/* GLU (glu.cl says what it is) whose results are there as floats and as bytes for the products that
   read them. All is f32, results have no gaps and rows are whole units. Eight threads make a unit,
   each of four elements; grid (units / 16), groups of 128. */

extern "C" __global__ void __launch_bounds__(128)
    glu_bytes(const uchar* px, tensor_t x, const uchar* pg, tensor_t g, uchar* pd, tensor_t d,
              uchar* to, int op, int from_x, int from_gate, float alpha, float limit) {
  const int units = d.ne[0] / 32;
  const long n = (long)units * d.ne[1] * d.ne[2] * d.ne[3];
  const long at = (long)blockIdx.x * 16 + threadIdx.x / 8;
  /* units behind the end are computed again and not stored: shuffles need all threads */
  const long unit = at < n ? at : n - 1, row = unit / units;
  const int i1 = (int)(row % d.ne[1]), i2 = (int)(row / d.ne[1] % d.ne[2]);
  const int i3 = (int)(row / d.ne[1] / d.ne[2]);
  const int i0 = (int)(unit % units) * 32 + 4 * ((int)threadIdx.x % 8);
  const float* values = (const float*)(px + at4(&x, from_x + i0, i1, i2, i3));
  const float* gates = (const float*)(pg + at4(&g, from_gate + i0, i1, i2, i3));
  float v[4];
#pragma unroll
  for (int e = 0; e < 4; e++) v[e] = gated(op, values[e], gates[e], alpha, limit);
  if (at < n)
#pragma unroll
    for (int e = 0; e < 4; e++) ((float*)(pd + at4(&d, i0, i1, i2, i3)))[e] = v[e];
  store_unit(v, to, unit, n, at < n);
}
