#pragma once

// Which kernel targets this processor can run. native/cmake/best_target.cpp includes this file to
// find out while a build is configured.
namespace weft {

#if defined(__x86_64__)
// __builtin_cpu_supports also checks that the operating system saves the wide registers.
inline bool supports_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
inline bool supports_avx512() {
  return supports_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
}
#else
inline bool supports_avx2() { return false; }
inline bool supports_avx512() { return false; }
#endif

}  // namespace weft
