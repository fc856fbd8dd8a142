// Which block types this build has kernels of: all, unless CMake's WEFT_KEEP says which ones
// (cmake/keep.cmake).
#pragma once

#include "weft/types.h"

namespace weft {

#if defined(WEFT_KEPT_TYPES)
constexpr bool is_kept(DType type) {
  constexpr DType kKept[] = {WEFT_KEPT_TYPES};
  for (const DType kept : kKept) {
    if (kept == type) return true;
  }
  return false;
}
#else
constexpr bool is_kept(DType) { return true; }
#endif

// Whether this target looks up ternary weights (quants/lookup_layout.h). AVX2 does not: it has only
// shuffles of bytes, two for each sum, and multiplies in a tenth to a half of the time.
#if defined(__AVX2__) && !defined(__AVX512BW__)
constexpr bool kLooksUp = false;
#else
constexpr bool kLooksUp = is_kept(DType::kTQ1_0) || is_kept(DType::kTQ2_0) || is_kept(DType::kI2_S);
#endif

}  // namespace weft
