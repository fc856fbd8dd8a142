/* Rows of f32, f16 or bf16 by one to eight columns of activations. Built for the type of the weights
   (W), of the activations (X), and the number of columns (COLS) and rows (ROWS) of a warp. Rows
   begin at multiples of 16 bytes and have a multiple of eight elements.

   Lane l of a warp adds eights l, l + 32, ... in that order, then lanes are added in pairs that are
   16, 8, 4, 2 and 1 apart. So a result does not depend on how many columns or rows there are. */

enum { WARPS = 4 };

/* Groups of (32, WARPS); grid (rows / (WARPS * ROWS), columns / COLS, ne2 * ne3). */
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gemv_float(const uchar* pw, tensor_t w, const uchar* px, tensor_t x, const uchar* pb,
               tensor_t bias, uchar* pd, tensor_t d, int has_bias) {
  const int row = (int)(blockIdx.x * WARPS + threadIdx.y) * ROWS, column = (int)blockIdx.y * COLS;
  const int i2 = (int)blockIdx.z % d.ne[2], i3 = (int)blockIdx.z / d.ne[2];
  const uchar* weights = pw + w.at + i2 / (d.ne[2] / w.ne[2]) * w.nb[2] +
                         i3 / (d.ne[3] / w.ne[3]) * w.nb[3];
  const uchar* activations = px + x.at + i2 * x.nb[2] + i3 * x.nb[3];
  const uchar *rows[ROWS], *columns[COLS];
  float sums[ROWS][COLS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) rows[r] = weights + min(row + r, w.ne[1] - 1) * w.nb[1];
#pragma unroll
  for (int c = 0; c < COLS; c++)
    columns[c] = activations + min(column + c, x.ne[1] - 1) * x.nb[1];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int c = 0; c < COLS; c++) sums[r][c] = 0.0f;
#pragma unroll 2
  for (int i = (int)threadIdx.x; i < w.ne[0] / 8; i += 32) {
    float v[ROWS][8];
#pragma unroll
    for (int r = 0; r < ROWS; r++) W::eight_once(rows[r], i, v[r]);
#pragma unroll
    for (int c = 0; c < COLS; c++) {
      float u[8];
      X::four(columns[c], 8 * i, u);
      X::four(columns[c], 8 * i + 4, u + 4);
#pragma unroll
      for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int k = 0; k < 8; k++) sums[r][c] = fmaf(v[r][k], u[k], sums[r][c]);
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int c = 0; c < COLS; c++)
#pragma unroll
      for (int m = 16; m > 0; m /= 2) sums[r][c] += __shfl_xor_sync(0xffffffffu, sums[r][c], m);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if (row + r >= d.ne[0]) return;
    const float add = has_bias ? *(const float*)(pb + bias.at + (row + r) * bias.nb[0]) : 0.0f;
#pragma unroll
    for (int c = 0; c < COLS; c++)
      if (column + c < d.ne[1])
        *(float*)(pd + d.at + (row + r) * d.nb[0] + (column + c) * d.nb[1] + i2 * d.nb[2] +
                  i3 * d.nb[3]) = sums[r][c] + add;
  }
}
