/* Pooling, resampling, and the windows and relative positions of windowed attention. */

/* The window of output `o`: its first place, one behind its last, and its length with padding. */
static inline int3 window(int o, int size, int outs, int k, int stride, int padding, int dilation,
                          int adaptive) {
  if (adaptive) {
    int first = (long)o * size / outs, last = ((o + 1L) * size + outs - 1) / outs;
    return make_int3(first, last, last - first);
  }
  int first = o * stride - padding, last = first + dilation * (k - 1) + 1;
  return make_int3(first, last, min(last, size + padding) - first);
}

/* The mean, the largest element or its place (PoolKind) in windows over `dims` dimensions; grid
   over the result. `lowest` is the maximum of nothing. A `divisor` of 0 stands for the size of the
   window, with or without padding. */
__kernel void pool(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int kind, int dims,
                   int4 k, int4 stride, int4 padding, int4 dilation, int adaptive, int with_padding,
                   int divisor, float lowest) {
  PLACE
  const int n1 = dims > 1 ? s.ne[1] : 1, n2 = dims > 2 ? s.ne[2] : 1;
  int3 w0 = window(i0, s.ne[0], d.ne[0], k.x, stride.x, padding.x, dilation.x, adaptive);
  int3 w1 = make_int3(0, 1, 1), w2 = w1;
  if (dims > 1) w1 = window(i1, n1, d.ne[1], k.y, stride.y, padding.y, dilation.y, adaptive);
  if (dims > 2) w2 = window(i2, n2, d.ne[2], k.z, stride.z, padding.z, dilation.z, adaptive);
  bytes_t plane = ps + at4(&s, 0, dims > 1 ? 0 : i1, dims > 2 ? 0 : i2, i3);
  float sum = 0.0f, best = lowest;
  long at = 0, count = 0, top = LONG_MIN;
  const int whole = is_whole(s.type);
  for (int z = w2.x; z < w2.y; z += dilation.z) {
    if (z < 0 || z >= n2) continue;
    for (int y = w1.x; y < w1.y; y += dilation.y) {
      if (y < 0 || y >= n1) continue;
      for (int x = w0.x; x < w0.y; x += dilation.x) {
        if (x < 0 || x >= s.ne[0]) continue;
        bytes_t p =
            plane + x * s.nb[0] + (dims > 1 ? y * s.nb[1] : 0) + (dims > 2 ? z * s.nb[2] : 0);
        const long here = x + (long)s.ne[0] * (y + (long)n1 * z);
        if (count == 0) at = here;
        count++;
        if (whole) {
          const long v = load_whole(p, s.type);
          if (v > top) at = here;
          top = max(top, v);
          continue;
        }
        const float v = load(p, s.type);
        sum += v;
        if (v > best || isnan(v)) {
          best = v;
          at = here;
        }
      }
    }
  }
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  if (kind == MAX_INDEX) {
    *(__global long*)to = at;
    return;
  }
  if (whole) {
    store_whole(to, d.type, top);
    return;
  }
  long size = divisor ? divisor : with_padding ? (long)w0.z * w1.z * w2.z : max(count, 1L);
  store(to, d.type, kind == MAX ? best : sum / size);
}

/* Resampling: each output is a weighted sum over `taps` places along each dimension. The tables
   have (place, weight as the bits of a float) for each; grid over the result. */
__kernel void resample(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d,
                       const __global int2* t0, const __global int2* t1, const __global int2* t2,
                       const __global int2* t3, int4 taps) {
  PLACE
  float sum = 0.0f;
  for (int k3 = 0; k3 < taps.w; k3++) {
    const int2 e3 = t3[i3 * taps.w + k3];
    for (int k2 = 0; k2 < taps.z; k2++) {
      const int2 e2 = t2[i2 * taps.z + k2];
      for (int k1 = 0; k1 < taps.y; k1++) {
        const int2 e1 = t1[i1 * taps.y + k1];
        float row = 0.0f;
        for (int k0 = 0; k0 < taps.x; k0++) {
          const int2 e0 = t0[i0 * taps.x + k0];
          if (e0.y == 0) continue; /* 0 times infinity would be a NaN */
          row += as_float(e0.y) * load(ps + at4(&s, e0.x, e1.x, e2.x, e3.x), s.type);
        }
        const float weight = as_float(e1.y) * as_float(e2.y) * as_float(e3.y);
        if (weight != 0.0f) sum += weight * row;
      }
    }
  }
  store(pd + at4(&d, i0, i1, i2, i3), d.type, sum);
}

/* Cuts an image into windows [n, w, w, windows], with zeros beyond its edge. */
__kernel void win_part(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int w, int bytes) {
  PLACE
  const int a_row = (s.ne[1] + w - 1) / w;
  const int x = i3 % a_row * w + i1, y = i3 / a_row * w + i2;
  __global uchar* to = pd + at4(&d, i0, i1, i2, i3);
  if (x < s.ne[1] && y < s.ne[2])
    move_unit(to, ps + at4(&s, i0, x, y, 0), bytes);
  else
    for (int i = 0; i < bytes; i++) to[i] = 0;
}

/* Puts windows back together to an image. */
__kernel void win_unpart(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int w, int bytes) {
  PLACE
  const int a_row = (d.ne[1] + w - 1) / w;
  move_unit(pd + at4(&d, i0, i1, i2, i3), ps + at4(&s, i0, i1 % w, i2 % w, i2 / w * a_row + i1 / w),
            bytes);
}

/* For each pair of positions, the row of a table for their distance; grid (elements, keys,
   queries). */
__kernel void rel_pos(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int bytes) {
  PLACE
  move_unit(pd + at4(&d, i0, i1, i2, i3), ps + at4(&s, i0, d.ne[1] - 1 - i1 + i2, 0, 0), bytes);
}
