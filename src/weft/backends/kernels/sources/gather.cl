/* Gathering and scattering of plain tensors by indices, and padding. Elements are not converted. An
   item writes one element of the result and goes through all values for it in order, so no two
   items write to the same element. */

/* x[..., indices[..., i, ...], ...] along an axis; grid over the result. */
__kernel void gather(bytes_t ps, tensor_t s, bytes_t pi, tensor_t ids, __global uchar* pd,
                     tensor_t d, int axis, int bytes, __global int* fault, int step) {
  PLACE
  long at = wrapped_index(pi + at4(&ids, i0, i1, i2, i3), ids.type, s.ne[axis], fault, step);
  if (at < 0) return;
  const int mine = axis == 0 ? i0 : axis == 1 ? i1 : axis == 2 ? i2 : i3;
  move_unit(pd + at4(&d, i0, i1, i2, i3), ps + at4(&s, i0, i1, i2, i3) + (at - mine) * s.nb[axis],
            bytes);
}

/* An element that values are added to, one after another. */
typedef struct {
  int add, whole; /* whether values are added; whether they are integers */
  float sum;      /* the sums of floats and of integers */
  ulong whole_sum;
} held_t;

/* Puts the element `from` at `to`, where values may replace it. */
static inline held_t begin(__global uchar* to, bytes_t from, int type, int add, int bytes) {
  held_t h = {add, is_whole(type), 0.0f, 0};
  if (!add)
    move_unit(to, from, bytes);
  else if (h.whole)
    h.whole_sum = (ulong)load_whole(from, type);
  else
    h.sum = load(from, type);
  return h;
}

static inline void take(held_t* h, __global uchar* to, bytes_t value, int type, int bytes) {
  if (!h->add)
    move_unit(to, value, bytes);
  else if (h->whole)
    h->whole_sum += (ulong)load_whole(value, type);
  else
    h->sum += load(value, type);
}

static inline void put_sum(const held_t* h, __global uchar* to, int type) {
  if (!h->add) return;
  if (h->whole)
    store_whole(to, type, (long)h->whole_sum);
  else
    store(to, type, h->sum);
}

/* s with values of v at the places along an axis that the indices name; grid over the result. */
__kernel void scatter(bytes_t ps, tensor_t s, bytes_t pi, tensor_t ids, bytes_t pv, tensor_t v,
                      __global uchar* pd, tensor_t d, int axis, int add, int bytes,
                      __global int* fault, int step) {
  PLACE
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  held_t held = begin(to, ps + at4(&s, i0, i1, i2, i3), s.type, add, bytes);
  const int mine = axis == 0 ? i0 : axis == 1 ? i1 : axis == 2 ? i2 : i3;
  if ((axis == 0 || i0 < ids.ne[0]) && (axis == 1 || i1 < ids.ne[1]) &&
      (axis == 2 || i2 < ids.ne[2]) && (axis == 3 || i3 < ids.ne[3])) {
    bytes_t line = pi + at4(&ids, i0, i1, i2, i3) - mine * ids.nb[axis];
    bytes_t values = pv + at4(&v, i0, i1, i2, i3) - mine * v.nb[axis];
    for (int i = 0; i < ids.ne[axis]; i++) {
      if (wrapped_index(line + i * ids.nb[axis], ids.type, s.ne[axis], fault, step) != mine)
        continue;
      take(&held, to, values + i * v.nb[axis], v.type, bytes);
    }
  }
  put_sum(&held, to, d.type);
}

/* The place of an element; dimensions of size 1 are repeated. */
static inline long of_spread(const tensor_t* t, int4 at) {
  return at4(t, t->ne[0] == 1 ? 0 : at.x, t->ne[1] == 1 ? 0 : at.y, t->ne[2] == 1 ? 0 : at.z,
             t->ne[3] == 1 ? 0 : at.w);
}

#define FOUR_INDICES                                                                            \
  bytes_t pi0, tensor_t id0, bytes_t pi1, tensor_t id1, bytes_t pi2, tensor_t id2, bytes_t pi3, \
      tensor_t id3

/* Advanced indexing. `axes` is the mask of dimensions that have an index tensor; that of dimension
   k is argument k. The index tensors are broadcast together and have `rank` dimensions, which are
   the dimensions first..first+rank of the result. */

