/* Largest elements of rows, masks and generators. */

OVER_ITEMS(last_over, int, max)

/* The index of the last of the largest elements, or of all where they are NaNs. A group computes
   one row; grid (group, ne1, ne2 * ne3). */
__kernel void argmax(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, LOCAL(float) tmp,
                     LOCAL(int) places) {
  const int l = ITEM, n_items = get_local_size(0);
  const int i1 = get_global_id(1), plane = get_global_id(2);
  bytes_t from = ps + at4(&s, 0, i1, plane % s.ne[2], plane / s.ne[2]);
  float best = -INFINITY;
  int at = -1; /* no number yet */
  for (int i = l; i < s.ne[0]; i += n_items) {
    float x = load(from + i * s.nb[0], s.type);
    if (x > best || (x == best && !isnan(x))) {
      best = x;
      at = i;
    }
  }
  const float top = group_max(best, tmp);
  at = last_over(best == top ? at : -1, n_items, places);
  if (l == 0)
    *(__global int*)(pd + d.at + ((long)plane * s.ne[1] + i1) * d.nb[0]) =
        at < 0 ? s.ne[0] - 1 : at;
}

/* what a mask leaves: numbers of TRI, then 4: columns up to n_past + row, else `other` */
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
