/* Weights in planes by one to eight columns of activations as bytes (quantize.cu). Built for the
   format of the weights (W) and the number of columns (COLS) and rows (ROWS) of a warp.

   Lane l of a warp adds units l, l + 32, ... in that order, then lanes are added in pairs that are
   16, 8, 4, 2 and 1 apart. So a result does not depend on how many columns or rows there are. */

/* AHEAD: units of a row that a lane loads before it computes; BLOCKS: of a processor, at least */
enum { WARPS = 4, AHEAD = 2, BLOCKS = ROWS * COLS <= 2 ? 4 : 1 };

typedef W format;

struct unit_of_row {
  uint4 codes[format::CODES ? format::CODES : 1];
  uint extra[format::EXTRA ? format::EXTRA / 4 : 1];
  format::head_t head;
};

static __device__ __forceinline__ void load_unit(unit_of_row& unit, planes_of w, long i) {
  const uint4* codes = (const uint4*)w.all;
#pragma unroll
  for (int c = 0; c < format::CODES; c++) unit.codes[c] = load_once(codes + c * w.n + i);
  if constexpr (format::EXTRA > 0) {
    const uint* extra = (const uint*)(w.all + format::EXTRA_AT * w.n);
    const int words = format::EXTRA == 4 ? 1 : 2; /* of the first plane */
#pragma unroll
    for (int e = 0; e < words; e++) unit.extra[e] = extra[words * i + e];
    if constexpr (format::EXTRA == 12) unit.extra[2] = extra[2 * w.n + i];
  }
  unit.head = format::head(w, i);
}

/* Codes as bytes: words of elements 0..15, then of 16..31. */
static __device__ __forceinline__ void bytes_of_unit(const unit_of_row& unit, uint words[8]) {
#pragma unroll
  for (int t = 0; t < 4; t++) {
    const uint extra = format::EXTRA ? unit.extra[format::extra_word(t)] : 0;
    const uint bits = format::EXTRA == 12 ? unit.extra[format::EXTRA / 4 - 1] : 0;
    uint first = 0, second = 0;
    if constexpr (format::CODES > 0) first = word_of(unit.codes[0], t);
    if constexpr (format::CODES == 2) second = word_of(unit.codes[1], t);
    format::codes(first, second, extra, bits, t, words[t], words[4 + t]);
  }
}

/* sum + the product of a unit of a row with one of a column. */
static __device__ __forceinline__ float add_unit(float sum, const uint w[8], scales_t scales,
                                                 uint4 lo, uint4 hi, unit_t x) {
  int i0 = 0, i1 = 0;
#pragma unroll
  for (int t = 0; t < 4; t++) {
    i0 = __dp4a((int)w[t], (int)word_of(lo, t), i0);
    i1 = __dp4a((int)w[4 + t], (int)word_of(hi, t), i1);
  }
  const int s0 = x.s0, s1 = x.s1;
  if constexpr (format::TWO) {
    sum = fmaf(scales.d0 * x.d, (float)(i0 - format::OFFSET * s0), sum);
    sum = fmaf(scales.d1 * x.d, (float)(i1 - format::OFFSET * s1), sum);
  } else {
    sum = fmaf(scales.d0 * x.d, (float)(i0 + i1 - format::OFFSET * (s0 + s1)), sum);
  }
  if constexpr (format::MIN == 1) sum = fmaf(scales.m0, x.d * (float)(s0 + s1), sum);
  if constexpr (format::MIN == 2) {
    sum = fmaf(scales.m0, x.d * (float)s0, sum);
    sum = fmaf(scales.m1, x.d * (float)s1, sum);
  }
  return sum;
}

/* `rows` and `columns` are the numbers of the first units of each. */
static __device__ __forceinline__ void add_rows(float sums[ROWS][COLS], planes_of w, bytes_of x,
                                                const long rows[ROWS], const long columns[COLS],
                                                int n) {
  const uint4* codes = (const uint4*)x.all;
  const uint2* heads = (const uint2*)(x.all + 32 * x.n);
  const auto multiply = [&](const unit_of_row unit[ROWS], int u) {
    uint words[ROWS][8];
    scales_t scales[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      bytes_of_unit(unit[r], words[r]);
      scales[r] = format::scales(unit[r].head, rows[r] + u);
    }
#pragma unroll
    for (int c = 0; c < COLS; c++) {
      const uint4 lo = codes[2 * (columns[c] + u)], hi = codes[2 * (columns[c] + u) + 1];
      const unit_t head = unit_of(heads[columns[c] + u]);
#pragma unroll
      for (int r = 0; r < ROWS; r++)
        sums[r][c] = add_unit(sums[r][c], words[r], scales[r], lo, hi, head);
    }
  };
  int u = (int)threadIdx.x;
  unit_of_row units[AHEAD][ROWS];
  for (; u + 32 * (AHEAD - 1) < n; u += 32 * AHEAD) {
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) load_unit(units[a][r], w, rows[r] + u + 32 * a);
#pragma unroll
    for (int a = 0; a < AHEAD; a++) multiply(units[a], u + 32 * a);
  }
