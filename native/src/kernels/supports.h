#pragma once

// Which kernel targets this processor can run. native/cmake/best_target.cpp includes this file to
// find out while a build is configured.
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(_WIN32)
// of <windows.h>, which defines much else
extern "C" __declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long feature);
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

#if defined(__aarch64__)
// What the system says of this processor. A feature that a system knows nothing of is none.
struct ArmFeatures {
  bool dotprod = false, fp16 = false, i8mm = false, bf16 = false, sve = false, sve2 = false;

  ArmFeatures() {
#if defined(__linux__)
    // the bits of the kernel's asm/hwcap.h, of which old headers lack the last
    const unsigned long words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
    const auto has = [&](int word, int bit) { return (words[word] >> bit & 1) != 0; };
    dotprod = has(0, 20);
    fp16 = has(0, 9) && has(0, 10);  // of scalars and of vectors
    i8mm = has(1, 13);
    bf16 = has(1, 14);
    sve = has(0, 22);
    sve2 = has(1, 1);
#elif defined(__APPLE__)
    const auto has = [](const char* name) {
      int value = 0;
      size_t size = sizeof value;
      return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    dotprod = has("hw.optional.arm.FEAT_DotProd");
    fp16 = has("hw.optional.arm.FEAT_FP16");
    i8mm = has("hw.optional.arm.FEAT_I8MM");
    bf16 = has("hw.optional.arm.FEAT_BF16");
#elif defined(_WIN32)
    // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE and those after it, which old headers lack
    dotprod = IsProcessorFeaturePresent(43) != 0;
    sve = IsProcessorFeaturePresent(46) != 0;
    sve2 = IsProcessorFeaturePresent(47) != 0;
    i8mm = IsProcessorFeaturePresent(66) != 0;
    fp16 = IsProcessorFeaturePresent(67) != 0;
    bf16 = IsProcessorFeaturePresent(68) != 0;
#endif
  }
};
inline const ArmFeatures& arm_features() {
  static const ArmFeatures features;
  return features;
}
inline bool supports_dotprod() { return arm_features().dotprod; }
inline bool supports_i8mm() {
  return supports_dotprod() && arm_features().i8mm && arm_features().bf16;
}
#endif

}  // namespace weft
