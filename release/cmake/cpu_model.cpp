// What compilers ask of their runtime library for __builtin_cpu_supports and __builtin_cpu_is, and
// zig's does not have: the features of this processor, at the places that GCC and Clang agree on.
#include <cpuid.h>

namespace {

struct Feature {
  unsigned place;            // in the compilers' list
  unsigned leaf, part;       // of CPUID
  unsigned word, bit;        // word: EAX, EBX, ECX, EDX
  unsigned long long saves;  // what the system must save, as bits of XCR0
};

constexpr unsigned kEax = 0, kEbx = 1, kEcx = 2;
constexpr unsigned long long kYmm = 0x6;
#if defined(__APPLE__)
constexpr unsigned long long kZmm = kYmm;  // macOS begins to save them when they are first used
#else
constexpr unsigned long long kZmm = 0xe6;
#endif
constexpr Feature kFeatures[] = {
    {8, 1, 0, kEcx, 20, 0},      // sse4.2
    {9, 1, 0, kEcx, 28, kYmm},   // avx
    {10, 7, 0, kEbx, 5, kYmm},   // avx2
    {14, 1, 0, kEcx, 12, kYmm},  // fma
    {15, 7, 0, kEbx, 16, kZmm},  // avx512f
    {20, 7, 0, kEbx, 31, kZmm},  // avx512vl
    {21, 7, 0, kEbx, 30, kZmm},  // avx512bw
    {22, 7, 0, kEbx, 17, kZmm},  // avx512dq
    {34, 7, 0, kEcx, 11, kZmm},  // avx512vnni
    {36, 7, 1, kEax, 5, kZmm},   // avx512bf16
    {49, 1, 0, kEcx, 29, kYmm},  // f16c
    {93, 7, 1, kEax, 4, kYmm},   // avxvnni
};

unsigned long long saved() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c >> 27 & 1) == 0) return 0;
  asm volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (static_cast<unsigned long long>(d) << 32) | a;
}

}  // namespace

extern "C" {
__attribute__((visibility("hidden"))) struct {
  unsigned vendor, type, subtype, features[1];
} __cpu_model = {};
__attribute__((visibility("hidden"))) unsigned __cpu_features2[4] = {};

__attribute__((visibility("hidden"), constructor(101))) int __cpu_indicator_init() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__cpu_model.vendor != 0 || __get_cpuid(0, &a, &b, &c, &d) == 0) return 0;
  const unsigned long long system = saved();
  for (const Feature& f : kFeatures) {
    unsigned words[4] = {};
    const bool known =
        __get_cpuid_count(f.leaf, 0, &words[0], &words[1], &words[2], &words[3]) != 0 &&
        (f.part == 0 || words[0] >= f.part) &&
        __get_cpuid_count(f.leaf, f.part, &words[0], &words[1], &words[2], &words[3]) != 0;
    if (!known || (words[f.word] >> f.bit & 1) == 0 || (system & f.saves) != f.saves) continue;
    unsigned& to = f.place < 32 ? __cpu_model.features[0] : __cpu_features2[f.place / 32 - 1];
    to |= 1U << f.place % 32;
  }
  const bool intel = b == signature_INTEL_ebx;
  __cpu_model.vendor = intel ? 1 : b == signature_AMD_ebx ? 2 : 3;
  return 0;
}
}
