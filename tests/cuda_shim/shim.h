/* CUDA for a processor: the names that kernels may use (README.md), by what they mean. Blocks run
   one after another; the threads of a block are fibres that change where they wait for each other.
 */

#include <math.h>
#include <string.h>

#include "runtime.h"

#define WEFT_SHIM 1
#ifdef SHIM_ARCH
#define __CUDA_ARCH__ SHIM_ARCH
#else
#define __CUDA_ARCH__ 800
#endif

/* ---- language ---------------------------------------------------------------------------------
 */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static const
#define __align__(n) __attribute__((aligned(n)))
/* Arrays of a block are in a section of their own, so that the runtime knows them. */
#define __shared__ static __attribute__((section("weft_shared")))

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef long long int64;

#define threadIdx weft_shim_now.thread
#define blockIdx weft_shim_now.block
#define blockDim weft_shim_now.threads
#define gridDim weft_shim_now.blocks
#define warpSize 32

#define SHIM_VECTORS(T, name, n1, n2, n4)                                   \
  struct __align__(n1) name##1 { T x; };                                    \
  struct __align__(n2) name##2 { T x, y; };                                 \
  struct name##3 { T x, y, z; };                                            \
  struct __align__(n4) name##4 { T x, y, z, w; };                           \
  static inline name##2 make_##name##2(T x, T y) { return {x, y}; }         \
  static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; } \
  static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
SHIM_VECTORS(signed char, char, 1, 2, 4)
SHIM_VECTORS(uchar, uchar, 1, 2, 4)
SHIM_VECTORS(short, short, 2, 4, 8)
SHIM_VECTORS(ushort, ushort, 2, 4, 8)
SHIM_VECTORS(int, int, 4, 8, 16)
SHIM_VECTORS(uint, uint, 4, 8, 16)
SHIM_VECTORS(float, float, 4, 8, 16)
#undef SHIM_VECTORS

/* ---- barriers, lanes, votes -------------------------------------------------------------------
 */

static inline void __syncthreads() { weft_shim_barrier(); }
static inline void __syncwarp(unsigned mask = 0xffffffffu) { weft_shim_exchange(mask, 0, 0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

static inline int shim_lane_id() {
  return (int)((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32);
}

template <class T>
static inline T shim_from(unsigned mask, T value, int lane) {
  weft_shim_exchange(mask, &value, sizeof value);
  T other;
  memcpy(&other, weft_shim_lane(lane), sizeof other);
  return other;
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
  const int lane = shim_lane_id();
  return shim_from(mask, value, lane / width * width + from % width);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  const int lane = shim_lane_id(), other = lane ^ bits;
  return shim_from(mask, value, other / width > lane / width ? lane : other);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = shim_lane_id();
  return shim_from(mask, value, lane % width + (int)by < width ? lane + (int)by : lane);
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  const int lane = shim_lane_id();
  return shim_from(mask, value, lane % width >= (int)by ? lane - (int)by : lane);
}

static inline unsigned __ballot_sync(unsigned mask, int yes) {
  const int mine = yes != 0;
  weft_shim_exchange(mask, &mine, sizeof mine);
  unsigned votes = 0;
  for (int lane = 0; lane < 32; lane++)
    if (mask >> lane & 1 && *(const int*)weft_shim_lane(lane)) votes |= 1u << lane;
  return votes;
}

static inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
static inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) == mask; }

/* ---- atomics ----------------------------------------------------------------------------------
 */

template <class T, class F>
__attribute__((no_sanitize_thread)) static T shim_atomic(T* at, F change) {
  weft_shim_access(at, sizeof(T), 1, 1);
  const T old = *at;
  *at = change(old);
  return old;
}

template <class T>
static inline T atomicAdd(T* at, T x) {
  return shim_atomic(at, [x](T old) { return (T)(old + x); });
}
template <class T>
static inline T atomicMax(T* at, T x) {
  return shim_atomic(at, [x](T old) { return old > x ? old : x; });
}
template <class T>
static inline T atomicMin(T* at, T x) {
  return shim_atomic(at, [x](T old) { return old < x ? old : x; });
}
template <class T>
static inline T atomicExch(T* at, T x) {
  return shim_atomic(at, [x](T) { return x; });
}
template <class T>
static inline T atomicCAS(T* at, T expected, T x) {
  return shim_atomic(at, [expected, x](T old) { return old == expected ? x : old; });
}

/* ---- numbers ----------------------------------------------------------------------------------
 */

template <class To, class From>
static inline To shim_bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &x, sizeof to);
  return to;
}

