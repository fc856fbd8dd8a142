/* Weights in planes by many columns of activations as bytes (activations.h). Built for the format
   of the weights, and for tiles of TILE rows and columns.

   A group of (TILE / 4)^2 items computes TILE x TILE results, each item 4 x 4 of them, TILE / 4
   rows and columns apart. STEP units of the rows and columns of a tile go to local memory as bytes:
   word t of row k at t * TILE + k, so that neighbouring items read neighbouring words. Units are
   added in order, so that a result does not depend on how many columns there are.

   With EXPERTS, a tile has columns of one expert, which experts.cl has sorted. */

#define SIDE (TILE / 4)
#define W_WORDS 12 /* of a unit of weights: codes, d0, d1, m0, m1 */
#define X_WORDS 10 /* of a unit of activations: codes, head */

#define PUT_CODES(to, lo, hi) \
  (to)[0] = (lo).x;           \
  (to)[TILE] = (lo).y;        \
  (to)[2 * TILE] = (lo).z;    \
  (to)[3 * TILE] = (lo).w;    \
  (to)[4 * TILE] = (hi).x;    \
  (to)[5 * TILE] = (hi).y;    \
  (to)[6 * TILE] = (hi).z;    \
  (to)[7 * TILE] = (hi).w;

#define LOAD_WORDS(t)                    \
  for (int j = 0; j < 4; j++) {          \
    left[j] = a[(t) * TILE + j * SIDE];  \
    right[j] = b[(t) * TILE + j * SIDE]; \
  }

/* Where the sums of products of the second halves of units go. */
#ifdef TWO
#define SECOND second
#else
#define SECOND first
#endif

#ifdef EXPERTS
/* Column k of the tile as a number of the product's, and that of the activations it meets. */
#define COLUMN(k) order[4 * n_tiles + min(col0 + (k), end - 1)]
#define MET(column) ((column) / d.ne[1] * x.ne[1] + (column) % d.ne[1] % x.ne[1])
/* Grid (rows / 4, tiles of columns), groups (SIDE, SIDE). */
__kernel void gemm_experts(const __global uint4* pw, tensor_t w, const __global uint4* px,
                           tensor_t x, const __global int* order, int n_tiles, __global uchar* pd,
                           tensor_t d, LOCAL(uint) wt, LOCAL(uint) xt KERNEL_TABLE) {
  const int tx = get_local_id(0), ty = get_local_id(1), item = ty * SIDE + tx;
  const int n = w.ne[0] / 32, row0 = get_group_id(0) * TILE;
  const int tile = (get_global_id(1) - ty) / SIDE, expert = order[4 * tile];
  if (expert < 0) return; /* all items of the group */
  const int col0 = order[4 * tile + 1], end = order[4 * tile + 2];
  planes_t weights = row_of_planes((bytes_t)pw, &w, 0, expert, 0);
  planes_t columns = columns_of((bytes_t)px, &x, 0);
#else
#define COLUMN(k) min(col0 + (k), d.ne[1] - 1)
#define MET(column) (column)
/* Grid (rows / 4, columns / 4, ne2 * ne3), groups (SIDE, SIDE). */
__kernel void gemm(const __global uint4* pw, tensor_t w, const __global uint4* px, tensor_t x,
                   bytes_t pb, tensor_t bias, __global uchar* pd, tensor_t d, int has_bias,
                   LOCAL(uint) wt, LOCAL(uint) xt KERNEL_TABLE) {
  const int tx = get_local_id(0), ty = get_local_id(1), item = ty * SIDE + tx;
  const int n = w.ne[0] / 32, row0 = get_group_id(0) * TILE, col0 = (get_global_id(1) - ty) * 4;
  const int matrix = get_global_id(2), i2 = matrix % d.ne[2], i3 = matrix / d.ne[2];
  const int end = d.ne[1];
  planes_t weights =
      row_of_planes((bytes_t)pw, &w, 0, i2 / (d.ne[2] / w.ne[2]), i3 / (d.ne[3] / w.ne[3]));
  planes_t columns = columns_of((bytes_t)px, &x, (long)matrix * x.ne[1]);
#endif
  FILL_TABLE(item, SIDE * SIDE);
  float acc[16];
  for (int k = 0; k < 16; k++) acc[k] = 0.0f;
  for (int u0 = 0; u0 < n; u0 += STEP) {
    for (int i = item; i < 2 * TILE * STEP; i += SIDE * SIDE) {
      const int s = i / (2 * TILE), k = i % TILE, u = u0 + s;
      if (u >= n) continue;
      if (i / TILE % 2 == 0) {
        unit_t unit =
            codes(weights, weights.first + (long)min(row0 + k, d.ne[0] - 1) * n + u TABLE);
        __local uint* to = wt + s * W_WORDS * TILE + k;
        PUT_CODES(to, unit.lo, unit.hi)
        to[8 * TILE] = as_uint(unit.d0);
        to[9 * TILE] = as_uint(unit.d1);
        to[10 * TILE] = as_uint(unit.m0);
        to[11 * TILE] = as_uint(unit.m1);
      } else {
        const int column = COLUMN(k);
        const long at = columns.first + (long)MET(column) * n + u;
        const uint4 lo = nibbles(columns, 2 * at), hi = nibbles(columns, 2 * at + 1);
        const uint2 head = head_of(columns, at);
        __local uint* to = xt + s * X_WORDS * TILE + k;
        PUT_CODES(to, lo, hi)
        to[8 * TILE] = head.x;
        to[9 * TILE] = head.y;
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = 0; s < min(STEP, n - u0); s++) {
      __local uint* a = wt + s * W_WORDS * TILE + tx;
      __local uint* b = xt + s * X_WORDS * TILE + ty;
      int first[16], second[16];
      for (int k = 0; k < 16; k++) first[k] = second[k] = 0;
      ONE_BY_ONE
      for (int t = 0; t < 4; t++) {
        uint left[4], right[4];
        LOAD_WORDS(t)
        for (int k = 0; k < 16; k++) first[k] = dot4(left[k % 4], right[k / 4], first[k]);
        LOAD_WORDS(t + 4)
        for (int k = 0; k < 16; k++) SECOND[k] = dot4(left[k % 4], right[k / 4], SECOND[k]);
      }
      for (int k = 0; k < 16; k++) {
        const int r = k % 4 * SIDE, c = k / 4 * SIDE;
        const uint2 head = make_uint2(b[8 * TILE + c], b[9 * TILE + c]);
        acc[k] = scaled(acc[k], first[k], second[k], as_float(a[8 * TILE + r]),
                        as_float(a[9 * TILE + r]), as_float(a[10 * TILE + r]),
                        as_float(a[11 * TILE + r]), head);
      }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int k = 0; k < 16; k++) {
    const int row = row0 + tx + k % 4 * SIDE, c = ty + k / 4 * SIDE;
    if (row >= d.ne[0] || col0 + c >= end) continue;
    float sum = acc[k];
    const int column = COLUMN(c);
#ifdef EXPERTS
    *(__global float*)(pd + at4(&d, row, column % d.ne[1], column / d.ne[1], 0)) = sum;
#else
    if (has_bias) sum += load(pb + bias.at + row * bias.nb[0], bias.type);
    *(__global float*)(pd + at4(&d, row, column, i2, i3)) = sum;
#endif
  }
}
