/* Convolutions in one to three dimensions, and their transposes. An item computes one element of
   the result: it adds up all taps of all its channels. */

typedef struct {
  long at;
  long nb[5]; /* byte strides of width, height, depth, channel, batch */
  int ne[5];
  int type;
} field_t;

/* The element of the result that item `i` computes. Neighbouring items write adjacent elements. */
#ifdef CHANNELS_LAST
#define PLACE_OF_ITEM                                               \
  const int oc = i % d.ne[3], ow = i / d.ne[3] % d.ne[0];           \
  const long planes = i / d.ne[3] / d.ne[0];                        \
  const int oh = planes % d.ne[1], od = planes / d.ne[1] % d.ne[2]; \
  const int batch = planes / d.ne[1] / d.ne[2];
#else
#define PLACE_OF_ITEM                                               \
  const int ow = i % d.ne[0], oh = i / d.ne[0] % d.ne[1];           \
  const long planes = i / d.ne[0] / d.ne[1];                        \
  const int od = planes % d.ne[2], oc = planes / d.ne[2] % d.ne[3]; \
  const int batch = planes / d.ne[2] / d.ne[3];
#endif
#define PLACE_OF_FIELD                                                           \
  const long i = get_global_id(0);                                               \
  if (i >= n) return;                                                            \
  PLACE_OF_ITEM                                                                  \
  const int out = d.ne[3] / groups, group = oc / out;                            \
  const int channels = x.ne[3] / groups;                                         \
  bytes_t from = px + x.at + (long)group * channels * x.nb[3] + batch * x.nb[4]; \
  float sum = has_bias ? load(pb + bias.at + oc * bias.nb[0], bias.type) : 0.0f;

static inline void finish(__global uchar* p, const field_t* d, int w, int h, int z, int c, int b,
                          float x) {
  store(p + d->at + w * d->nb[0] + h * d->nb[1] + z * d->nb[2] + c * d->nb[3] + b * d->nb[4],
        d->type, x);
}

/* Kernels are [taps, channels of a group, channels out]. With `adds`, `added` has the shape of the
   result and is added to it. The result is clamped to low..high. */
__kernel void conv(bytes_t px, field_t x, bytes_t pw, field_t w, bytes_t pb, tensor_t bias,
                   bytes_t pr, field_t added, __global uchar* pd, field_t d, int groups,
                   int4 stride, int4 padding, int4 dilation, int has_bias, int adds, float low,
                   float high, long n) {
  PLACE_OF_FIELD
  bytes_t taps = pw + w.at + oc * w.nb[4];
  for (int kz = 0; kz < w.ne[2]; kz++) {
    const int iz = od * stride.z + kz * dilation.z - padding.z;
    if (iz < 0 || iz >= x.ne[2]) continue;
    for (int ky = 0; ky < w.ne[1]; ky++) {
      const int iy = oh * stride.y + ky * dilation.y - padding.y;
      if (iy < 0 || iy >= x.ne[1]) continue;
      for (int kx = 0; kx < w.ne[0]; kx++) {
        const int ix = ow * stride.x + kx * dilation.x - padding.x;
        if (ix < 0 || ix >= x.ne[0]) continue;
        bytes_t a = from + ix * x.nb[0] + iy * x.nb[1] + iz * x.nb[2];
        bytes_t b = taps + kx * w.nb[0] + ky * w.nb[1] + kz * w.nb[2];
        for (int c = 0; c < channels; c++)
          sum += load(a + c * x.nb[3], x.type) * load(b + c * w.nb[3], w.type);
      }
    }
  }
  if (adds)
    sum += load(pr + added.at + ow * added.nb[0] + oh * added.nb[1] + od * added.nb[2] +
                    oc * added.nb[3] + batch * added.nb[4],
                added.type);
  /* A NaN stays. */
  sum = sum < low ? low : sum > high ? high : sum;
  finish(pd, &d, ow, oh, od, oc, batch, sum);
}

/* The place of the source that tap `k` adds to place `o` of the result; -1 if there is none. */
static inline int brought(int o, int k, int stride, int padding, int dilation, int size) {
  const int at = o + padding - k * dilation;
  return at >= 0 && at % stride == 0 && at / stride < size ? at / stride : -1;
}

/* Kernels are [taps, channels out of a group, channels in]. */
__kernel void conv_transposed(bytes_t px, field_t x, bytes_t pw, field_t w, bytes_t pb,
                              tensor_t bias, __global uchar* pd, field_t d, int groups, int4 stride,
                              int4 padding, int4 dilation, int has_bias, long n) {
  PLACE_OF_FIELD
  bytes_t taps = pw + w.at + (oc - group * out) * w.nb[4] + (long)group * channels * w.nb[3];
  for (int kz = 0; kz < w.ne[2]; kz++) {
    const int iz = brought(od, kz, stride.z, padding.z, dilation.z, x.ne[2]);
    if (iz < 0) continue;
    for (int ky = 0; ky < w.ne[1]; ky++) {
      const int iy = brought(oh, ky, stride.y, padding.y, dilation.y, x.ne[1]);
      if (iy < 0) continue;
      for (int kx = 0; kx < w.ne[0]; kx++) {
        const int ix = brought(ow, kx, stride.x, padding.x, dilation.x, x.ne[0]);
        if (ix < 0) continue;
        bytes_t a = from + ix * x.nb[0] + iy * x.nb[1] + iz * x.nb[2];
        bytes_t b = taps + kx * w.nb[0] + ky * w.nb[1] + kz * w.nb[2];
        for (int c = 0; c < channels; c++)
          sum += load(a + c * x.nb[3], x.type) * load(b + c * w.nb[3], w.type);
      }
    }
  }
  finish(pd, &d, ow, oh, od, oc, batch, sum);
}

/* the patches that a kernel of `taps` (w, h, d, channels) takes, as rows; grid over the result,
   whose last dimension outputs along depth and batches share */
__kernel void im2col(bytes_t px, tensor_t x, __global uchar* pd, tensor_t d, int4 taps, int4 stride,
                     int4 padding, int4 dilation, int depth) {
  PLACE
  const int kx = i0 % taps.x, ky = i0 / taps.x % taps.y;
  const int kz = i0 / taps.x / taps.y % taps.z, c = i0 / taps.x / taps.y / taps.z;
  const int ix = i1 * stride.x + kx * dilation.x - padding.x;
  const int iy = i2 * stride.y + ky * dilation.y - padding.y;
  const int iz = i3 % depth * stride.z + kz * dilation.z - padding.z;
  float v = 0.0f;
  if (ix >= 0 && ix < x.ne[0] && iy >= 0 && iy < x.ne[1] && iz >= 0 && iz < x.ne[2])
    v = load(px + at4(&x, ix, iy, iz, i3 / depth * taps.w + c), x.type);
  store(pd + at4(&d, i0, i1, i2, i3), d.type, v);
}

/* Adds up columns [channels * k, length] at their places; grid (places, channels). */
__kernel void col2im(bytes_t ps, tensor_t s, __global uchar* pd, tensor_t d, int k, int stride,
                     int padding) {
  PLACE
  float sum = 0.0f;
  for (int tap = 0; tap < k; tap++) {
    const int column = brought(i0, tap, stride, padding, 1, s.ne[1]);
    if (column >= 0) sum += load(ps + at4(&s, i1 * k + tap, column, 0, 0), s.type);
  }
  store(pd + at4(&d, i0, i1, i2, i3), d.type, sum);
}
