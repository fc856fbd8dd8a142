/* The places of elements in order along an axis: equals keep their order, a NaN is the largest.
   Where indices are i32, it is the last, also when descending. An order is that of pairs (what an
   element sorts by, its place), of which no two are equal, so that all ways to sort give the same.

   Lines of few elements count (`by_counting`). Others are sorted in runs in local memory (`runs`),
   which are merged in pairs (`merge`) until the last merge, or the only run, is the result. */

/* What an element sorts by, ascending; with `nan_last`, a NaN is the last also when descending. */
static inline long in_turn(bytes_t p, int type, int descending, int nan_last) {
  const long x = in_order(p, type);
  return !descending ? x : nan_last && x == LONG_MAX ? LONG_MAX : ~x;
}

/* The offset of the first element of line `which` along an axis. */
static inline long line_at(const tensor_t* t, const tensor_t* s, int axis, long which) {
  long at = t->at;
  for (int k = 0; k < 4; k++) {
    if (k == axis) continue;
    at += which % s->ne[k] * t->nb[k];
    which /= s->ne[k];
  }
  return at;
}

/* The place of each element is the number of those before it. Grid over the source; what lies
   behind the result's size is not written. */
__kernel void by_counting(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int axis,
                          int descending) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  if (i0 >= s.ne[0]) return;
  const int mine = axis == 0 ? i0 : axis == 1 ? i1 : axis == 2 ? i2 : i3;
  bytes_t line = ps + at4(&s, i0, i1, i2, i3) - mine * s.nb[axis];
  const int nan_last = d.type == I32 && !is_whole(s.type);
  const long x = in_turn(line + mine * s.nb[axis], s.type, descending, nan_last);
  int place = 0;
  for (int i = 0; i < s.ne[axis]; i++) {
    long y = in_turn(line + i * s.nb[axis], s.type, descending, nan_last);
    place += y < x || (y == x && i < mine);
  }
  if (place >= d.ne[axis]) return;
  store_whole(pd + at4(&d, i0, i1, i2, i3) + (place - mine) * d.nb[axis], d.type, mine);
}

/* Sorts runs of `size` elements, a power of two and twice the items of a group, by exchanges of
   pairs (Batcher's bitonic sort). Grid (runs of a line, lines). The order goes to `to`, or, where a
   line has one run, to the result. Places behind the end of a line have the largest keys and the
   last places. */
__kernel void runs(bytes_t ps, tensor_t s, __global int* to, __global uchar* pd, tensor_t d,
                   int axis, int descending, int size, int is_last, LOCAL(long) keys,
                   LOCAL(int) places) {
  const int l = get_local_id(0), items = get_local_size(0), n = s.ne[axis];
  const int first = get_group_id(0) * size;
  const long which = get_global_id(1);
  bytes_t line = ps + line_at(&s, &s, axis, which);
  const int nan_last = d.type == I32 && !is_whole(s.type);
  for (int i = l; i < size; i += items) {
    const int at = first + i;
    keys[i] = LONG_MAX;
    if (at < n) keys[i] = in_turn(line + at * s.nb[axis], s.type, descending, nan_last);
    places[i] = at;
  }
  for (int part = 2; part <= size; part *= 2) {
    for (int by = part / 2; by > 0; by /= 2) {
      barrier(CLK_LOCAL_MEM_FENCE);
      for (int i = l; i < size / 2; i += items) {
        const int a = 2 * i - i % by, b = a + by; /* the pairs of places `by` apart, in order */
        const long x = keys[a], y = keys[b];
        const int p = places[a], q = places[b];
        const int falls = x > y || (x == y && p > q), rises = (a & part) == 0;
        if (falls == rises) {
          keys[a] = y;
          keys[b] = x;
          places[a] = q;
          places[b] = p;
        }
      }
    }
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  __global uchar* out = pd + line_at(&d, &s, axis, which);
  for (int i = l; i < size; i += items) {
    if (first + i >= n) continue;
    if (!is_last)
      to[which * n + first + i] = places[i];
    else if (i < d.ne[axis])
      store_whole(out + i * d.nb[axis], d.type, places[i]);
  }
}

/* Merges runs of `size` elements in pairs: an element's place is its place in its run and the
   number of elements of the other run that come before it. Grid (elements of a line, lines). */
__kernel void merge(bytes_t ps, tensor_t s, const __global int* from, __global int* to,
                    __global uchar* pd, tensor_t d, int axis, int descending, int size,
                    int is_last) {
  const int i = get_global_id(0), n = s.ne[axis];
  const long which = get_global_id(1);
  if (i >= n) return;
  bytes_t line = ps + line_at(&s, &s, axis, which);
  const int nan_last = d.type == I32 && !is_whole(s.type);
  const int mine = i / size * size, other = mine ^ size; /* where both runs begin */
  const int place = from[which * n + i];
  const long x = in_turn(line + place * s.nb[axis], s.type, descending, nan_last);
  int begin = min(other, n), end = min(other + size, n);
  const int start = begin;
  while (begin < end) {
    const int middle = begin + (end - begin) / 2, p = from[which * n + middle];
    const long y = in_turn(line + p * s.nb[axis], s.type, descending, nan_last);
    if (y < x || (y == x && p < place))
      begin = middle + 1;
    else
      end = middle;
  }
  const int at = min(mine, other) + i - mine + begin - start;
  if (!is_last)
    to[which * n + at] = place;
  else if (at < d.ne[axis])
    store_whole(pd + line_at(&d, &s, axis, which) + at * d.nb[axis], d.type, place);
}
