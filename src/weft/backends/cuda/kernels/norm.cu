/* A scaled norm (norm.cl says what it is) whose results are there as floats and as bytes for the
   products that read them. All is f32, rows begin at multiples of 16 bytes and are whole units.
   A group of THREADS computes a row; grid (rows). */

enum { THREADS = 256 };

static __device__ __forceinline__ float sum_of_block(float x) {
  __shared__ float of_warps[THREADS / 32];
#pragma unroll
  for (int m = 16; m > 0; m /= 2) x += __shfl_xor_sync(0xffffffffu, x, m);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0.0f;
#pragma unroll
  for (int i = 0; i < THREADS / 32; i++) x += of_warps[i];
  return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    norm_bytes(const uchar* ps, tensor_t s, const uchar* pw, tensor_t w, const uchar* pb,
               tensor_t b, const uchar* pa, tensor_t a, uchar* pd, tensor_t d, uchar* to,
               int centred, int has_bias, int has_addend, float eps) {
  const int n = s.ne[0], row = (int)blockIdx.x;
  const int i1 = row % s.ne[1], i2 = row / s.ne[1] % s.ne[2], i3 = row / s.ne[1] / s.ne[2];
  const uchar* from = ps + s.at + i1 * s.nb[1] + i2 * s.nb[2] + i3 * s.nb[3];
  const uchar* addend = pa + a.at + i1 * a.nb[1] + i2 * a.nb[2] + i3 * a.nb[3];
  uchar* out = pd + d.at + i1 * d.nb[1] + i2 * d.nb[2] + i3 * d.nb[3];
  const auto four = [&](int i, float v[4]) {
    f32::four(from, i, v);
    if (!has_addend) return;
    float more[4];
    f32::four(addend, i, more);
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] += more[e];
  };
  float mean = 0.0f, v[4];
  if (centred) {
    float sum = 0.0f;
    for (int i = 4 * (int)threadIdx.x; i < n; i += 4 * THREADS) {
      four(i, v);
      sum += v[0] + v[1] + v[2] + v[3];
    }
    mean = sum_of_block(sum) / (float)n;
  }
  float squares = 0.0f;
  for (int i = 4 * (int)threadIdx.x; i < n; i += 4 * THREADS) {
    four(i, v);
#pragma unroll
    for (int e = 0; e < 4; e++) squares = fmaf(v[e] - mean, v[e] - mean, squares);
  }
  const float scale = 1.0f / sqrtf(sum_of_block(squares) / (float)n + eps);
  const long units = n / 32, all = units * s.ne[1] * s.ne[2] * s.ne[3];
  for (int first = 0; first < n; first += 4 * THREADS) {
    const int at = first + 4 * (int)threadIdx.x, i = min(at, n - 4);
    float weights[4], biases[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    four(i, v);
    f32::four(pw + w.at, i, weights);
    if (has_bias) f32::four(pb + b.at, i, biases);
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] = fmaf((v[e] - mean) * scale, weights[e], biases[e]);
    if (at < n) *(float4*)(out + 4 * i) = make_float4(v[0], v[1], v[2], v[3]);
    store_unit(v, to, row * units + i / 32, all, at < n);
  }
}
