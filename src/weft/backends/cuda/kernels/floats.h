/* Rows of f32, f16 and bf16: four or eight numbers at a time. A row is given by its first byte; X and
   W are the types of activations and weights. With ALIGNED, every row begins at a multiple of 16
   bytes. */

struct f32 {
  enum { BYTES = 4 };
  static __device__ __forceinline__ float one(const uchar* row, long i) {
    return ((const float*)row)[i];
  }
  static __device__ __forceinline__ void four(const uchar* row, long i, float v[4]) {
    const float4 u = *(const float4*)(row + 4 * i);
    v[0] = u.x;
    v[1] = u.y;
    v[2] = u.z;
    v[3] = u.w;
  }
};

struct f16 {
  enum { BYTES = 2 };
  static __device__ __forceinline__ float one(const uchar* row, long i) {
    return half_to_float(((const half_t*)row)[i]);
  }
  static __device__ __forceinline__ void two(uint w, float v[2]) {
    v[0] = low_half(w);
    v[1] = high_half(w);
  }
  static __device__ __forceinline__ void four(const uchar* row, long i, float v[4]) {
    const uint2 u = *(const uint2*)(row + 2 * i);
    two(u.x, v);
    two(u.y, v + 2);
  }
};

struct bf16 {
  enum { BYTES = 2 };
  static __device__ __forceinline__ float one(const uchar* row, long i) {
    return bf16_to_float(((const bf16_t*)row)[i]);
  }
  static __device__ __forceinline__ void two(uint w, float v[2]) {
    v[0] = low_bf16(w);
    v[1] = high_bf16(w);
  }
  static __device__ __forceinline__ void four(const uchar* row, long i, float v[4]) {
    const uint2 u = *(const uint2*)(row + 2 * i);
    two(u.x, v);
    two(u.y, v + 2);
  }
};

/* Elements i .. i + 3 of a row of activations. */
static __device__ __forceinline__ void load_4(const uchar* row, long i, float v[4]) {
#ifdef ALIGNED
  X::four(row, i, v);
#else
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = X::one(row, i + k);
#endif
}
