/* Normalization. A group computes one row; grid (group, ne1, ne2 * ne3). */

#define ROW                                                                   \
  const int l = ITEM, n_items = get_local_size(0);                            \
  const int i1 = get_global_id(1);                                            \
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2]; \
  bytes_t row = ps + at4(&s, 0, i1, i2, i3);

__kernel void norm(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int kind, float eps,
                   LOCAL(float) tmp) {
  ROW __global uchar* out = pd + at4(&d, 0, i1, i2, i3);
  float mean = 0.0f;
  if (kind == NORM) {
    float sum = 0.0f;
    for (int i = l; i < s.ne[0]; i += n_items) sum += load(row + i * s.nb[0], s.type);
    mean = group_sum(sum, tmp) / s.ne[0];
  }
  float sum = 0.0f;
  for (int i = l; i < s.ne[0]; i += n_items) {
    float x = load(row + i * s.nb[0], s.type) - mean;
    sum += x * x;
  }
  sum = group_sum(sum, tmp);
  float scale = kind == L2_NORM ? 1.0f / fmax(sqrt(sum), eps) : 1.0f / sqrt(sum / s.ne[0] + eps);
  for (int i = l; i < s.ne[0]; i += n_items) {
    store(out + i * d.nb[0], d.type, (load(row + i * s.nb[0], s.type) - mean) * scale);
  }
}

/* NORM or RMS_NORM of x, or of x + addend, times a row of weights, plus an optional row of biases.
   For a source that is absent, the arguments are those of x. With TO_ and a form (activations.h),
   results are there as bytes, too. */
#ifdef TO_BYTES
#define FOR_BYTES , __global uchar *to, LOCAL(uint) codes
#else
#define FOR_BYTES
#endif
__kernel void norm_scale(bytes_t ps, tensor_t s, bytes_t pw, tensor_t w, bytes_t pb, tensor_t b,
                         bytes_t pa, tensor_t a, __global uchar* pd, tensor_t d, int kind,
                         int has_bias, int has_addend, float eps, LOCAL(float) tmp FOR_BYTES) {
  ROW bytes_t add = pa + at4(&a, 0, i1, i2, i3);
  __global uchar* out = pd + at4(&d, 0, i1, i2, i3);
#define VALUE(i) \
  (load(row + (i) * s.nb[0], s.type) + (has_addend ? load(add + (i) * a.nb[0], a.type) : 0.0f))
  float mean = 0.0f;
  if (kind == NORM) {
    float sum = 0.0f;
    for (int i = l; i < s.ne[0]; i += n_items) sum += VALUE(i);
    mean = group_sum(sum, tmp) / s.ne[0];
  }
  float sum = 0.0f;
  for (int i = l; i < s.ne[0]; i += n_items) {
    float x = VALUE(i) - mean;
    sum += x * x;
  }
  float scale = 1.0f / sqrt(group_sum(sum, tmp) / s.ne[0] + eps);
#ifdef TO_BYTES
  const long spans = s.ne[0] / SPAN, first_span = (get_global_id(2) * s.ne[1] + i1) * spans;
  for (int first = 0; first < s.ne[0]; first += 4 * n_items) {
    const int at = first + 4 * l, i0 = min(at, s.ne[0] - 4);
    float v[4];
    for (int e = 0; e < 4; e++) {
      const int i = i0 + e;
      v[e] = (VALUE(i) - mean) * scale * load(pw + w.at + i * w.nb[0], w.type);
      if (has_bias) v[e] += load(pb + b.at + i * b.nb[0], b.type);
      if (at < s.ne[0]) store(out + i * d.nb[0], d.type, v[e]);
    }
    put_bytes(make_float4(v[0], v[1], v[2], v[3]), first_span + i0 / SPAN,
              spans * s.ne[1] * s.ne[2] * s.ne[3], at < s.ne[0], l, to, codes);
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#else
  for (int i = l; i < s.ne[0]; i += n_items) {
    float x = (VALUE(i) - mean) * scale * load(pw + w.at + i * w.nb[0], w.type);
    if (has_bias) x += load(pb + b.at + i * b.nb[0], b.type);
    store(out + i * d.nb[0], d.type, x);
  }
#endif
}

/* A group of items computes a group of `size` channels of a batch; grid (group, groups, ne3). */
__kernel void group_norm(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int size,
                         float eps, LOCAL(float) tmp) {
  const int l = ITEM, n_items = get_local_size(0), i3 = get_global_id(2);
  const int first = get_global_id(1) * size, last = min(first + size, s.ne[2]);
  const int n_rows = s.ne[1] * (last - first);
  const float n = (float)s.ne[0] * n_rows;
  int side = 1; /* items beside each other in a row; the others have the next rows */
  while (side < n_items && side < s.ne[0]) side *= 2;
#define EACH                                              \
  for (int r = l / side; r < n_rows; r += n_items / side) \
    for (int i = l % side; i < s.ne[0]; i += side)
#define INDICES i, r % s.ne[1], first + r / s.ne[1], i3
  float sum = 0.0f;
  EACH sum += load(ps + at4(&s, INDICES), s.type);
  float mean = group_sum(sum, tmp) / n;
  sum = 0.0f;
  EACH {
    float x = load(ps + at4(&s, INDICES), s.type) - mean;
    sum += x * x;
  }
  float scale = 1.0f / sqrt(group_sum(sum, tmp) / n + eps);
  EACH store(pd + at4(&d, INDICES), d.type, (load(ps + at4(&s, INDICES), s.type) - mean) * scale);
}