#pragma unroll 1
  for (; u < n; u += 32) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) load_unit(units[0][r], w, rows[r] + u);
    multiply(units[0], u);
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int c = 0; c < COLS; c++)
#pragma unroll
      for (int m = 16; m > 0; m /= 2) sums[r][c] += __shfl_xor_sync(0xffffffffu, sums[r][c], m);
}

template <class T>
static __device__ __forceinline__ float* element(T* p, const tensor_t& t, int i0, int i1, int i2,
                                                 int i3) {
  return (float*)(p + t.at + i0 * t.nb[0] + i1 * t.nb[1] + i2 * t.nb[2] + i3 * t.nb[3]);
}

/* Groups of (32, WARPS); grid (rows / (WARPS * ROWS), columns / COLS, ne2 * ne3). With ADDED, `to`
   gets the results plus `other`, too. */
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    gemv(const uchar* pw, tensor_t w, const uchar* px, const uchar*, tensor_t x, const uchar* pb,
         tensor_t bias, uchar* pd, tensor_t d, int has_bias
#ifdef ADDED
         ,
         const uchar* po, tensor_t other, uchar* pt, tensor_t to
#endif
    ) {
  const int n = w.ne[0] / 32, row = (int)(blockIdx.x * WARPS + threadIdx.y) * ROWS;
  const int column = (int)blockIdx.y * COLS;
  const int i2 = (int)blockIdx.z % d.ne[2], i3 = (int)blockIdx.z / d.ne[2];
  const long matrix = (long)(i3 / (d.ne[3] / w.ne[3])) * w.ne[2] + i2 / (d.ne[2] / w.ne[2]);
  const planes_of weights = {pw + w.at, (long)n * w.ne[1] * w.ne[2] * w.ne[3]};
  const bytes_of activations = {px, (long)n * x.ne[1] * x.ne[2] * x.ne[3]};
  long rows[ROWS], columns[COLS];
  float sums[ROWS][COLS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) rows[r] = (matrix * w.ne[1] + min(row + r, w.ne[1] - 1)) * n;
#pragma unroll
  for (int c = 0; c < COLS; c++)
    columns[c] = ((long)blockIdx.z * x.ne[1] + min(column + c, x.ne[1] - 1)) * n;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
#pragma unroll
    for (int c = 0; c < COLS; c++) sums[r][c] = 0.0f;
  add_rows(sums, weights, activations, rows, columns, n);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    if (row + r >= d.ne[0]) return;
    const float add = has_bias ? *(const float*)(pb + bias.at + (row + r) * bias.nb[0]) : 0.0f;
#pragma unroll
    for (int c = 0; c < COLS; c++) {
      if (column + c >= d.ne[1]) continue;
      const float result = sums[r][c] + add;
      *element(pd, d, row + r, column + c, i2, i3) = result;
#ifdef ADDED
      *element(pt, to, row + r, column + c, i2, i3) =
          result + *element(po, other, row + r, column + c, i2, i3);
#endif
    }
  }
}

#if COLS == 1
/* Each slot of a token has a column and an expert; grid (rows / (WARPS * ROWS), slots, tokens). */
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    gemv_experts(const uchar* pw, tensor_t w, const uchar* px, const uchar*, tensor_t x,
                 const uchar* pi, tensor_t ids, uchar* pd, tensor_t d, int* fault, int step) {
  const int n = w.ne[0] / 32, row = (int)(blockIdx.x * WARPS + threadIdx.y) * ROWS;
  const int slot = (int)blockIdx.y, token = (int)blockIdx.z;
  const int expert = *(const int*)(pi + ids.at + slot * ids.nb[0] + token * ids.nb[1]);
  if (expert < 0 || expert >= w.ne[2]) {
    note_index(fault, step, expert, w.ne[2]);
    return;
  }
  const planes_of weights = {pw + w.at, (long)n * w.ne[1] * w.ne[2]};
  const bytes_of activations = {px, (long)n * x.ne[1] * x.ne[2]};
  const long columns[1] = {((long)token * x.ne[1] + slot % x.ne[1]) * n};
  long rows[ROWS];
  float sums[ROWS][1];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    rows[r] = ((long)expert * w.ne[1] + min(row + r, w.ne[1] - 1)) * n;
    sums[r][0] = 0.0f;
  }
  add_rows(sums, weights, activations, rows, columns, n);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int r = 0; r < ROWS; r++)
    if (row + r < d.ne[0])
      *(float*)(pd + d.at + (row + r) * d.nb[0] + slot * d.nb[1] + token * d.nb[2]) = sums[r][0];
}
#endif
