/* Instructions that CUDA C++ has no names for, as small functions. With WEFT_SHIM a processor
   computes them by definition (ptx_shim.cuh), else PTX; where an architecture lacks one, by those
   that it has. Fragments are as in the PTX manual: lane = 4 g + t. */

#pragma once

#define DEVICE static __device__ __forceinline__

#ifdef WEFT_SHIM
#include "ptx_shim.cuh"
#else

/* 16 bytes that are read once: they pass by the first cache. */
DEVICE uint4 load_once_16(const void* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

/* The four bytes of a and four of b (numbers 0..3 and 4..7), chosen by the low nibbles of `which`. */
DEVICE unsigned choose_bytes(unsigned a, unsigned b, unsigned which) {
  return __byte_perm(a, b, which);
}

/* c + the products of four signed bytes each. */
DEVICE int dot4(unsigned a, unsigned b, int c) { return __dp4a((int)a, (int)b, c); }

DEVICE float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
DEVICE unsigned bits_of_float(float x) { return __float_as_uint(x); }

/* To the nearest whole number, a tie to the even one; 0 for a NaN. */
DEVICE int nearest(float x) { return __float2int_rn(x); }

DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEVICE float half_to_float(unsigned bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
  return x;
}

DEVICE unsigned short float_to_half(float x) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}

/* Two f16 in a word, the first one low. */
DEVICE unsigned two_halves(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  return float_to_half(low) | (unsigned)float_to_half(high) << 16;
#endif
}

/* Two bf16 in a word, the first one low. */
DEVICE unsigned two_bf16(float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
#else
  unsigned a = __float_as_uint(low), b = __float_as_uint(high);
  a = low != low ? 0x7fc00000u : a + 0x7fffu + ((a >> 16) & 1);
  b = high != high ? 0x7fc00000u : b + 0x7fffu + ((b >> 16) & 1);
  return a >> 16 | (b & 0xffff0000u);
#endif
}

/* ---- copies to shared memory that go on while the warp computes ---- */

/* Where an architecture has none, the copy is done at once and there is nothing to wait for. */

DEVICE unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

template <int BYTES>
DEVICE void copy_async(void* to, const void* from) {
  static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "copies are of 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from),
                 "n"(BYTES)
                 : "memory");
#else
  for (int i = 0; i < BYTES / 4; i++) ((unsigned*)to)[i] = ((const unsigned*)from)[i];
#endif
}

/* Closes the group of the copies since the last call. */
DEVICE void copies_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/* Waits until at most LEFT of the groups of this thread are under way. */
template <int LEFT>
DEVICE void copies_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

/* ---- tensor cores ---- */

/* Four matrices of 8 rows of 16 bytes; lane 8 m + r gives the address of row r of matrix m. Each
   lane gets word t of row g of every matrix. */
DEVICE void load_matrices(unsigned to[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/* The same, but each lane gets the halves 2 t and 2 t + 1 of column g. */
DEVICE void load_matrices_turned(unsigned to[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/* d += a b: 16 x 16 signed bytes by 16 x 8. */
DEVICE void mma_bytes_16(int d[4], const unsigned a[2], unsigned b) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
      "{%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(b));
#else
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(d[0]), "+r"(d[1])
      : "r"(a[0]), "r"(b));
  asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
      : "+r"(d[2]), "+r"(d[3])
      : "r"(a[1]), "r"(b));
#endif
}

/* d += a b: 16 x 32 signed bytes by 32 x 8. */
DEVICE void mma_bytes_32(int d[4], const unsigned a[4], const unsigned b[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  mma_bytes_16(d, a, b[0]);
  mma_bytes_16(d, a + 2, b[1]);
#endif
}

/* d += a b: 16 x 16 f16 by 16 x 8. */
DEVICE void mma_f16(float d[4], const unsigned a[4], const unsigned b[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  for (int k = 0; k < 2; k++)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[2 * k]), "r"(a[2 * k + 1]), "r"(b[k]));
#endif
}

/* d += a b: 16 x 16 bf16 by 16 x 8. Turing has no bf16: there, words are passed around. */
DEVICE void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  const int lane = threadIdx.x % 32, row = lane & ~3, col = lane % 4 * 8;
#pragma unroll 1
  for (int j = 0; j < 8; j++) {
    const int word = j % 4, half = j / 4;
    const unsigned low = __shfl_sync(~0u, a[2 * half], row + word);
    const unsigned high = __shfl_sync(~0u, a[2 * half + 1], row + word);
    const unsigned even = __shfl_sync(~0u, b[half], col + word);
    const unsigned odd = __shfl_sync(~0u, b[half], col + 4 + word);
#define WEFT_TWO(x, y, sum)                                                        \
  sum = fmaf(__uint_as_float(x << 16), __uint_as_float(y << 16), sum);             \
  sum = fmaf(__uint_as_float(x & 0xffff0000u), __uint_as_float(y & 0xffff0000u), sum)
    WEFT_TWO(low, even, d[0]);
    WEFT_TWO(low, odd, d[1]);
    WEFT_TWO(high, even, d[2]);
    WEFT_TWO(high, odd, d[3]);
#undef WEFT_TWO
  }
#endif
}

#endif /* WEFT_SHIM */
