// Dot products of pairs of bf16, where the target has them (WEFT_BF16_DOTS).
//
// Processors with all else of the avx512 target may lack them: a file that uses them is compiled
// with that feature, and a look at the processor decides.
#pragma once

#include "core/processor.h"
#include "kernels/simd/lanes.h"

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(WEFT_NEON)
#define WEFT_BF16_DOTS 1
#elif defined(__AVX512BF16__)
#define WEFT_BF16_DOTS 1
#endif

#if defined(WEFT_BF16_DOTS)

namespace weft::WEFT_TARGET {

// acc + the products of kLanes pairs of each.
static inline vf dot_bf16(vf acc, vf a, vf b) {
#if defined(WEFT_NEON)
  return vbfdotq_f32(acc, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
#else
  return reinterpret_cast<vf>(_mm512_dpbf16_ps(
      reinterpret_cast<__m512>(acc), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
#endif
}

// Words of two bf16, rounded from elements of even depth and the ones after them.
static inline vf round_pairs(const Halves& x) {
#if defined(WEFT_NEON)
  const auto even = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(x.even));
  const auto odd = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32(x.odd));
  return vreinterpretq_f32_u16(vzip1q_u16(even, odd));
#else
  // those of even depth, then the others
  alignas(64) static constexpr int16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                     21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                     11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto all = reinterpret_cast<__m512i>(
      _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(x.odd), reinterpret_cast<__m512>(x.even)));
  return reinterpret_cast<vf>(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), all));
#endif
}

// Whether this processor has them.
static inline bool has_bf16_dots() {
#if defined(WEFT_NEON)
  return true;
#else
  return processor().avx512bf16;
#endif
}

}  // namespace weft::WEFT_TARGET

#endif
