/* Arithmetic on two tensors. */

/* a op b, where b is repeated to the shape of a; grid over the result. */
__kernel void binary(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, __global uchar* pd, tensor_t d,
                     int op) {
  PLACE
  float x = load(pa + at4(&a, i0, i1, i2, i3), a.type);
  float y =
      load(pb + at4(&b, b.ne[0] == 1 ? 0 : i0 % b.ne[0], i1 % b.ne[1], i2 % b.ne[2], i3 % b.ne[3]),
           b.type);
  float r = op == ADD ? x + y : op == SUB ? x - y : op == MUL ? x * y : x / y;
  store(pd + at4(&d, i0, i1, i2, i3), d.type, r);
}

/* a plus, for each row, the row ids[i1, i2] of b; grid over the result. */
__kernel void add_id(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, bytes_t pi, tensor_t ids,
                     __global uchar* pd, tensor_t d, __global int* fault, int step) {
  PLACE
  long row = checked_index(pi + at4(&ids, i1, i2, 0, 0), ids.type, b.ne[1], fault, step);
  if (row < 0) return;
  float x = load(pa + at4(&a, i0, i1, i2, i3), a.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, x + load(pb + at4(&b, i0, row, 0, 0), b.type));
}
