/* softmax(scale q k^T + slope mask) v on tensor cores. Built for the formats of keys (K) and values
   (V), the sizes of their rows (DK, DV: multiples of 16), the WARPS of a block, and with or without
   a soft CAP. With TO_BF16 keys and values are bf16, else f16 or blocks.

   A warp has 16 rows: all heads that share keys, token after token, so that a cell is read once for
   them. A block goes over the cells of its part, CELLS at a time, while the next ones are copied.
   The softmax is computed online (Milakov and Gimelshein, arXiv 1805.02867); where cells are in
   several parts, `join` puts these together. */

enum {
  THREADS = 32 * WARPS,
  WIDEST = DK > DV ? DK : DV,
  CELLS = WIDEST <= 64 ? 64 : (WIDEST <= 128 ? 32 : 16),
  /* pieces of a row: an odd number, so that eight rows are in all banks */
  K_PIECES = DK / 8 + 1,
  V_PIECES = DV / 8 + 1,
  STEPS = DK / 16,
  S_TILES = CELLS / 8,
  O_TILES = DV / 8,
};

struct stage_t {
  uint4 k[CELLS][K_PIECES], v[CELLS][V_PIECES];
};

static __device__ __forceinline__ uint two_of(float low, float high) {
#ifdef TO_BF16
  return pack_bf162(low, high);
#else
  return pack_half2(low, high);
#endif
}

static __device__ __forceinline__ void multiply(float (&sum)[4], const uint (&a)[4],
                                                const uint (&b)[2]) {
#ifdef TO_BF16
  mma_bf16(sum, a, b);
#else
  mma_f16(sum, a, b);
#endif
}

/* Cells behind the end are copies of the last one; their scores are -inf. */
template <class format, int PIECES>
static __device__ __forceinline__ void copy_rows(uint4 (&to)[CELLS][PIECES], const uchar* rows,
                                                 long nb, int first, int last) {
#pragma unroll(WIDEST > 128 ? 1 : 4) /* the widest heads need all registers */
  for (int i = (int)threadIdx.x; i < CELLS * (PIECES - 1); i += THREADS) {
    const int cell = i / (PIECES - 1), p = i % (PIECES - 1);
    const uchar* row = rows + min(first + cell, last - 1) * nb;
    if constexpr (format::COPY)
      cp_async16(&to[cell][p], row + 16 * p);
    else
      to[cell][p] = format::piece(row, p);
  }
}

/* exp(x) of x <= 0 */
static __device__ __forceinline__ float power(float x) { return exp2f(x * 1.4426950408889634f); }

/* tanh(x), to 1e-7 of 1, in fewer registers than the library's */
static __device__ __forceinline__ float capped(float x) {
  return 1.0f - __fdividef(2.0f, exp2f(x * 2.8853900817779268f) + 1.0f);
}

/* The largest, and the sum, over the four lanes of a row. */
static __device__ __forceinline__ float most_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* Two rows of a warp: g and g + 8. */
struct rows_t {
  float top[2], sum[2], out[O_TILES][4];
};

typedef float scores_t[S_TILES][4];

static __device__ __forceinline__ void multiply_keys(scores_t& scores,
                                                     const uint (&query)[STEPS][4],
                                                     const stage_t& stage) {
  const int lane = (int)threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < S_TILES; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) scores[i][e] = 0.0f;
#pragma unroll
  for (int s = 0; s < STEPS; s++) {
#pragma unroll
    for (int pair = 0; pair < S_TILES / 2; pair++) {
      uint b[4];
      ldmatrix_x4(b, &stage.k[16 * pair + lane / 16 * 8 + lane % 8][2 * s + lane / 8 % 2]);
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const uint both[2] = {b[2 * j], b[2 * j + 1]};
        multiply(scores[2 * pair + j], query[s], both);
      }
    }
  }
}

static __device__ __forceinline__ void add_values(rows_t& rows, const scores_t& weights,
                                                  const stage_t& stage) {
  const int lane = (int)threadIdx.x % 32;
#pragma unroll
  for (int s = 0; s < CELLS / 16; s++) {
    const float (&left)[4] = weights[2 * s], (&right)[4] = weights[2 * s + 1];
    const uint a[4] = {two_of(left[0], left[1]), two_of(left[2], left[3]),
                       two_of(right[0], right[1]), two_of(right[2], right[3])};
#pragma unroll
    for (int pair = 0; pair < O_TILES / 2; pair++) {
      uint b[4];
      ldmatrix_x4_trans(b, &stage.v[16 * s + lane / 8 % 2 * 8 + lane % 8][2 * pair + lane / 16]);
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const uint both[2] = {b[2 * j], b[2 * j + 1]};
        multiply(rows.out[2 * pair + j], a, both);
      }
    }
  }
}

