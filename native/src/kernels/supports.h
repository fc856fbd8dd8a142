#pragma once

// Which kernel targets this processor can run. native/cmake/best_target.cpp includes this file to
// find out while a build is configured.
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace weft {

#if defined(__x86_64__)
// __builtin_cpu_supports also checks that the operating system saves the wide registers.
inline bool supports_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
// The compilers' name for it differs, and old ones have none: leaf 7.1, bit 4 of EAX.
inline bool supports_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!supports_avx2() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || a < 1) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}
inline bool supports_avx512() {
  return supports_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#else
inline bool supports_avx2() { return false; }
inline bool supports_avx_vnni() { return false; }
inline bool supports_avx512() { return false; }
#endif

}  // namespace weft
