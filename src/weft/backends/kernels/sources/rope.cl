/* Rotation of the pairs of a row by the angles position[plane] * factor; the elements that are not
   rotated are copied. Grid (pairs + other elements, heads, tokens * batches). `table` has (factor,
   plane of positions) for each pair. */

typedef struct {
  int n_pairs, first, step, distance, has_factors;
  float magnitude, direction;
} rotation_t;

/* Item `i` of the row at `row`, of token `token` of `tokens`; results are `nb` bytes apart. */
static inline void rotate_item(int i, bytes_t row, const tensor_t* s, bytes_t pp,
                               const tensor_t* pos, bytes_t pf, const tensor_t* factors,
                               const __global float2* table, rotation_t r, int token,
                               __global uchar* out, long nb, int type) {
  if (i < r.n_pairs) {
    float2 entry = table[i];
    int at = (int)entry.y * s->ne[2] + token;
    float theta = (float)*(const __global int*)(pp + pos->at + at * pos->nb[0]) * entry.x;
    if (r.has_factors) theta /= load(pf + factors->at + i * factors->nb[0], factors->type);
    float cosine = cos(theta) * r.magnitude, sine = sin(theta) * r.magnitude * r.direction;
    int a = r.first + r.step * i, b = a + r.distance;
    float x = load(row + a * s->nb[0], s->type), y = load(row + b * s->nb[0], s->type);
    store(out + a * nb, type, x * cosine - y * sine);
    store(out + b * nb, type, x * sine + y * cosine);
    return;
  }
  int rest = i - r.n_pairs; /* counts the elements before and behind the rotated ones */
  int c = rest < r.first ? rest : rest + 2 * r.n_pairs;
  if (c < s->ne[0]) store(out + c * nb, type, load(row + c * s->nb[0], s->type));
}

__kernel void rope(bytes_t ps, tensor_t s, bytes_t pp, tensor_t pos, bytes_t pf, tensor_t factors,
                   __global uchar* pd, tensor_t d, const __global float2* table, rotation_t r) {
  const int i1 = get_global_id(1), i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  rotate_item(get_global_id(0), ps + at4(&s, 0, i1, i2, i3), &s, pp, &pos, pf, &factors, table, r,
              i2, pd + at4(&d, 0, i1, i2, i3), d.nb[0], d.type);
}

/* The heads of a token side by side, in the row of `d` that `ids` names. */
__kernel void rope_set_rows(bytes_t ps, tensor_t s, bytes_t pp, tensor_t pos, bytes_t pf,
                            tensor_t factors, bytes_t pi, tensor_t ids, __global uchar* pd,
                            tensor_t d, const __global float2* table, rotation_t r,
                            __global int* fault, int step) {
  const int i1 = get_global_id(1), i2 = get_global_id(2);
  const long row = checked_index(pi + ids.at + i2 * ids.nb[0], ids.type, d.ne[1], fault, step);
  if (row < 0) return;
  rotate_item(get_global_id(0), ps + at4(&s, 0, i1, i2, 0), &s, pp, &pos, pf, &factors, table, r,
              i2, pd + at4(&d, i1 * s.ne[0], row, 0, 0), d.nb[0], d.type);
}

/* Blocks of n numbers times the orthonormal Hadamard matrix, by butterflies; d may be s. A group
   computes a block; grid (blocks of a row, ne1, ne2 * ne3). */
__kernel void hadamard(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int n,
                       LOCAL(float) x) {
  const int l = get_local_id(0), n_items = get_local_size(0), first = get_group_id(0) * n;
  const int i1 = get_global_id(1), i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  bytes_t from = ps + at4(&s, first, i1, i2, i3);
  __global uchar* to = pd + at4(&d, first, i1, i2, i3);
  for (int i = l; i < n; i += n_items) x[i] = load(from + i * s.nb[0], s.type);
  for (int h = 1; h < n; h *= 2) {
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = l; i < n / 2; i += n_items) {
      int at = 2 * i - i % h; /* the pairs of numbers h apart, in order */
      float a = x[at], b = x[at + h];
      x[at] = a + b;
      x[at + h] = a - b;
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int i = l; i < n; i += n_items) store(to + i * d.nb[0], d.type, x[i] / sqrt((float)n));
}
