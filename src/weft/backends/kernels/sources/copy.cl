/* Copies with and without conversion, and rows that are read or written by index. */

/* Copies elements or blocks without conversion. An item is one of them; a row of s has sn0, a row
   of d dn0. */
__kernel void move(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int sn0, int dn0,
                   int bytes, long n) {
  long i = get_global_id(0);
  if (i >= n) return;
  move_unit(pd + nth(&d, dn0, i), ps + nth(&s, sn0, i), bytes);
}

/* Converts between plain types. An item is an element. */
__kernel void convert(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, long n) {
  long i = get_global_id(0);
  if (i >= n) return;
  store(pd + nth(&d, d.ne[0], i), d.type, load(ps + nth(&s, s.ne[0], i), s.type));
}

static inline void store16(__global uchar* p, long nb, int type, float16 x) {
  if (type == F32 && nb == 4) {
    vstore16(x, 0, (__global float*)p);
    return;
  }
  float v[16];
  vstore16(x, 0, v);
  ONE_BY_ONE
  for (int i = 0; i < 16; i++) store(p + i * nb, type, v[i]);
}

#if defined(W) && !defined(PLANES)
/* Decodes blocks of format W. An item is a unit of 32 elements. Source and result have the same
   rows, or are contiguous. */
__kernel void decode(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, long n) {
  long i = get_global_id(0);
  if (i >= n) return;
  const int n_units = s.ne[0] / 32;
  long row = i / n_units;
  bytes_t from = ps + at4(&s, 0, row % s.ne[1], row / s.ne[1] % s.ne[2], row / s.ne[1] / s.ne[2]);
  float16 lo, hi;
  JOIN(unit_, W)(from, i % n_units, &lo, &hi);
  for (int half_unit = 0; half_unit < 2; half_unit++) {
    __global uchar* to = pd + nth(&d, d.ne[0], 32 * i + 16 * half_unit);
    store16(to, d.nb[0], d.type, half_unit ? hi : lo);
  }
}
#endif

#ifdef W
/* Reads rows of blocks, or of planes, by index. s has the rows from `first` on, of n_rows; results
   of other rows are left as they are. Grid (units, ids, batches of ids). */
__kernel void get_rows_of_blocks(bytes_t ps, tensor_t s, bytes_t pi, tensor_t ids,
                                 __global uchar* pd, tensor_t d, int first, int n_rows,
                                 __global int* fault, int step) {
  const int u = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2];
  if (u >= s.ne[0] / 32) return;
  long row = checked_index(pi + at4(&ids, i1, i2, i3, 0), ids.type, n_rows, fault, step) - first;
  if (row < 0 || row >= s.ne[1]) return;
  float16 lo, hi;
  JOIN(unit_, W)(WEIGHTS_ROW(ps, &s, row, i2, i3), u, &lo, &hi);
  __global uchar* to = pd + at4(&d, 32 * u, i1, i2, i3);
  store16(to, d.nb[0], d.type, lo);
  store16(to + 16 * d.nb[0], d.nb[0], d.type, hi);
}
#endif

/* Reads rows by index, as above; grid (elements, ids, batches of ids). */
__kernel void get_rows(bytes_t ps, tensor_t s, bytes_t pi, tensor_t ids, __global uchar* pd,
                       tensor_t d, int first, int n_rows, __global int* fault, int step) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2];
  if (i0 >= d.ne[0]) return;
  long row = checked_index(pi + at4(&ids, i1, i2, i3, 0), ids.type, n_rows, fault, step) - first;
  if (row < 0 || row >= s.ne[1]) return;
  bytes_t from = ps + at4(&s, i0, row, i2, i3);
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  if (s.type == d.type)
    move_unit(to, from, s.type == F16 || s.type == BF16 || s.type == I16 ? 2 : 4);
  else
    store(to, d.type, load(from, s.type));
}

/* Writes row i of s to row ids[i] of d; grid (elements, rows, batches). */
__kernel void set_rows(bytes_t ps, tensor_t s, bytes_t pi, tensor_t ids, __global uchar* pd,
                       tensor_t d, __global int* fault, int step) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  if (i0 >= s.ne[0]) return;
  long row = checked_index(pi + at4(&ids, i1, i2 % ids.ne[1], i3 % ids.ne[2], 0), ids.type, d.ne[1],
                           fault, step);
  if (row < 0) return;
  store(pd + at4(&d, i0, row, i2, i3), d.type, load(ps + at4(&s, i0, i1, i2, i3), s.type));
}

#ifdef PUT
/* Encodes numbers as blocks of format PUT. An item is a block. */
__kernel void encode(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, long n) {
  long i = get_global_id(0);
  if (i >= n) return;
  JOIN(put_, PUT)(ps + nth(&s, s.ne[0], 32 * i), s.nb[0], s.type, pd + nth(&d, d.ne[0] / 32, i));
}

/* Encodes row i of s as row ids[i] of d; grid (blocks, rows, batches). */
__kernel void set_rows_of_blocks(bytes_t ps, tensor_t s, bytes_t pi, tensor_t ids,
                                 __global uchar* pd, tensor_t d, __global int* fault, int step) {
  const int b = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  if (b >= s.ne[0] / 32) return;
  long row = checked_index(pi + at4(&ids, i1, i2 % ids.ne[1], i3 % ids.ne[2], 0), ids.type, d.ne[1],
                           fault, step);
  if (row < 0) return;
  JOIN(put_, PUT)(ps + at4(&s, 32 * b, i1, i2, i3), s.nb[0], s.type, pd + at4(&d, b, row, i2, i3));
}
#endif

/* Copies s to d, from index `start` of dimension `dim` on; grid (ne0, ne1, ne2 * ne3) of s. */
__kernel void place(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int dim, int start,
                    int bytes) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  if (i0 >= s.ne[0]) return;
  move_unit(pd + at4(&d, i0 + (dim == 0) * start, i1 + (dim == 1) * start, i2 + (dim == 2) * start,
                     i3 + (dim == 3) * start),
            ps + at4(&s, i0, i1, i2, i3), bytes);
}

/* Repeats s to the shape of the result; grid over the result. */
__kernel void repeat(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int bytes) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2];
  if (i0 >= d.ne[0]) return;
  move_unit(pd + at4(&d, i0, i1, i2, i3),
            ps + at4(&s, i0 % s.ne[0], i1 % s.ne[1], i2 % s.ne[2], i3 % s.ne[3]), bytes);
}

/* b written over (or added to) a region of d; grid over b */
__kernel void region(bytes_t pb, tensor_t b, __global uchar* pd, tensor_t d, int add) {
  const int i0 = get_global_id(0), i1 = get_global_id(1);
  const int i2 = get_global_id(2) % b.ne[2], i3 = get_global_id(2) / b.ne[2];
  if (i0 >= b.ne[0]) return;
  bytes_t from = pb + at4(&b, i0, i1, i2, i3);
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  if (add)
    store(to, d.type, load(to, d.type) + load(from, b.type));
  else if (b.type == d.type)
    move_unit(to, from, d.type == F16 || d.type == BF16 ? 2 : 4);
  else
    store(to, d.type, load(from, b.type));
}