static inline uint __float_as_uint(float x) { return shim_bits<uint>(x); }
static inline int __float_as_int(float x) { return shim_bits<int>(x); }
static inline float __uint_as_float(uint x) { return shim_bits<float>(x); }
static inline float __int_as_float(int x) { return shim_bits<float>(x); }
static inline int __float2int_rn(float x) { return (int)rintf(x); }
#define __expf expf
#define __logf logf
static inline float __fdividef(float a, float b) { return a / b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }

static inline int __popc(uint x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((uint)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline uint __brev(uint x) {
  uint out = 0;
  for (int i = 0; i < 32; i++) out |= (x >> i & 1u) << (31 - i);
  return out;
}
static inline uint __funnelshift_r(uint low, uint high, uint by) {
  return (uint)((((uint64_t)high << 32) | low) >> (by & 31u));
}
static inline uint __byte_perm(uint a, uint b, uint selector) {
  const uint64_t all = ((uint64_t)b << 32) | a;
  uint out = 0;
  for (int i = 0; i < 4; i++) {
    const uint which = selector >> (4 * i) & 15u;
    uint byte = (uint)(all >> (8 * (which & 7u))) & 255u;
    if (which & 8u) byte = byte & 128u ? 255u : 0u;
    out |= byte << (8 * i);
  }
  return out;
}
static inline uint __vadd4(uint a, uint b) {
  uint out = 0;
  for (int i = 0; i < 32; i += 8) out |= (((a >> i) + (b >> i)) & 255u) << i;
  return out;
}
static inline uint __vsub4(uint a, uint b) {
  uint out = 0;
  for (int i = 0; i < 32; i += 8) out |= (((a >> i) - (b >> i)) & 255u) << i;
  return out;
}

template <class A, class B>
static inline int shim_dot4(uint a, uint b) {
  int sum = 0;
  for (int i = 0; i < 32; i += 8) sum += (int)(A)(a >> i) * (int)(B)(b >> i);
  return sum;
}
static inline int __dp4a(int a, int b, int c) {
  return c + shim_dot4<signed char, signed char>((uint)a, (uint)b);
}
static inline uint __dp4a(uint a, uint b, uint c) {
  return c + (uint)shim_dot4<uchar, uchar>(a, b);
}
static inline int dp4a_us(uint a, int b, int c) {
  return c + shim_dot4<uchar, signed char>(a, (uint)b);
}

#define SHIM_MIN_MAX(T)                                   \
  static inline T min(T a, T b) { return b < a ? b : a; } \
  static inline T max(T a, T b) { return a < b ? b : a; }
SHIM_MIN_MAX(int)
SHIM_MIN_MAX(uint)
SHIM_MIN_MAX(int64)
SHIM_MIN_MAX(float)
#undef SHIM_MIN_MAX

/* ---- numbers of 16 bits -----------------------------------------------------------------------
 */

typedef struct {
  ushort bits;
} half_t;
typedef struct {
  ushort bits;
} bf16_t;

static inline float half_to_float(half_t h) {
  const uint sign = (uint)(h.bits & 0x8000u) << 16, exponent = h.bits >> 10 & 31u,
             part = h.bits & 1023u;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | part << 13);
  if (exponent) return __uint_as_float(sign | (exponent + 112) << 23 | part << 13);
  const float tiny = (float)part * 0x1p-24f;
  return sign ? -tiny : tiny;
}

/* To nearest even, of a double: what is computed exactly there is rounded once. */
static inline half_t shim_to_half(double x) {
  const uint64_t bits = shim_bits<uint64_t>(x);
  const ushort sign = (ushort)(bits >> 48 & 0x8000u);
  if (x != x) return {(ushort)(sign | 0x7e00u)};
  const double size = fabs(x);
  if (size >= 65520.0) return {(ushort)(sign | 0x7c00u)};
  if (size < 0x1p-14) return {(ushort)(sign | (ushort)rint(size * 0x1p24))};
  int exponent;
  const double part = frexp(size, &exponent); /* in 0.5 .. 1 */
  return {(ushort)(sign | (ushort)(((exponent + 14) << 10) + (int)rint((part - 0.5) * 2048.0)))};
}
static inline half_t float_to_half(float x) { return shim_to_half(x); }

static inline float bf16_to_float(bf16_t b) { return __uint_as_float((uint)b.bits << 16); }
static inline bf16_t float_to_bf16(float x) {
  const uint bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {0x7fff};
  return {(ushort)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

static inline float low_half(uint u) { return half_to_float({(ushort)u}); }
static inline float high_half(uint u) { return half_to_float({(ushort)(u >> 16)}); }
static inline float low_bf16(uint u) { return __uint_as_float(u << 16); }
static inline float high_bf16(uint u) { return __uint_as_float(u & 0xffff0000u); }
static inline uint pack_half2(float low, float high) {
  return float_to_half(low).bits | (uint)float_to_half(high).bits << 16;
}
static inline uint pack_bf162(float low, float high) {
  return float_to_bf16(low).bits | (uint)float_to_bf16(high).bits << 16;
}
static inline uint shim_two(double low, double high) {
  return shim_to_half(low).bits | (uint)shim_to_half(high).bits << 16;
}
static inline uint hadd2(uint a, uint b) {
  return shim_two((double)low_half(a) + low_half(b), (double)high_half(a) + high_half(b));
}
static inline uint hmul2(uint a, uint b) {
  return shim_two((double)low_half(a) * low_half(b), (double)high_half(a) * high_half(b));
}
static inline uint hfma2(uint a, uint b, uint c) {
  return shim_two((double)low_half(a) * low_half(b) + low_half(c),
                  (double)high_half(a) * high_half(b) + high_half(c));
}

/* ---- memory -----------------------------------------------------------------------------------
 */

template <class T>
static inline T __ldg(const T* p) {
  return *p;
}
template <class T>
static inline T load_once(const T* p) {
  return *p;
}

/* A pointer into the block's dynamic shared memory, as a parameter of a kernel. */
template <class T>
struct shared_t {
  uint at;
  operator T*() const { return (T*)(weft_shim_now.shared + at); }
};

static inline void cp_async16(void* to, const void* from) { weft_shim_copy(to, from, 16); }
static inline void cp_async16(void* to, const void* from, bool valid) {
  weft_shim_copy(to, valid ? from : 0, 16);
}
static inline void cp_async8(void* to, const void* from) { weft_shim_copy(to, from, 8); }
static inline void cp_async4(void* to, const void* from) { weft_shim_copy(to, from, 4); }
static inline void cp_async_commit() { weft_shim_commit(); }
template <int N>
static inline void cp_async_wait() {
  weft_shim_wait(N);
}

/* ---- products of tiles ------------------------------------------------------------------------
 */

/* Row g of a lane's results are those of lane / 4, its columns 2 (lane % 4) and the next. A lane's
   words of A are (row g, k), (g + 8, k), (g, k + half), (g + 8, k + half), those of B (k), (k +
   half), where k begins at lane % 4 words (PTX ISA, "Matrix Fragments"). */
struct shim_fragments {
  uint a[4], b[2];
};

template <int PER_WORD, class SUM, class DOT>
static inline void shim_mma(SUM (&d)[4], const uint* a, int n_a, const uint* b, int n_b, DOT dot) {
  shim_fragments mine = {{0, 0, 0, 0}, {0, 0}};
  for (int i = 0; i < n_a; i++) mine.a[i] = a[i];
  for (int i = 0; i < n_b; i++) mine.b[i] = b[i];
  weft_shim_exchange(0xffffffffu, &mine, sizeof mine);
  const int lane = shim_lane_id(), g = lane / 4, t = lane % 4;
  for (int i = 0; i < 4; i++) {
    const int row = g, lower = i / 2, column = 2 * t + i % 2;
    auto sum = dot(0u, 0u);
    for (int word = 0; word < 4; word++) {
      const shim_fragments& left = *(const shim_fragments*)weft_shim_lane(4 * row + word);
      const shim_fragments& right = *(const shim_fragments*)weft_shim_lane(4 * column + word);
      for (int part = 0; part < n_b; part++) sum += dot(left.a[2 * part + lower], right.b[part]);
    }
    d[i] = (SUM)(d[i] + sum);
  }
}

static inline void mma_f16(float (&d)[4], const uint (&a)[4], const uint (&b)[2]) {
  shim_mma<2>(d, a, 4, b, 2, [](uint x, uint y) {
    return (double)low_half(x) * low_half(y) + (double)high_half(x) * high_half(y);
  });
}
static inline void mma_bf16(float (&d)[4], const uint (&a)[4], const uint (&b)[2]) {
  shim_mma<2>(d, a, 4, b, 2, [](uint x, uint y) {
    return (double)low_bf16(x) * low_bf16(y) + (double)high_bf16(x) * high_bf16(y);
  });
}
static inline void mma_s8(int (&d)[4], const uint (&a)[4], const uint (&b)[2]) {
  shim_mma<4>(d, a, 4, b, 2, shim_dot4<signed char, signed char>);
}
static inline void mma_s8_16(int (&d)[4], const uint (&a)[2], uint b) {
  shim_mma<4>(d, a, 2, &b, 1, shim_dot4<signed char, signed char>);
}

/* Matrices of 8 rows of 8 halves; lane 8 m + r gives the address of row r of matrix m. */
static inline void shim_ldmatrix(uint* r, int n, const void* row, bool turned) {
  weft_shim_exchange(0xffffffffu, &row, sizeof row);
  const int lane = shim_lane_id(), first = lane / 4, second = lane % 4 * 2;
  const ushort* rows[32];
  for (int i = 0; i < 8 * n; i++) memcpy(&rows[i], weft_shim_lane(i), sizeof rows[i]);
  for (int m = 0; m < n; m++) {
    uint word = 0;
    for (int k = 0; k < 2; k++) {
      const ushort* from =
          turned ? rows[8 * m + second + k] + first : rows[8 * m + first] + second + k;
      word |= (uint)*from << (16 * k);
    }
    r[m] = word;
  }
}
static inline void ldmatrix_x4(uint (&r)[4], const void* row) { shim_ldmatrix(r, 4, row, false); }
static inline void ldmatrix_x2(uint (&r)[2], const void* row) { shim_ldmatrix(r, 2, row, false); }
static inline void ldmatrix_x4_trans(uint (&r)[4], const void* row) {
  shim_ldmatrix(r, 4, row, true);
}
static inline void ldmatrix_x2_trans(uint (&r)[2], const void* row) {
  shim_ldmatrix(r, 2, row, true);
}

/* ---- being called -----------------------------------------------------------------------------
 */

template <int... I>
struct shim_numbers {};
template <int N, int... I>
struct shim_count : shim_count<N - 1, N - 1, I...> {};
template <int... I>
struct shim_count<0, I...> {
  typedef shim_numbers<I...> type;
};

template <class T>
struct shim_plain {
  typedef T type;
};
template <class T>
struct shim_plain<const T> {
  typedef T type;
};

/* Arguments are read without checks. */
#define SHIM_UNCHECKED __attribute__((no_sanitize_thread))

template <class... A, int... I>
SHIM_UNCHECKED static void shim_call(void (*kernel)(A...), void** args, shim_numbers<I...>) {
  kernel(*(typename shim_plain<A>::type*)args[I]...);
}
template <class... A>
SHIM_UNCHECKED static void shim_call(void (*kernel)(A...), void** args) {
  shim_call(kernel, args, typename shim_count<sizeof...(A)>::type{});
}

template <class... A>
SHIM_UNCHECKED static const unsigned* shim_sizes(void (*)(A...)) {
  static const unsigned sizes[] = {sizeof(A)..., 0};
  return sizes;
}

/* The kernel as a function of pointers to its parameters, and their sizes, which end with a 0. */
#define SHIM_ENTRY(name)                                                                        \
  extern "C" SHIM_UNCHECKED __attribute__((visibility("default"))) void weft_shim_entry_##name( \
      void** args) {                                                                            \
    shim_call(name, args);                                                                      \
  }                                                                                             \
  extern "C" SHIM_UNCHECKED __attribute__((visibility("default"))) const unsigned*              \
  weft_shim_sizes_##name() {                                                                    \
    return shim_sizes(name);                                                                    \
  }