/* Scores become weights, sums so far shrink where a larger score came. */
static __device__ __forceinline__ void weigh(rows_t& rows, scores_t& scores) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float best = rows.top[h];
#pragma unroll
    for (int i = 0; i < S_TILES; i++)
      best = fmaxf(best, fmaxf(scores[i][2 * h], scores[i][2 * h + 1]));
    best = most_of_row(best);
    const float base = best == -INFINITY ? 0.0f : best, shrink = power(rows.top[h] - base);
    rows.top[h] = best;
    rows.sum[h] *= shrink;
#pragma unroll
    for (int i = 0; i < O_TILES; i++) {
      rows.out[i][2 * h] *= shrink;
      rows.out[i][2 * h + 1] *= shrink;
    }
#pragma unroll
    for (int i = 0; i < S_TILES; i++) {
#pragma unroll
      for (int e = 2 * h; e < 2 * h + 2; e++) {
        scores[i][e] = power(scores[i][e] - base);
        rows.sum[h] += scores[i][e];
      }
    }
  }
}

/* What is added to the score of a cell; -inf behind the end. A NaN in a mask stays one. */
static __device__ __forceinline__ float bias_of(const uchar* mask, float slope, int cell,
                                                int last) {
  return cell < last ? slope * half_to_float(((const half_t*)mask)[cell]) : -INFINITY;
}

/* Groups of THREADS; grid (rows / (16 WARPS), kv heads * batches, parts). `parts` has (kv heads *
   batches, rows, gridDim.z) results of DV, and then their (top, sum). */
extern "C" __global__ void __launch_bounds__(THREADS)
    flash(const uchar* pq, tensor_t q, const uchar* pk, tensor_t k, const uchar* pv, tensor_t v,
          const uchar* pm, tensor_t mask, const uchar* ps, tensor_t sinks, uchar* pd, tensor_t d,
          uchar* parts, int has_mask, int has_sinks, float scale, float cap, const float* slopes,
          int cells_of_part) {
  __shared__ stage_t stages[2];
  const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int shared = q.ne[2] / k.ne[2], n_rows = q.ne[1] * shared;
  const int kv_head = (int)blockIdx.y % k.ne[2], i3 = (int)blockIdx.y / k.ne[2];
  const int k3 = i3 / (q.ne[3] / k.ne[3]);
  const uchar* keys = pk + k.at + kv_head * k.nb[2] + k3 * k.nb[3];
  const uchar* values = pv + v.at + kv_head * v.nb[2] + k3 * v.nb[3];
  const int first = (int)blockIdx.z * cells_of_part, last = min(first + cells_of_part, k.ne[1]);

#ifdef CAP
  scale /= cap;
#endif
  int row[2], token[2], head[2];
  const uchar* biases[2];
  float slope[2];
  uint query[STEPS][4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    row[h] = ((int)blockIdx.x * WARPS + (int)threadIdx.x / 32) * 16 + g + 8 * h;
    const int r = min(row[h], n_rows - 1);
    token[h] = r / shared;
    head[h] = kv_head * shared + r % shared;
    slope[h] = slopes[head[h]];
    biases[h] = pm + mask.at + token[h] * mask.nb[1] + head[h] % mask.ne[2] * mask.nb[2] +
                i3 % mask.ne[3] * mask.nb[3];
    const float* from =
        (const float*)(pq + q.at + token[h] * q.nb[1] + head[h] * q.nb[2] + i3 * q.nb[3]);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const float* at = from + 16 * s + 8 * half + 2 * t;
        query[s][2 * half + h] = two_of(at[0] * scale, at[1] * scale);
      }
    }
  }

  rows_t rows;
  rows.top[0] = rows.top[1] = -INFINITY;
  rows.sum[0] = rows.sum[1] = 0.0f;
#pragma unroll
  for (int i = 0; i < O_TILES; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) rows.out[i][e] = 0.0f;

  copy_rows<K>(stages[0].k, keys, k.nb[1], first, last);
  copy_rows<V>(stages[0].v, values, v.nb[1], first, last);
  cp_async_commit();
  int slot = 0;
