#include "kernels/dispatch.h"

namespace weft {

namespace baseline {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace baseline
#if defined(WEFT_HAVE_AVX2)
namespace avx2 {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace avx2
#endif
#if defined(WEFT_HAVE_AVX512)
namespace avx512 {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace avx512
#endif

namespace {

#if defined(__x86_64__)
// __builtin_cpu_supports also asks the operating system whether it saves the wide registers.
int score_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                 __builtin_cpu_supports("f16c")
             ? 10
             : 0;
}
int score_avx512() {
  return score_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vnni")
             ? 20
             : 0;
}
#endif

std::vector<Target> make_targets() {
  std::vector<Target> all;
  all.push_back({"baseline", &baseline::table, 1, &baseline::peak_loops});
#if defined(WEFT_HAVE_AVX2)
  all.push_back({"avx2", &avx2::table, score_avx2(), &avx2::peak_loops});
#endif
#if defined(WEFT_HAVE_AVX512)
  all.push_back({"avx512", &avx512::table, score_avx512(), &avx512::peak_loops});
#endif
  return all;
}

}  // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all = make_targets();
  return all;
}

const Target* best_target() {
  const Target* best = nullptr;
  for (const Target& t : targets()) {
    if (t.score > 0 && (best == nullptr || t.score > best->score)) best = &t;
  }
  return best;
}

const Target* find_target(const std::string& name) {
  for (const Target& t : targets()) {
    if (t.name == name) return &t;
  }
  return nullptr;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> found;
#if defined(__x86_64__)
#define WEFT_FEATURE(name) \
  if (__builtin_cpu_supports(name)) found.emplace_back(name)
  WEFT_FEATURE("sse4.2");
  WEFT_FEATURE("avx");
  WEFT_FEATURE("avx2");
  WEFT_FEATURE("fma");
  WEFT_FEATURE("f16c");
  WEFT_FEATURE("avx512f");
  WEFT_FEATURE("avx512bw");
  WEFT_FEATURE("avx512vl");
  WEFT_FEATURE("avx512dq");
  WEFT_FEATURE("avx512vnni");
  WEFT_FEATURE("avx512bf16");
#undef WEFT_FEATURE
#elif defined(__aarch64__)
  found.emplace_back("neon");
#endif
  return found;
}

}  // namespace weft
