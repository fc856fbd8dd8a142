/* Reductions of rows, orders of rows, masks and generators. */

/* The sum (or mean) of each row; grid (group, ne1, ne2 * ne3). */
__kernel void sum_rows(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int mean,
                       __local float* tmp) {
  const int l = get_local_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  bytes_t row = ps + at4(&s, 0, i1, i2, i3);
  float sum = 0.0f;
  for (int i = l; i < s.ne[0]; i += get_local_size(0)) sum += load(row + i * s.nb[0], s.type);
  sum = group_sum(sum, tmp);
  if (l == 0) store(pd + at4(&d, 0, i1, i2, i3), d.type, mean ? sum / s.ne[0] : sum);
}

/* The sum of all elements; one group. */
__kernel void sum_all(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, __local float* tmp) {
  const long n = (long)s.ne[0] * s.ne[1] * s.ne[2] * s.ne[3];
  float sum = 0.0f, lost = 0.0f; /* Kahan's sum, as an item may add many elements */
  for (long i = get_local_id(0); i < n; i += get_local_size(0)) {
    float x = load(ps + at4(&s, i % s.ne[0], i / s.ne[0] % s.ne[1], i / s.ne[0] / s.ne[1] % s.ne[2],
                            i / s.ne[0] / s.ne[1] / s.ne[2]),
                   s.type) -
              lost;
    float next = sum + x;
    lost = (next - sum) - x;
    sum = next;
  }
  sum = group_sum(sum, tmp);
  if (get_local_id(0) == 0) store(pd + d.at, d.type, sum);
}

/* Running sums. An item is a row; grid (ne1, ne2 * ne3). */
__kernel void cumsum(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d) {
  const int i1 = get_global_id(0);
  const int i2 = get_global_id(1) % s.ne[2], i3 = get_global_id(1) / s.ne[2];
  if (i1 >= s.ne[1]) return;
  bytes_t row = ps + at4(&s, 0, i1, i2, i3);
  __global uchar* out = pd + at4(&d, 0, i1, i2, i3);
  float sum = 0.0f, lost = 0.0f;
  for (int i = 0; i < s.ne[0]; i++) {
    float x = load(row + i * s.nb[0], s.type) - lost, next = sum + x;
    lost = (next - sum) - x;
    sum = next;
    store(out + i * d.nb[0], d.type, sum);
  }
}

/* The index of the last of the largest elements. An item is a row. */
__kernel void argmax(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int n_rows) {
  const int row = get_global_id(0);
  if (row >= n_rows) return;
  bytes_t from = ps + at4(&s, 0, row % s.ne[1], row / s.ne[1] % s.ne[2], row / s.ne[1] / s.ne[2]);
  float best = -INFINITY;
  int at = s.ne[0] - 1;
  for (int i = 0; i < s.ne[0]; i++) {
    float x = load(from + i * s.nb[0], s.type);
    if (x > best || (x == best && !isnan(x))) {
      best = x;
      at = i;
    }
  }
  *(__global int*)(pd + d.at + row * d.nb[0]) = at;
}

/* Sorts by counting: the place of an element in the order of its row is the number of elements that
   come before it, and equal elements keep their order. Grid (ne0, ne1, ne2 * ne3) of the source.
   Only the first d.ne[0] places are written. */
__kernel void argsort(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int descending) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  if (i0 >= s.ne[0]) return;
  bytes_t row = ps + at4(&s, 0, i1, i2, i3);
  float x = load(row + i0 * s.nb[0], s.type);
  int place = 0;
  for (int i = 0; i < s.ne[0]; i++) {
    float y = load(row + i * s.nb[0], s.type);
    place += (descending ? y > x : y < x) || (y == x && i < i0);
  }
  if (place < d.ne[0]) *(__global int*)(pd + at4(&d, place, i1, i2, i3)) = i0;
}

/* Keeps the elements of a TriKind or a Kept (enums.py), and makes the others `other`; grid over the
   result. UP_TO_PAST keeps the columns up to n_past + row. */
__kernel void masked(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int kind, int n_past,
                     float other) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2];
  if (i0 >= d.ne[0]) return;
  int keep = kind == UPPER_DIAG   ? i0 >= i1
             : kind == UPPER      ? i0 > i1
             : kind == LOWER_DIAG ? i0 <= i1
             : kind == LOWER      ? i0 < i1
             : kind == UP_TO_PAST ? i0 <= n_past + i1
                                  : i0 == i1;
  int row = kind == DIAGONAL ? 0 : i1; /* the single row of s becomes a diagonal */
  float x = keep ? load(ps + at4(&s, i0, row, i2, i3), s.type) : other;
  store(pd + at4(&d, i0, i1, i2, i3), d.type, x);
}

/* start, start + step, ... */
__kernel void arange(__global uchar* pd, tensor_t d, float start, float step) {
  const int i = get_global_id(0);
  if (i < d.ne[0]) store(pd + d.at + i * d.nb[0], d.type, start + step * i);
}

/* Embeds timesteps as rows of `dim` / 2 cosines, as many sines, and a zero when `dim` is odd; grid
   (ne0, timesteps). */
__kernel void timesteps(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int dim,
                        float log_period) {
  const int i = get_global_id(0), i1 = get_global_id(1), n = dim / 2;
  if (i >= d.ne[0]) return;
  float x = 0.0f;
  if (i < 2 * n) {
    float angle = load(ps + s.at + i1 * s.nb[0], s.type) * exp(-log_period * (i % n) / n);
    x = i < n ? cos(angle) : sin(angle);
  }
  store(pd + at4(&d, i, i1, 0, 0), d.type, x);
}
