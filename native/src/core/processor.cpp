// The compilers' own __builtin_cpu_supports asks their runtime library, which not every one brings,
// and their names of new features differ.
#include "core/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(_WIN32)
// of <windows.h>, which defines much else
extern "C" __declspec(dllimport) int __stdcall IsProcessorFeaturePresent(unsigned long feature);
#endif

namespace weft {

namespace {

#if defined(__x86_64__)

struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;

  // A leaf that the processor has not is all zeros.
  explicit Leaf(unsigned leaf, unsigned part = 0) {
    if (__get_cpuid_count(leaf, part, &a, &b, &c, &d) == 0) a = b = c = d = 0;
  }
};

bool has(unsigned word, int bit) { return (word >> bit & 1) != 0; }

// The registers that the system saves, as bits of XCR0.
unsigned saved_registers(const Leaf& first) {
  if (!has(first.c, 27)) return 0;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

// Whether the system lets this process use tiles. Linux saves them only for processes that asked
// for it, and refuses where a thread's stack for signals has no room for them.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of the kernel's asm/prctl.h
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Processor ask() {
  Processor p;
  const Leaf maker(0), first(1), seventh(7);
  const Leaf more(7, seventh.a >= 1 ? 1 : 0);
  const unsigned saved = saved_registers(first);
  p.is_amd = maker.b == signature_AMD_ebx;
  p.sse42 = has(first.c, 20);
  if ((saved & 0x6) != 0x6) return p;  // of 256 bits
  p.avx = has(first.c, 28);
  p.fma = has(first.c, 12);
  p.f16c = has(first.c, 29);
  p.avx2 = has(seventh.b, 5);
  p.avx_vnni = seventh.a >= 1 && has(more.a, 4);
#if !defined(__APPLE__)  // macOS begins to save those of 512 bits when they are first used
  if ((saved & 0xe0) != 0xe0) return p;
#endif
  p.avx512f = has(seventh.b, 16);
  p.avx512dq = has(seventh.b, 17);
  p.avx512bw = has(seventh.b, 30);
  p.avx512vl = has(seventh.b, 31);
  p.avx512vnni = has(seventh.c, 11);
  p.avx512bf16 = seventh.a >= 1 && has(more.a, 5);
  if ((saved & 0x60000) != 0x60000 || !has(seventh.d, 24) || !may_use_tiles()) return p;
  p.amx_tile = true;
  p.amx_int8 = has(seventh.d, 25);
  p.amx_bf16 = has(seventh.d, 22);
  return p;
}

#elif defined(__aarch64__) && defined(__linux__)

Processor ask() {
  Processor p;
  // the bits of the kernel's asm/hwcap.h, of which old headers lack the last
  const unsigned long words[2] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
  const auto has = [&](int word, int bit) { return (words[word] >> bit & 1) != 0; };
  p.dotprod = has(0, 20);
  p.fp16 = has(0, 9) && has(0, 10);  // of scalars and of vectors
  p.i8mm = has(1, 13);
  p.bf16 = has(1, 14);
  p.sve = has(0, 22);
  p.sve2 = has(1, 1);
  return p;
}

#elif defined(__aarch64__) && defined(__APPLE__)

Processor ask() {
  Processor p;
  const auto has = [](const char* name) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
  };
  p.dotprod = has("hw.optional.arm.FEAT_DotProd");
  p.fp16 = has("hw.optional.arm.FEAT_FP16");
  p.i8mm = has("hw.optional.arm.FEAT_I8MM");
  p.bf16 = has("hw.optional.arm.FEAT_BF16");
  return p;
}

#elif defined(__aarch64__) && defined(_WIN32)

Processor ask() {
  Processor p;
  // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE and those after it, which old headers lack
  p.dotprod = IsProcessorFeaturePresent(43) != 0;
  p.sve = IsProcessorFeaturePresent(46) != 0;
  p.sve2 = IsProcessorFeaturePresent(47) != 0;
  p.i8mm = IsProcessorFeaturePresent(66) != 0;
  p.fp16 = IsProcessorFeaturePresent(67) != 0;
  p.bf16 = IsProcessorFeaturePresent(68) != 0;
  return p;
}

#else

Processor ask() { return {}; }

#endif

}  // namespace

const Processor& processor() {
  static const Processor asked = ask();
  return asked;
}

}  // namespace weft
