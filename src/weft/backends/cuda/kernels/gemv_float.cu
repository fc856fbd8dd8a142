/* Rows of f32, f16 or bf16 by one to eight columns of activations. Built for the type of the
   weights (W), of the activations (X), and the number of columns (COLS) and rows (ROWS) of a warp.
   Rows begin at multiples of 16 bytes and have a multiple of eight elements.

   Lane l of a warp adds eights l, l + 32, ... in that order, then lanes are added in pairs that are
   16, 8, 4, 2 and 1 apart. So a result does not depend on how many columns or rows there are. */

enum { WARPS = 4 };

/* The products of rows and columns, in the first lane. */
static __device__ __forceinline__ void add_rows(float sums[ROWS][COLS], const uchar* const* rows,
                                                const uchar* const* columns, int n) {
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int c = 0; c < COLS; c++) sums[r][c] = 0.0f;
#pragma unroll 2
  for (int i = (int)threadIdx.x; i < n; i += 32) {
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
}

/* Groups of (32, WARPS); grid (rows / (WARPS * ROWS), columns / COLS, ne2 * ne3). */
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gemv_float(const uchar* pw, tensor_t w, const uchar* px, tensor_t x, const uchar* pb,
               tensor_t bias, uchar* pd, tensor_t d, int has_bias) {
  const int row = (int)(blockIdx.x * WARPS + threadIdx.y) * ROWS, column = (int)blockIdx.y * COLS;
  const int i2 = (int)blockIdx.z % d.ne[2], i3 = (int)blockIdx.z / d.ne[2];
  const uchar* weights =
      pw + w.at + i2 / (d.ne[2] / w.ne[2]) * w.nb[2] + i3 / (d.ne[3] / w.ne[3]) * w.nb[3];
  const uchar* activations = px + x.at + i2 * x.nb[2] + i3 * x.nb[3];
  const uchar *rows[ROWS], *columns[COLS];
  float sums[ROWS][COLS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) rows[r] = weights + min(row + r, w.ne[1] - 1) * w.nb[1];
#pragma unroll
  for (int c = 0; c < COLS; c++) columns[c] = activations + min(column + c, x.ne[1] - 1) * x.nb[1];
  add_rows(sums, rows, columns, w.ne[0] / 8);
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

#if COLS == 1
/* Each slot of a token has a column and an expert; grid (rows / (WARPS * ROWS), slots, tokens). */
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    gemv_float_experts(const uchar* pw, tensor_t w, const uchar* px, tensor_t x, const uchar* pi,
                       tensor_t ids, uchar* pd, tensor_t d, int* fault, int step) {
  const int row = (int)(blockIdx.x * WARPS + threadIdx.y) * ROWS;
  const int slot = (int)blockIdx.y, token = (int)blockIdx.z;
  const int expert = *(const int*)(pi + ids.at + slot * ids.nb[0] + token * ids.nb[1]);
  if (expert < 0 || expert >= w.ne[2]) {
    note_index(fault, step, expert, w.ne[2]);
    return;
  }
  const uchar* columns[1] = {px + x.at + slot % x.ne[1] * x.nb[1] + token * x.nb[2]};
  const uchar* rows[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    rows[r] = pw + w.at + expert * w.nb[2] + min(row + r, w.ne[1] - 1) * w.nb[1];
  float sums[ROWS][1];
  add_rows(sums, rows, columns, w.ne[0] / 8);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    if (row + r < d.ne[0])
      *(float*)(pd + d.at + (row + r) * d.nb[0] + slot * d.nb[1] + token * d.nb[2]) = sums[r][0];
}
#endif
