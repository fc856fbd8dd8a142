/* What kernels may use beyond CUDA C++ itself, one instruction each (tests/cuda_shim/README.md has
   the list; the emulator there defines the same names). It needs no header of CUDA, so that NVRTC
   alone compiles kernels. */

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef long long int64;

/* ---- numbers of 16 bits -----------------------------------------------------------------------
 */

typedef struct {
  ushort bits;
} half_t;
typedef struct {
  ushort bits;
} bf16_t;

static __device__ __forceinline__ float half_to_float(half_t h) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h.bits));
  return x;
}
static __device__ __forceinline__ half_t float_to_half(float x) {
  half_t h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h.bits) : "f"(x));
  return h;
}
static __device__ __forceinline__ float bf16_to_float(bf16_t b) {
  return __uint_as_float((uint)b.bits << 16);
}
static __device__ __forceinline__ bf16_t float_to_bf16(float x) {
  const uint bits = __float_as_uint(x);
  bf16_t b;
  b.bits = (bits & 0x7fffffffu) > 0x7f800000u
               ? (ushort)0x7fff
               : (ushort)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  return b;
}
static __device__ __forceinline__ float low_half(uint u) {
  half_t h;
  h.bits = (ushort)u;
  return half_to_float(h);
}
static __device__ __forceinline__ float high_half(uint u) { return low_half(u >> 16); }
static __device__ __forceinline__ float low_bf16(uint u) { return __uint_as_float(u << 16); }
static __device__ __forceinline__ float high_bf16(uint u) {
  return __uint_as_float(u & 0xffff0000u);
}
static __device__ __forceinline__ uint pack_half2(float low, float high) {
  return float_to_half(low).bits | (uint)float_to_half(high).bits << 16;
}
static __device__ __forceinline__ uint pack_bf162(float low, float high) {
  return float_to_bf16(low).bits | (uint)float_to_bf16(high).bits << 16;
}
static __device__ __forceinline__ uint hadd2(uint a, uint b) {
  uint r;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
static __device__ __forceinline__ uint hmul2(uint a, uint b) {
  uint r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
static __device__ __forceinline__ uint hfma2(uint a, uint b, uint c) {
  uint r;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

/* Four products of unsigned bytes of a and signed bytes of b. */
static __device__ __forceinline__ int dp4a_us(uint a, int b, int c) {
  int r;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
  return r;
}

/* ---- memory -----------------------------------------------------------------------------------
 */

static __device__ __forceinline__ uint load_once(const uint* p) {
  uint r;
  asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(r) : "l"(p));
  return r;
}
static __device__ __forceinline__ uint2 load_once(const uint2* p) {
  uint2 r;
  asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(r.x), "=r"(r.y) : "l"(p));
  return r;
}
static __device__ __forceinline__ uint4 load_once(const uint4* p) {
  uint4 r;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
      : "l"(p));
  return r;
}

extern __shared__ __align__(16) uchar weft_shared[];

/* A pointer into the block's dynamic shared memory, as a parameter of a kernel. */
template <class T>
struct shared_t {
  uint at;
  __device__ __forceinline__ operator T*() const { return (T*)(weft_shared + at); }
};

static __device__ __forceinline__ uint shared_address(const void* p) {
  return (uint)__cvta_generic_to_shared(p);
}

#if __CUDA_ARCH__ >= 800
static __device__ __forceinline__ void cp_async16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
static __device__ __forceinline__ void cp_async16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
static __device__ __forceinline__ void cp_async8(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
static __device__ __forceinline__ void cp_async4(void* to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
static __device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int N>
static __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
static __device__ __forceinline__ void cp_async16(void* to, const void* from) {
  *(uint4*)to = *(const uint4*)from;
}
static __device__ __forceinline__ void cp_async16(void* to, const void* from, bool valid) {
  *(uint4*)to = valid ? *(const uint4*)from : make_uint4(0, 0, 0, 0);
}
static __device__ __forceinline__ void cp_async8(void* to, const void* from) {
  *(uint2*)to = *(const uint2*)from;
}
static __device__ __forceinline__ void cp_async4(void* to, const void* from) {
  *(uint*)to = *(const uint*)from;
}
static __device__ __forceinline__ void cp_async_commit() {}
template <int N>
static __device__ __forceinline__ void cp_async_wait() {}
#endif

/* ---- products of tiles: d += a b, rows of a by columns of b ------------------------------------
 */

#if __CUDA_ARCH__ >= 800
static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint (&a)[4],
                                               const uint (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint (&a)[4],
                                                const uint (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_s8(int (&d)[4], const uint (&a)[4], const uint (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma_s8_16(int (&d)[4], const uint (&a)[2], uint b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
}
#elif __CUDA_ARCH__ >= 750
/* Turing has smaller products. */
static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint (&a)[4],
                                               const uint (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b[0]));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[2]), "r"(a[3]), "r"(b[1]));
}
/* It has no bf16: there, lanes show each other their words. */
static __device__ __forceinline__ void mma_bf16(float (&d)[4], const uint (&a)[4],
                                                const uint (&b)[2]) {
  const int lane = (int)(threadIdx.x % 32), row = lane & ~3, column = lane % 4 * 8;
#pragma unroll 1
  for (int word = 0; word < 4; word++) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const uint left[2] = {__shfl_sync(~0u, a[2 * half], row + word),
                            __shfl_sync(~0u, a[2 * half + 1], row + word)};
      const uint right[2] = {__shfl_sync(~0u, b[half], column + word),
                             __shfl_sync(~0u, b[half], column + 4 + word)};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        d[i] = fmaf(low_bf16(left[i / 2]), low_bf16(right[i % 2]), d[i]);
        d[i] = fmaf(high_bf16(left[i / 2]), high_bf16(right[i % 2]), d[i]);
      }
    }
  }
}
static __device__ __forceinline__ void mma_s8_16(int (&d)[4], const uint (&a)[2], uint b) {
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(b));
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(d[2]), "+r"(d[3])
      : "r"(a[1]), "r"(b));
}
static __device__ __forceinline__ void mma_s8(int (&d)[4], const uint (&a)[4], const uint (&b)[2]) {
  const uint first[2] = {a[0], a[1]}, second[2] = {a[2], a[3]};
  mma_s8_16(d, first, b[0]);
  mma_s8_16(d, second, b[1]);
}
#endif

#if __CUDA_ARCH__ >= 750
static __device__ __forceinline__ void ldmatrix_x4(uint (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
static __device__ __forceinline__ void ldmatrix_x2(uint (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
static __device__ __forceinline__ void ldmatrix_x4_trans(uint (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
static __device__ __forceinline__ void ldmatrix_x2_trans(uint (&r)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(row))
               : "memory");
}
#endif
