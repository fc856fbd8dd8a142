/* softmax(x * scale + slope * mask) of each row; grid (group, rows, heads * batches). A sink is one
   more logit of its head, which counts for the maximum and the sum only. */

__kernel void soft_max(bytes_t ps, tensor_t s, bytes_t pm, tensor_t m, bytes_t pk, tensor_t sinks,
                       __global uchar* pd, tensor_t d, int has_mask, int has_sinks, float scale,
                       const __global float* slopes, LOCAL(float) tmp) {
  const int l = ITEM, n_items = get_local_size(0);
  const int i1 = get_global_id(1);
  const int i2 = get_global_id(2) % s.ne[2], i3 = get_global_id(2) / s.ne[2];
  bytes_t row = ps + at4(&s, 0, i1, i2, i3);
  bytes_t mask = pm + (has_mask ? at4(&m, 0, i1, i2 % m.ne[2], i3 % m.ne[3]) : 0);
  __global uchar* out = pd + at4(&d, 0, i1, i2, i3);
  float slope = slopes[i2];
#define LOGIT(i)                               \
  (load(row + (i) * s.nb[0], s.type) * scale + \
   (has_mask ? slope * load(mask + (i) * m.nb[0], m.type) : 0.0f))
  float sink = has_sinks ? load(pk + sinks.at + i2 * sinks.nb[0], sinks.type) : -INFINITY;
  float top = sink;
  for (int i = l; i < s.ne[0]; i += n_items) top = fmax(top, LOGIT(i));
  top = group_max(top, tmp);
  float sum = 0.0f;
  for (int i = l; i < s.ne[0]; i += n_items) {
    float e = exp(LOGIT(i) - top);
    sum += e;
    /* The result may be the source: an item has read an element before it overwrites it. */
    store(out + i * d.nb[0], d.type, e);
  }
  sum = group_sum(sum, tmp);
  if (has_sinks) sum += exp(sink - top);
  float inverse = 1.0f / sum;
  for (int i = l; i < s.ne[0]; i += n_items) {
    store(out + i * d.nb[0], d.type, load(out + i * d.nb[0], d.type) * inverse);
  }
}
