/* Weights in planes by a few columns of activations as bytes (activations.h). Built for the format
   of the weights, for the LANES items that share ROWS rows, and for COLS columns.

   A lane loads whole units: neighbouring lanes read neighbouring words of 16 bytes. Lane l adds
   units l, l + LANES, ... in that order, then lanes are added in pairs that are LANES / 2, ..., 2
   and 1 apart. So a result does not depend on how many columns or rows there are. */

/* Leaves the products of rows `row`, ... and columns from `x.first` on in `tmp`, result r * COLS +
   c at place (r * COLS + c) * items of the first lane's. Rows and columns behind the end are those
   before it again. */
static inline void multiply(planes_t w, int row, int rows, planes_t x, int columns, int n,
                            __local float* tmp TABLE_PARAM) {
  const int l = ITEM, items = get_local_size(0), width = min(LANES, IN_STEP);
  float sums[ROWS * COLS];
  for (int k = 0; k < ROWS * COLS; k++) sums[k] = 0.0f;
  for (int u = l % LANES; u < n; u += LANES) {
    unit_t units[ROWS];
    for (int r = 0; r < ROWS; r++)
      units[r] = codes(w, w.first + (long)min(row + r, rows - 1) * n + u TABLE);
    for (int c = 0; c < COLS; c++) {
      const long i = x.first + (long)min(c, columns - 1) * n + u;
      const uint4 lo = nibbles(x, 2 * i), hi = nibbles(x, 2 * i + 1);
      const uint2 head = head_of(x, i);
      for (int r = 0; r < ROWS; r++) {
        int i0 = dot16(units[r].lo, lo), i1 = dot16(units[r].hi, hi);
#ifndef TWO
        i0 += i1;
#endif
        sums[r * COLS + c] = scaled(sums[r * COLS + c], i0, i1, units[r].d0, units[r].d1,
                                    units[r].m0, units[r].m1, head);
      }
    }
  }
  if (LANES > width) {
    for (int k = 0; k < ROWS * COLS; k++) tmp[k * items + l] = sums[k];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = LANES / 2; s >= width; s /= 2) {
      if (l % LANES < s) {
        for (int k = 0; k < ROWS * COLS; k++) tmp[k * items + l] += tmp[k * items + l + s];
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (width == 1) return;
    for (int k = 0; k < ROWS * COLS; k++) sums[k] = tmp[k * items + l - l % LANES + l % width];
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int k = 0; k < ROWS * COLS; k++) {
    IN_STEPS(sums[k], width, SUM_OF)
    if (k % LANES == l % LANES) tmp[k * items + l - l % LANES] = sums[k]; /* who reads it, below */
  }
}

/* Grid (rows / ROWS * LANES, columns / COLS, ne2 * ne3). With ADDED, `total` gets the results plus
   `other`, too. */
#ifdef ADDED
#define FOR_TOTAL , bytes_t po, tensor_t other, __global uchar *pt, tensor_t total
#else
#define FOR_TOTAL
#endif
__kernel void gemv(const __global uint4* pw, tensor_t w, const __global uint4* px, tensor_t x,
                   bytes_t pb, tensor_t bias, __global uchar* pd, tensor_t d, int has_bias,
                   LOCAL(float) tmp KERNEL_TABLE FOR_TOTAL) {
  const int l = ITEM, lane = l % LANES, items = get_local_size(0);
  const int row = ITEM_OF_GRID / LANES * ROWS, column = get_global_id(1) * COLS;
  const int matrix = get_global_id(2), i2 = matrix % d.ne[2], i3 = matrix / d.ne[2];
  FILL_TABLE(l, items);
  planes_t weights =
      row_of_planes((bytes_t)pw, &w, 0, i2 / (d.ne[2] / w.ne[2]), i3 / (d.ne[3] / w.ne[3]));
  planes_t columns = columns_of((bytes_t)px, &x, (long)matrix * x.ne[1] + column);
  multiply(weights, row, d.ne[0], columns, d.ne[1] - column, w.ne[0] / 32, tmp TABLE);
  for (int k = lane; k < ROWS * COLS; k += LANES) {
    const int i0 = row + k / COLS, i1 = column + k % COLS;
    if (i0 >= d.ne[0] || i1 >= d.ne[1]) continue;
    float sum = tmp[k * items + l - lane];
    if (has_bias) sum += load(pb + bias.at + i0 * bias.nb[0], bias.type);
    *(__global float*)(pd + at4(&d, i0, i1, i2, i3)) = sum;
#ifdef ADDED
    *(__global float*)(pt + at4(&total, i0, i1, i2, i3)) =
        sum + *(const __global float*)(po + at4(&other, i0, i1, i2, i3));
#endif
  }
}

#if COLS == 1
/* Each slot of a token has a column and an expert; grid (rows / ROWS * LANES, slots, tokens). */
__kernel void gemv_experts(const __global uint4* pw, tensor_t w, const __global uint4* px,
                           tensor_t x, bytes_t pi, tensor_t ids, __global uchar* pd, tensor_t d,
                           __global int* fault, int step, LOCAL(float) tmp KERNEL_TABLE) {
  const int l = ITEM, lane = l % LANES, items = get_local_size(0);
  const int row = ITEM_OF_GRID / LANES * ROWS;
  const int slot = get_global_id(1), token = get_global_id(2);
  const long expert =
      checked_index(pi + at4(&ids, slot, token, 0, 0), ids.type, w.ne[2], fault, step);
  FILL_TABLE(l, items);
  planes_t weights = row_of_planes((bytes_t)pw, &w, 0, max(expert, 0L), 0);
  planes_t column = columns_of((bytes_t)px, &x, (long)token * x.ne[1] + slot % x.ne[1]);
  multiply(weights, row, d.ne[0], column, 1, w.ne[0] / 32, tmp TABLE);
  for (int r = lane; r < ROWS; r += LANES) {
    if (row + r < d.ne[0] && expert >= 0)
      *(__global float*)(pd + at4(&d, row + r, slot, token, 0)) = tmp[r * items + l - lane];
  }
}
#endif
