/* Gradients and losses. */

/* The sum of the tiles that REPEAT would make; grid over the result. */
__kernel void repeat_back(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d) {
  PLACE
  float sum = 0.0f;
  for (int k3 = i3; k3 < s.ne[3]; k3 += d.ne[3])
    for (int k2 = i2; k2 < s.ne[2]; k2 += d.ne[2])
      for (int k1 = i1; k1 < s.ne[1]; k1 += d.ne[1])
        for (int k0 = i0; k0 < s.ne[0]; k0 += d.ne[0])
          sum += load(ps + at4(&s, k0, k1, k2, k3), s.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, sum);
}

/* Adds up rows by index; grid over the result. Each item goes through all `n` indices. */
__kernel void get_rows_back(bytes_t ps, tensor_t s, bytes_t pi, tensor_t ids, __global uchar* pd,
                            tensor_t d, int n, __global int* fault, int step) {
  PLACE
  float sum = 0.0f;
  for (int k = 0; k < n; k++) {
    long row = checked_index(
        pi + at4(&ids, k % ids.ne[0], k / ids.ne[0] % ids.ne[1], k / ids.ne[0] / ids.ne[1], 0),
        ids.type, d.ne[1], fault, step);
    if (row == i1 && i2 == 0 && i3 == 0) sum += load(ps + at4(&s, i0, k, 0, 0), s.type);
  }
  store(pd + at4(&d, i0, i1, i2, i3), d.type, sum);
}

/* -mean over rows of sum(labels * log_softmax(logits)); one group */
__kernel void cross_entropy(bytes_t pa, tensor_t a, bytes_t pb, tensor_t b, __global uchar* pd,
                            tensor_t d, long n_rows, LOCAL(float) tmp) {
  float total = 0.0f;
  for (long row = ITEM; row < n_rows; row += get_local_size(0)) {
    const int i1 = row % a.ne[1], i2 = row / a.ne[1] % a.ne[2], i3 = row / a.ne[1] / a.ne[2];
    bytes_t x = pa + at4(&a, 0, i1, i2, i3), y = pb + at4(&b, 0, i1, i2, i3);
    float top = -INFINITY, sum = 0.0f;
    for (int i = 0; i < a.ne[0]; i++) top = fmax(top, load(x + i * a.nb[0], a.type));
    for (int i = 0; i < a.ne[0]; i++) sum += exp(load(x + i * a.nb[0], a.type) - top);
    const float less = top + log(sum);
    for (int i = 0; i < a.ne[0]; i++)
      total += load(y + i * b.nb[0], b.type) * (load(x + i * a.nb[0], a.type) - less);
  }
  total = group_sum(total, tmp);
  if (ITEM == 0) store(pd + d.at, d.type, -total / n_rows);
}
