/* For kernels with one item per element of the result: grid (ne0, ne1, ne2 * ne3). */

#define PLACE                                                                 \
  const int i0 = get_global_id(0), i1 = get_global_id(1);                     \
  const int i2 = get_global_id(2) % d.ne[2], i3 = get_global_id(2) / d.ne[2]; \
  if (i0 >= d.ne[0]) return;
