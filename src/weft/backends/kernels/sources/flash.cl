/* softmax(scale * q k^T + slope * mask) v by groups of 64 items, for GPUs. Built for the formats of
   keys (K) and values (V), the sizes of their rows (DK, DV), R, and with or without a soft CAP.

   A group has 8 R rows: all heads that share keys, token after token, so that a cell is read once
   for them. It goes over the cells of its part, 32 at a time; keys, queries and values are in local
   memory, 64 elements of their rows at a time. Item (tx, ty) of 8 x 8 has R rows, of which it
   computes the scores of 4 cells and then 4 of every 32 results. Cells that a mask hides from all
   rows are not read.

   The softmax is computed online (Milakov and Gimelshein, arXiv 1805.02867); where cells are in
   several parts, `join` puts these together. */

enum {
  ITEMS = 64,
  ROWS = 8 * R,
  CELLS = 32,
  WIDTH = 64,
  PITCH = WIDTH + 1, /* of values: an odd number, so that neighbouring cells are in all banks */
  K_UNITS = (DK + 31) / 32,
  V_UNITS = (DV + 31) / 32,
  RESULTS = (V_UNITS + 1) / 2 * 8 * R
};

/* Before loops over results, which are in registers only where their places are constants. */
#define UNROLLED _Pragma("unroll")

/* Decodes unit `u` of a row of SIZE elements in format F; PUT takes element `e` as x[e]. The
   elements behind the row are 0; only float types have such. */
#define DECODE(F, SIZE, row, t, u, PUT)                                          \
  {                                                                              \
    float x[32];                                                                 \
    if (SIZE % 32 == 0 || 32 * (u) + 32 <= SIZE) {                               \
      float16 lo, hi;                                                            \
      JOIN(unit_, F)(row, u, &lo, &hi);                                          \
      vstore16(lo, 0, x);                                                        \
      vstore16(hi, 1, x);                                                        \
    } else {                                                                     \
      for (int e = 0; e < 32; e++) {                                             \
        const int i = 32 * (u) + e;                                              \
        x[e] = i < SIZE ? load(row + min(i, SIZE - 1) * t.nb[0], t.type) : 0.0f; \
      }                                                                          \
    }                                                                            \
    for (int e = 0; e < 32; e++) PUT = x[e];                                     \
  }

/* Grid (rows / ROWS, kv heads * batches, parts). Where there are several parts, `pd` has results of
   DV (kv heads * batches, rows, parts), and then their largest scores and sums. */