#pragma unroll 1
  for (int cell = first; cell < last; cell += CELLS, slot ^= 1) {
    cp_async_wait<0>();
    __syncthreads();
    if (cell + CELLS < last) {
      copy_rows<K>(stages[slot ^ 1].k, keys, k.nb[1], cell + CELLS, last);
      copy_rows<V>(stages[slot ^ 1].v, values, v.nb[1], cell + CELLS, last);
    }
    cp_async_commit();
    bool seen = !has_mask;
    if (has_mask) {
#pragma unroll
      for (int i = 0; i < S_TILES; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
          seen |=
              bias_of(biases[e / 2], slope[e / 2], cell + 8 * i + 2 * t + e % 2, last) != -INFINITY;
    }
    if (!__any_sync(0xffffffffu, seen)) continue; /* no row of this warp sees these cells */
    scores_t scores;
    multiply_keys(scores, query, stages[slot]);
#pragma unroll
    for (int i = 0; i < S_TILES; i++) {
#pragma unroll
      for (int e = 0; e < 4; e++) {
#ifdef CAP
        scores[i][e] = cap * capped(scores[i][e]);
#endif
        const int c = cell + 8 * i + 2 * t + e % 2;
        float add = c < last ? 0.0f : -INFINITY;
        if (has_mask) add = bias_of(biases[e / 2], slope[e / 2], c, last);
        /* what a row does not see does not count, be it infinite */
        scores[i][e] = add == -INFINITY ? -INFINITY : scores[i][e] + add;
      }
    }
    weigh(rows, scores);
    add_values(rows, scores, stages[slot]);
  }

#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum = sum_of_row(rows.sum[h]);
    if (row[h] >= n_rows) continue;
    if (gridDim.z > 1) {
      const long at = ((long)blockIdx.y * n_rows + row[h]) * gridDim.z + blockIdx.z;
      float* to = (float*)parts + at * DV;
#pragma unroll
      for (int i = 0; i < O_TILES; i++) {
        to[8 * i + 2 * t] = rows.out[i][2 * h];
        to[8 * i + 2 * t + 1] = rows.out[i][2 * h + 1];
      }
      float2* ends = (float2*)((float*)parts + (long)gridDim.y * n_rows * gridDim.z * DV);
      if (t == 0) ends[at] = make_float2(rows.top[h], sum);
      continue;
    }
    float shrink = 1.0f;
    if (has_sinks) {
      const float sink = *(const float*)(ps + sinks.at + head[h] * sinks.nb[0]);
      const float best = fmaxf(rows.top[h], sink);
      shrink = power(rows.top[h] - best);
      sum = sum * shrink + power(sink - best);
    }
    const float factor = sum > 0.0f ? shrink / sum : sum == sum ? 0.0f : sum;
    uchar* to = pd + d.at + head[h] * d.nb[1] + token[h] * d.nb[2] + i3 * d.nb[3];
#pragma unroll
    for (int i = 0; i < O_TILES; i++) {
      *(float*)(to + (8 * i + 2 * t) * d.nb[0]) = rows.out[i][2 * h] * factor;
      *(float*)(to + (8 * i + 2 * t + 1) * d.nb[0]) = rows.out[i][2 * h + 1] * factor;
    }
  }
}

/* Puts the parts of a row together, in order. Groups of 128; grid (rows, kv heads * batches). */
extern "C" __global__ void __launch_bounds__(128)
    join(const uchar* parts, const uchar*, tensor_t q, const uchar*, tensor_t k, const uchar* ps,
         tensor_t sinks, uchar* pd, tensor_t d, int has_sinks, int n_parts) {
  const int shared = q.ne[2] / k.ne[2], row = (int)blockIdx.x, token = row / shared;
  const int head = (int)blockIdx.y % k.ne[2] * shared + row % shared;
  const int i3 = (int)blockIdx.y / k.ne[2];
  const long n_rows = (long)gridDim.x, at = (blockIdx.y * n_rows + row) * n_parts;
  const float* results = (const float*)parts + at * DV;
  const float2* ends =
      (const float2*)((const float*)parts + gridDim.y * n_rows * n_parts * DV) + at;
  const float sink = has_sinks ? *(const float*)(ps + sinks.at + head * sinks.nb[0]) : -INFINITY;
  float best = sink;
  for (int p = 0; p < n_parts; p++) best = fmaxf(best, ends[p].x);
  const float base = best == -INFINITY ? 0.0f : best;
  float sum = power(sink - base);
  for (int p = 0; p < n_parts; p++) sum += power(ends[p].x - base) * ends[p].y;
  const float factor = sum > 0.0f ? 1.0f / sum : sum == sum ? 0.0f : sum;
  for (int i = (int)threadIdx.x; i < DV; i += 128) {
    float out = 0.0f;
    for (int p = 0; p < n_parts; p++) out = fmaf(power(ends[p].x - base), results[p * DV + i], out);
    *(float*)(pd + d.at + i * d.nb[0] + head * d.nb[1] + token * d.nb[2] + i3 * d.nb[3]) =
        out * factor;
  }
}
