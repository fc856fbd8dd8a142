/* Copying elements of any type without converting them. */

/* The place of element `i` of a tensor, counted in order; with n0 blocks per row, that of block
 * `i`. */
static inline long nth(const tensor_t* t, long n0, long i) {
  return t->at + i % n0 * t->nb[0] + i / n0 % t->ne[1] * t->nb[1] +
         i / (n0 * t->ne[1]) % t->ne[2] * t->nb[2] + i / (n0 * t->ne[1] * t->ne[2]) * t->nb[3];
}

static inline void move_unit(__global uchar* to, bytes_t from, int bytes) {
  if (bytes == 4)
    *(__global uint*)to = *(const __global uint*)from;
  else if (bytes == 2)
    *(__global ushort*)to = *(const __global ushort*)from;
  else if (bytes == 8)
    *(__global ulong*)to = *(const __global ulong*)from;
  else
    for (int i = 0; i < bytes; i++) to[i] = from[i];
}
