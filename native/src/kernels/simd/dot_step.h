// The dot products of bytes that x86 has one instruction for (VNNI): to each 32-bit lane of `sums`,
// the products of four unsigned bytes `u` and four signed bytes `s` are added.
//
// They are in assembly, because GCC copies sums that the intrinsics would overwrite from register
// to register and back.
#pragma once

#include "kernels/simd/isa.h"

#if defined(WEFT_VNNI)

namespace weft::WEFT_TARGET {

#if defined(__AVX512VNNI__)
static inline __m512i dot_step(__m512i sums, __m512i u, __m512i s) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(u), "v"(s));
  return sums;
}
static inline __m256i dot_step(__m256i sums, __m256i u, __m256i s) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(u), "v"(s));
  return sums;
}
#else
static inline __m256i dot_step(__m256i sums, __m256i u, __m256i s) {
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(u), "x"(s));
  return sums;
}
#endif

}  // namespace weft::WEFT_TARGET

#endif