/* x[indices]; grid over the result. */
__kernel void index_nd(bytes_t ps, tensor_t s, FOUR_INDICES, __global uchar* pd, tensor_t d,
                       int axes, int rank, int first, int bytes, __global int* fault, int step) {
  PLACE
  const int place[4] = {i0, i1, i2, i3};
  int at[4] = {0, 0, 0, 0};
  for (int k = 0; k < rank; k++) at[k] = place[first + k];
  const int4 chosen = make_int4(at[0], at[1], at[2], at[3]);
  bytes_t from = ps + s.at;
  for (int k = 0, next = 0; k < 4; k++) {
    if (axes >> k & 1) {
      const tensor_t* t = k == 0 ? &id0 : k == 1 ? &id1 : k == 2 ? &id2 : &id3;
      bytes_t p = k == 0 ? pi0 : k == 1 ? pi1 : k == 2 ? pi2 : pi3;
      long i = wrapped_index(p + of_spread(t, chosen), t->type, s.ne[k], fault, step);
      if (i < 0) return;
      from += i * s.nb[k];
    } else {
      if (next == first) next += rank;
      if (next < 4) from += place[next] * s.nb[k];
      next++;
    }
  }
  move_unit(pd + at4(&d, i0, i1, i2, i3), from, bytes);
}

/* x with values set at, or added to, x[indices]. The index tensors broadcast together have the
   sizes `sizes` and `n` elements. Grid over the result. */
__kernel void index_put(bytes_t ps, tensor_t s, bytes_t pv, tensor_t v, FOUR_INDICES,
                        __global uchar* pd, tensor_t d, int axes, int rank, int first, int4 sizes,
                        int n, int add, int bytes, __global int* fault, int step) {
  PLACE
  const int place[4] = {i0, i1, i2, i3};
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  held_t held = begin(to, ps + at4(&s, i0, i1, i2, i3), s.type, add, bytes);
  for (int i = 0; i < n; i++) {
    const int4 chosen = make_int4(i % sizes.x, i / sizes.x % sizes.y,
                                  i / sizes.x / sizes.y % sizes.z, i / sizes.x / sizes.y / sizes.z);
    const int of_index[4] = {chosen.x, chosen.y, chosen.z, chosen.w};
    int here = 1, at[4] = {0, 0, 0, 0};
    for (int k = 0; k < rank; k++) at[first + k] = of_index[k];
    for (int k = 0, next = 0; k < 4; k++) {
      if (axes >> k & 1) {
        const tensor_t* t = k == 0 ? &id0 : k == 1 ? &id1 : k == 2 ? &id2 : &id3;
        bytes_t p = k == 0 ? pi0 : k == 1 ? pi1 : k == 2 ? pi2 : pi3;
        here &= wrapped_index(p + of_spread(t, chosen), t->type, s.ne[k], fault, step) == place[k];
      } else {
        if (next == first) next += rank;
        if (next < 4) at[next] = place[k];
        next++;
      }
    }
    if (!here) continue;
    take(&held, to, pv + of_spread(&v, make_int4(at[0], at[1], at[2], at[3])), v.type, bytes);
  }
  put_sum(&held, to, d.type);
}

/* The place in 0 .. n-1 that a PadMode puts at place `i`; -1 where it puts the constant. */
static inline int folded(int i, int n, int mode) {
  if (mode == CONSTANT) return i >= 0 && i < n ? i : -1;
  if (mode == REFLECT && n > 1) {
    const int period = 2 * (n - 1);
    i = (i % period + period) % period;
    return min(i, period - i);
  }
  if (mode == CIRCULAR) return (i % n + n) % n;
  return clamp(i, 0, n - 1);
}

/* Adds elements around s, or removes some; grid over the result. The lowest bytes of `fill` are the
   constant. */
__kernel void pad_nd(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int4 left, int mode,
                     ulong fill, int bytes) {
  PLACE
  const int a0 = folded(i0 - left.x, s.ne[0], mode), a1 = folded(i1 - left.y, s.ne[1], mode);
  const int a2 = folded(i2 - left.z, s.ne[2], mode), a3 = folded(i3 - left.w, s.ne[3], mode);
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  if (a0 >= 0 && a1 >= 0 && a2 >= 0 && a3 >= 0)
    move_unit(to, ps + at4(&s, a0, a1, a2, a3), bytes);
  else
    for (int i = 0; i < bytes; i++) to[i] = (uchar)(fill >> (8 * i));
}
