/* Reductions, running sums, orders and distances of plain tensors. */

/* The offset of element `i` of a walk over the dimensions in the mask `axes` only. */
static inline long walked(const tensor_t* t, int axes, long i) {
  long at = 0;
  for (int k = 0; k < 4; k++) {
    if (!(axes >> k & 1)) continue;
    at += i % t->ne[k] * t->nb[k];
    i /= t->ne[k];
  }
  return at;
}

/* Joins two values as a ReduceOp does (graph/ops/folds.py). */
static inline float joined(int op, float a, float b) {
  switch (op) {
    case MAX:
      return isnan(a) || a > b ? a : b;
    case MIN:
      return isnan(a) || a < b ? a : b;
    case PROD:
      return a * b;
    default:
      return a + b;
  }
}

static inline long joined_whole(int op, long a, long b) {
  switch (op) {
    case MAX:
      return max(a, b);
    case MIN:
      return min(a, b);
    case PROD:
      return (long)((ulong)a * (ulong)b);
    case ANY:
      return a | b;
    case ALL:
      return a & b;
    default:
      return (long)((ulong)a + (ulong)b);
  }
}

/* Reduces `n` elements to one. A group computes one result. */
__kernel void reduce_nd(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int op, int axes,
                        long n, LOCAL(long) tmp) {
  const int l = ITEM, n_items = get_local_size(0), width = min(n_items, IN_STEP);
  const int whole = is_whole(d.type); /* also for ANY and ALL of floats */
  const long which = get_group_id(0);
  __local float* part = (__local float*)&tmp[0];
  bytes_t from = ps + s.at + walked(&s, ~axes, which);
  long count = op == PROD || op == ALL ? 1 : op == MAX ? LONG_MIN : op == MIN ? LONG_MAX : 0;
  float sum = op == PROD ? 1.0f : op == MAX ? -INFINITY : op == MIN ? INFINITY : 0.0f, lost = 0.0f;
  for (long i = l; i < n; i += n_items) {
    bytes_t p = from + walked(&s, axes, i);
    if (whole) {
      long x = is_whole(s.type) ? load_whole(p, s.type) : load(p, s.type) != 0.0f;
      count = joined_whole(op, count, op >= ANY ? x != 0 : x);
    } else if (op > MEAN) {
      sum = joined(op, sum, load(p, s.type));
    } else { /* Kahan's sum, as an item may add many elements */
      float x = load(p, s.type) - lost, next = sum + x;
      lost = isfinite(next) ? (next - sum) - x : 0.0f;
      sum = next;
    }
  }
  if (n_items > width) {
    if (whole)
      tmp[l] = count;
    else
      part[l] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = n_items / 2; s >= width; s /= 2) {
      if (l < s) {
        if (whole)
          tmp[l] = joined_whole(op, tmp[l], tmp[l + s]);
        else
          part[l] = joined(op, part[l], part[l + s]);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (whole)
      count = tmp[l % width];
    else
      sum = part[l % width];
  }
#ifdef SUBGROUPS
  for (int by = width / 2; by > 0; by /= 2) {
    if (whole)
      count = joined_whole(op, count, sub_group_shuffle_xor(count, by));
    else
      sum = joined(op, sum, sub_group_shuffle_xor(sum, by));
  }
#endif
  if (l > 0) return;
  __global uchar* to = pd + d.at + walked(&d, 15, which);
  if (whole)
    store_whole(to, d.type, count);
  else
    store(to, d.type, op == MEAN ? sum / n : sum);
}

/* Keeps the larger of two elements, the first of equals; a place of `n` is that of none. */
static inline void take_larger(long* best, long* at, long x, long place, long n) {
  if (place < n && (x > *best || (x == *best && place < *at))) {
    *best = x;
    *at = place;
  }
}

/* The index of the first of the largest (or smallest) elements; a NaN is found before any number. A
   group computes one result. */
__kernel void arg_reduce(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int smallest,
                         int axes, long n, LOCAL(long) tmp) {
  const int l = ITEM, n_items = get_local_size(0), width = min(n_items, IN_STEP);
  const long which = get_group_id(0);
  bytes_t from = ps + s.at + walked(&s, ~axes, which);
  const int floats = !is_whole(s.type);
  long best = LONG_MIN, at = l < n ? l : n;
  for (long i = l; i < n; i += n_items) {
    long x = in_order(from + walked(&s, axes, i), s.type);
    if (smallest && !(floats && x == LONG_MAX)) x = ~x;
    if (x > best) {
      best = x;
      at = i;
    }
  }
  if (n_items > width) {
    tmp[2 * l] = best;
    tmp[2 * l + 1] = at;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int s = n_items / 2; s >= width; s /= 2) {
      if (l < s) {
        take_larger(&best, &at, tmp[2 * (l + s)], tmp[2 * (l + s) + 1], n);
        tmp[2 * l] = best;
        tmp[2 * l + 1] = at;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
    best = tmp[2 * (l % width)];
    at = tmp[2 * (l % width) + 1];
  }
#ifdef SUBGROUPS
  for (int by = width / 2; by > 0; by /= 2)
    take_larger(&best, &at, sub_group_shuffle_xor(best, by), sub_group_shuffle_xor(at, by), n);
#endif
  if (l == 0) store_whole(pd + d.at + walked(&d, 15, which), I64, at);
}

/* Running sums or products along an axis. An item is a line of elements. */
__kernel void cumulate(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int product,
                       int axis, long n_lines) {
  const long which = get_global_id(0);
  if (which >= n_lines) return;
  bytes_t from = ps + s.at + walked(&s, ~(1 << axis), which);
  __global uchar* to = pd + d.at + walked(&d, ~(1 << axis), which);
  const long ns = s.nb[axis], nd = d.nb[axis];
  if (is_whole(s.type)) {
    ulong sum = product;
    for (int i = 0; i < s.ne[axis]; i++) {
      ulong x = (ulong)load_whole(from + i * ns, s.type);
      sum = product ? sum * x : sum + x;
      store_whole(to + i * nd, d.type, (long)sum);
    }
    return;
  }
  float sum = product, lost = 0.0f;
  for (int i = 0; i < s.ne[axis]; i++) {
    float x = load(from + i * ns, s.type);
    if (product)
      sum *= x;
    else {
      float next = sum + (x - lost);
      lost = isfinite(next) ? (next - sum) - (x - lost) : 0.0f;
      sum = next;
    }
    store(to + i * nd, d.type, sum);
  }
}

/* where the largest (or smallest) so far is along an axis: the later of equals, and from a NaN on
   the last one; an item a line */
__kernel void cumulate_arg(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int smallest,
                           int axis, long n_lines) {
  const long which = get_global_id(0);
  if (which >= n_lines) return;
  bytes_t from = ps + s.at + walked(&s, ~(1 << axis), which);
  __global uchar* to = pd + d.at + walked(&d, ~(1 << axis), which);
  const int floats = !is_whole(s.type);
  long best = LONG_MIN, at = 0;
  for (int i = 0; i < s.ne[axis]; i++) {
    long x = in_order(from + i * s.nb[axis], s.type);
    if (smallest && !(floats && x == LONG_MAX)) x = ~x;
    if (x >= best) {
      best = x;
      at = i;
    }
    *(__global long*)(to + i * d.nb[axis]) = at;
  }
}

/* how many elements of a sorted row are below each value, or, with `right`, at most it; grid over
   the values. All are below a NaN. */
__kernel void search_sorted(bytes_t pr, tensor_t rows, bytes_t pv, tensor_t v, __global uchar* pd,
                            tensor_t d, int right) {
  PLACE
  const int r1 = rows.ne[1] > 1 ? i1 : 0, r2 = rows.ne[2] > 1 ? i2 : 0;
  bytes_t row = pr + at4(&rows, 0, r1, r2, rows.ne[3] > 1 ? i3 : 0);
  bytes_t value = pv + at4(&v, i0, i1, i2, i3);
  const int whole = is_whole(v.type);
  const long n = whole ? load_whole(value, v.type) : 0;
  const float f = whole ? 0.0f : load(value, v.type);
  int begin = 0, end = rows.ne[0];
  while (begin < end) {
    const int middle = begin + (end - begin) / 2;
    bytes_t p = row + middle * rows.nb[0];
    int above;
    if (whole) {
      const long x = load_whole(p, rows.type);
      above = right ? x > n : x >= n;
    } else {
      const float x = load(p, rows.type);
      above = right ? x > f : x >= f;
    }
    if (above)
      end = middle;
    else
      begin = middle + 1;
  }
  *(__global long*)(pd + at4(&d, i0, i1, i2, i3)) = begin;
}

/* the p-norm of the difference of a row of a and a row of b; grid over the result */
__kernel void cdist(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, __global uchar* pd, tensor_t d,
                    float p) {
  PLACE
  bytes_t x = pa + at4(&a, 0, i1, a.ne[2] > 1 ? i2 : 0, a.ne[3] > 1 ? i3 : 0);
  bytes_t y = pb + at4(&b, 0, i0, b.ne[2] > 1 ? i2 : 0, b.ne[3] > 1 ? i3 : 0);
  float sum = 0.0f;
  for (int i = 0; i < a.ne[0]; i++) {
    const float off = fabs(load(x + i * a.nb[0], a.type) - load(y + i * b.nb[0], b.type));
    if (p == 0.0f)
      sum += off != 0.0f;
    else if (isinf(p))
      sum = off > sum || isnan(off) ? off : sum;
    else
      sum += p == 1.0f ? off : p == 2.0f ? off * off : pow(off, p);
  }
  if (p == 2.0f)
    sum = sqrt(sum);
  else if (p != 0.0f && p != 1.0f && !isinf(p))
    sum = pow(sum, 1.0f / p);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, sum);
}
