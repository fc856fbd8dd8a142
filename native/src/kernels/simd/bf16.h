// Dot products of pairs of bf16, where the target has them (WEFT_BF16_DOTS).
//
// Processors with all else of the avx512 target may lack them: a file that uses them is compiled
// with that feature, and a look at the processor decides.
#pragma once

#include "core/processor.h"
#include "kernels/simd/vec.h"

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
