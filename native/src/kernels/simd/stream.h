// Hints about memory that is read as a stream.
#pragma once

#include <cstdint>

#include "core/processor.h"
#include "kernels/simd/isa.h"

namespace weft::WEFT_TARGET {

// How far ahead of its use memory is asked for. The hardware loses track inside the bigger blocks,
// whose words are not read in the order of their addresses. What follows a panel is the next one.
inline constexpr int64_t kAhead = 4608;

// Whether memory may be asked for in bursts. Zen 4 and its forerunners, which are told by what they
// lack of Zen 5, wait for the lines of a burst: they are asked for less at a time and less far
// ahead.
static inline bool takes_bursts() {
#if !defined(__x86_64__)
  return true;
#else
  static const bool takes = !processor().is_amd || processor().avx_vnni;
  return takes;
#endif
}

// Keeps the function that calls this: GCC finds that a function of nothing but prefetches has no
// effect, and leaves calls of it out where it is not inlined.
static inline void keep_prefetches() { __asm__ volatile(""); }

// In a loop in the order of addresses: unrolled, or shared out over the chunks, the bigger blocks
// were read half as fast on x86. On ARM unrolled, for its counts of instructions.
template <int64_t kBytes>
static inline void prefetch_lines(const char* p) {
  keep_prefetches();
#if defined(WEFT_NEON)
#pragma GCC unroll 128
#else
#pragma GCC unroll 1
#endif
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(p + line, 0, 3);
}

// Prefetches `kBytes` bytes, from byte `at` on, of each of the kRows rows that follow these. The
// hardware does not foresee them: it follows each row to its end and then starts anew.
template <int kRows, int64_t kBytes>
static inline void prefetch_rows(const char* w, int64_t stride, int64_t at) {
  keep_prefetches();
  for (int r = 0; r < kRows; ++r) {
    const char* p = w + (r + kRows) * stride + at;
    for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(p + line, 0, 2);
  }
}

}  // namespace weft::WEFT_TARGET
