/* Rows of f32, f16 and bf16. A row is given by its first byte; X and W are the types of activations
   and weights. one(): element i; four(): elements i .. i + 3; eight_once(): elements 8 i .. 8 i + 7
   of weights, which are read once. All but the first need rows that begin at a multiple of 16
   bytes; ALIGNED says that activations have such. */

typedef uint4 words_t; /* CUDA's, also behind opencl.h */

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
  static __device__ __forceinline__ void eight_once(const uchar* row, int i, float v[8]) {
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const uint4 u = load_once((const uint4*)row + 2 * i + k);
      v[4 * k] = __uint_as_float(u.x);
      v[4 * k + 1] = __uint_as_float(u.y);
      v[4 * k + 2] = __uint_as_float(u.z);
      v[4 * k + 3] = __uint_as_float(u.w);
    }
  }
};

// Elements of 16 bits; Word has `one` of them as a float, and the `low` and `high` one of a word.
template <typename Word>
struct halves {
  enum { BYTES = 2 };
  static __device__ __forceinline__ float one(const uchar* row, long i) {
    return Word::one(row, i);
  }
  static __device__ __forceinline__ void two(uint w, float v[2]) {
    v[0] = Word::low(w);
    v[1] = Word::high(w);
  }
  static __device__ __forceinline__ void four(const uchar* row, long i, float v[4]) {
    const uint2 u = *(const uint2*)(row + 2 * i);
    two(u.x, v);
    two(u.y, v + 2);
  }
  static __device__ __forceinline__ void eight_once(const uchar* row, int i, float v[8]) {
    const uint4 u = load_once((const uint4*)row + i);
    two(u.x, v);
    two(u.y, v + 2);
    two(u.z, v + 4);
    two(u.w, v + 6);
  }
};

struct f16_word {
  static __device__ __forceinline__ float one(const uchar* row, long i) {
    return half_to_float(((const half_t*)row)[i]);
  }
  static __device__ __forceinline__ float low(uint w) { return low_half(w); }
  static __device__ __forceinline__ float high(uint w) { return high_half(w); }
};

struct bf16_word {
  static __device__ __forceinline__ float one(const uchar* row, long i) {
    return bf16_to_float(((const bf16_t*)row)[i]);
  }
  static __device__ __forceinline__ float low(uint w) { return low_bf16(w); }
  static __device__ __forceinline__ float high(uint w) { return high_bf16(w); }
};

using f16 = halves<f16_word>;
using bf16 = halves<bf16_word>;

/* Elements i .. i + 3 of a row of activations. */
static __device__ __forceinline__ void load_4(const uchar* row, long i, float v[4]) {
#ifdef ALIGNED
  X::four(row, i, v);
#else
#pragma unroll
  for (int k = 0; k < 4; k++) v[k] = X::one(row, i + k);
#endif
}