__kernel void flash(bytes_t pq, tensor_t q, bytes_t pk, tensor_t k, bytes_t pv, tensor_t v,
                    bytes_t pm, tensor_t mask, bytes_t ps, tensor_t sinks, __global uchar* pd,
                    tensor_t d, int has_mask, int has_sinks, float scale, float cap,
                    const __global float* slopes, int cells_of_part, int n_parts,
                    LOCAL(float) mem) {
  const int l = ITEM, tx = l % 8, ty = l / 8;
  const int together = IN_STEP >= 8; /* the items of a row share a subgroup */
  const int shared_by = q.ne[2] / k.ne[2], n_rows = q.ne[1] * shared_by;
  const int row0 = get_group_id(0) * ROWS, part = get_global_id(2);
  const int kv_head = get_global_id(1) % k.ne[2], i3 = get_global_id(1) / k.ne[2];
  const int first = part * cells_of_part, last = min(first + cells_of_part, k.ne[1]);
  __local float *kt = mem, *vt = mem; /* [element][cell] and [cell][element] */
  __local float *qt = mem + CELLS * PITCH, *pt = qt + WIDTH * ROWS, *of_items = pt + CELLS * ROWS;
  bytes_t keys = pk + at4(&k, 0, 0, kv_head, i3 / (q.ne[3] / k.ne[3]));
  bytes_t values = pv + at4(&v, 0, 0, kv_head, i3 / (q.ne[3] / v.ne[3]));
  const int mine = min(row0 + l % ROWS, n_rows - 1); /* the row whose query this item fetches */
  bytes_t query = pq + at4(&q, 0, mine / shared_by, kv_head * shared_by + mine % shared_by, i3);
  bytes_t bias[R];
  float slope[R], top[R], sum[R], out[RESULTS];
  for (int i = 0; i < R; i++) {
    const int row = min(row0 + ty * R + i, n_rows - 1);
    const int head = kv_head * shared_by + row % shared_by;
    slope[i] = slopes[head];
    bias[i] =
        pm + (has_mask ? at4(&mask, 0, row / shared_by, head % mask.ne[2], i3 % mask.ne[3]) : 0);
    top[i] = -INFINITY;
    sum[i] = 0.0f;
  }
  for (int i = 0; i < RESULTS; i++) out[i] = 0.0f;

  for (int cell0 = first; cell0 < last; cell0 += CELLS) {
    float add[4 * R], score[4 * R], seen = 0.0f;
    for (int i = 0; i < 4 * R; i++) {
      const int cell = cell0 + 4 * tx + i % 4;
      add[i] = cell < last ? 0.0f : -INFINITY;
      if (has_mask && cell < last)
        add[i] = slope[i / 4] * load(bias[i / 4] + cell * mask.nb[0], mask.type);
      if (add[i] != -INFINITY) seen = 1.0f;
      score[i] = 0.0f;
    }
    if (has_mask) {
      seen = group_max(seen, of_items);
      if (seen == 0.0f) continue; /* all items of the group take this branch */
    }

    const int half_of = l / CELLS, cell = l % CELLS; /* what this item decodes */
    bytes_t key = keys + min(cell0 + cell, last - 1) * k.nb[1];
    bytes_t value = values + min(cell0 + cell, last - 1) * v.nb[1];
    for (int u = 0; u < K_UNITS; u += 2) {
      if (u + half_of < K_UNITS)
        DECODE(K, DK, key, k, u + half_of, kt[(32 * half_of + e) * CELLS + cell]);
      for (int e = l / ROWS; e < WIDTH; e += ITEMS / ROWS) {
        const int i = 32 * u + e;
        float x = 0.0f;
        if (i < DK) x = *(const __global float*)(query + i * q.nb[0]) * scale;
        qt[e * ROWS + l % ROWS] = x;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      const int n = min((int)WIDTH, 32 * (K_UNITS - u));
      for (int e = 0; e < n; e++) {
        float4 b = vload4(tx, kt + e * CELLS);
        for (int i = 0; i < R; i++) {
          float a = qt[e * ROWS + ty * R + i];
          score[4 * i] += a * b.x;
          score[4 * i + 1] += a * b.y;
          score[4 * i + 2] += a * b.z;
          score[4 * i + 3] += a * b.w;
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }

    float most[R];
    for (int i = 0; i < R; i++) {
      float best = -INFINITY;
      for (int c = 4 * i; c < 4 * i + 4; c++) {
#ifdef CAP
        score[c] = cap * tanh(score[c] / cap);
#endif
        /* what a row does not see does not count, be it infinite */
        score[c] = add[c] == -INFINITY ? -INFINITY : score[c] + add[c];
        best = fmax(best, score[c]);
      }
      if (together) {
        IN_STEPS(best, 8, fmax)
      } else {
        of_items[(ty * R + i) * 8 + tx] = best;
      }
      most[i] = fmax(top[i], best);
    }
    if (!together) barrier(CLK_LOCAL_MEM_FENCE);
    float shrink[R];
    for (int i = 0; i < R; i++) {
      float best = most[i];
      if (!together)
        for (int c = 0; c < 8; c++) best = fmax(best, of_items[(ty * R + i) * 8 + c]);
      const float base = best == -INFINITY ? 0.0f : best;
      shrink[i] = exp(top[i] - base);
      top[i] = best;
      sum[i] *= shrink[i];
      for (int c = 0; c < 4; c++) {
        const float p = exp(score[4 * i + c] - base);
        sum[i] += p;
        pt[(4 * tx + c) * ROWS + ty * R + i] = p;
      }
    }

    UNROLLED for (int u = 0; u < V_UNITS; u += 2) {
      if (u + half_of < V_UNITS)
        DECODE(V, DV, value, v, u + half_of, vt[cell * PITCH + 32 * half_of + e]);
      for (int i = 0; i < 8 * R; i++) out[u * 4 * R + i] *= shrink[i / 4 % R];
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int c = 0; c < CELLS; c++) {
        float4 a = vload4(0, vt + c * PITCH + 4 * tx), b = vload4(8, vt + c * PITCH + 4 * tx);
        for (int i = 0; i < R; i++) {
          const float p = pt[c * ROWS + ty * R + i];
          const int at = u * 4 * R + 4 * i;
          out[at] += p * a.x;
          out[at + 1] += p * a.y;
          out[at + 2] += p * a.z;
          out[at + 3] += p * a.w;
          out[at + 4 * R] += p * b.x;
          out[at + 4 * R + 1] += p * b.y;
          out[at + 4 * R + 2] += p * b.z;
          out[at + 4 * R + 3] += p * b.w;
        }
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  }

  for (int i = 0; i < R; i++) of_items[(ty * R + i) * 8 + tx] = sum[i];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = 0; i < R; i++) {
    const int row = row0 + ty * R + i;
    if (row >= n_rows) continue;
    float total = 0.0f, factor = 1.0f;
    for (int c = 0; c < 8; c++) total += of_items[(ty * R + i) * 8 + c];
    const int head = kv_head * shared_by + row % shared_by;
    __global uchar* to = pd;
    long step = 4;
    if (n_parts > 1) {
      const long at = ((long)get_global_id(1) * n_rows + row) * n_parts + part;
      const long n = (long)k.ne[2] * q.ne[3] * n_rows * n_parts;
      to += 4 * at * DV;
      if (tx == 0)
        vstore2(make_float2(top[i], total), 0, (__global float*)(pd + 4 * n * DV + 8 * at));
    } else {
      float shrink = 1.0f;
      if (has_sinks) {
        const float sink = load(ps + sinks.at + head * sinks.nb[0], sinks.type);
        const float best = fmax(top[i], sink);
        shrink = exp(top[i] - best);
        total = total * shrink + exp(sink - best);
      }
      factor = total > 0.0f ? shrink / total : total == total ? 0.0f : total;
      to += at4(&d, 0, head, row / shared_by, i3);
      step = d.nb[0];
    }
    UNROLLED for (int u = 0; u < V_UNITS; u++) {
      for (int c = 0; c < 4; c++) {
        const int e = 32 * u + 4 * tx + c;
        if (e < DV) *(__global float*)(to + e * step) = out[(u * R + i) * 4 + c] * factor;
      }
    }
  }
}

/* Puts the parts of a row together, in order. Grid (rows, kv heads * batches). */
__kernel void join(const __global float* parts, bytes_t ps, tensor_t sinks, __global uchar* pd,
                   tensor_t d, int kv_heads, int shared_by, int n_groups, int n_rows, int n_parts,
                   int has_sinks) {
  const int row = get_group_id(0), token = row / shared_by;
  const int head = get_global_id(1) % kv_heads * shared_by + row % shared_by;
  const int i3 = get_global_id(1) / kv_heads;
  const long at = ((long)get_global_id(1) * n_rows + row) * n_parts;
  const __global float* results = parts + at * DV;
  const __global float* ends = parts + (long)n_groups * n_rows * n_parts * DV + 2 * at;
  float sink = -INFINITY;
  if (has_sinks) sink = load(ps + sinks.at + head * sinks.nb[0], sinks.type);
  float best = sink;
  for (int p = 0; p < n_parts; p++) best = fmax(best, ends[2 * p]);
  const float base = best == -INFINITY ? 0.0f : best;
  float sum = exp(sink - base);
  for (int p = 0; p < n_parts; p++) sum += exp(ends[2 * p] - base) * ends[2 * p + 1];
  const float factor = sum > 0.0f ? 1.0f / sum : sum == sum ? 0.0f : sum;
  for (int i = get_local_id(0); i < DV; i += ITEMS) {
    float x = 0.0f;
    for (int p = 0; p < n_parts; p++) x += exp(ends[2 * p] - base) * results[p * DV + i];
    *(__global float*)(pd + at4(&d, i, head, token, i3)) = x * factor;
  }
}
