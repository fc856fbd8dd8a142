#include "kernels/dispatch.h"

#include "kernels/supports.h"

namespace weft {

#if defined(WEFT_HAVE_BASELINE)
namespace baseline {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace baseline
#endif
#if defined(WEFT_HAVE_AVX2)
namespace avx2 {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace avx2
#endif
#if defined(WEFT_HAVE_AVX_VNNI)
namespace avx_vnni {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace avx_vnni
#endif
#if defined(WEFT_HAVE_AVX512)
namespace avx512 {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace avx512
#endif
#if defined(WEFT_HAVE_NEON)
namespace neon {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace neon
#endif
#if defined(WEFT_HAVE_DOTPROD)
namespace dotprod {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace dotprod
#endif
#if defined(WEFT_HAVE_I8MM)
namespace i8mm {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace i8mm
#endif

namespace {

std::vector<Target> make_targets() {
  std::vector<Target> all;
#if defined(WEFT_HAVE_BASELINE)
  all.push_back({"baseline", &baseline::table, 1, &baseline::peak_loops});
#endif
#if defined(WEFT_HAVE_AVX2)
  all.push_back({"avx2", &avx2::table, supports_avx2() ? 10 : 0, &avx2::peak_loops});
#endif
#if defined(WEFT_HAVE_AVX_VNNI)
  all.push_back(
      {"avx_vnni", &avx_vnni::table, supports_avx_vnni() ? 15 : 0, &avx_vnni::peak_loops});
#endif
#if defined(WEFT_HAVE_AVX512)
  all.push_back({"avx512", &avx512::table, supports_avx512() ? 20 : 0, &avx512::peak_loops});
#endif
#if defined(WEFT_HAVE_NEON)
  all.push_back({"neon", &neon::table, 10, &neon::peak_loops});
#endif
#if defined(WEFT_HAVE_DOTPROD)
  all.push_back({"dotprod", &dotprod::table, supports_dotprod() ? 15 : 0, &dotprod::peak_loops});
#endif
#if defined(WEFT_HAVE_I8MM)
  all.push_back({"i8mm", &i8mm::table, supports_i8mm() ? 20 : 0, &i8mm::peak_loops});
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
  std::vector<std::string> features;
#if defined(__x86_64__)
#define WEFT_FEATURE(name) \
  if (__builtin_cpu_supports(name)) features.emplace_back(name)
  WEFT_FEATURE("sse4.2");
  WEFT_FEATURE("avx");
  WEFT_FEATURE("avx2");
  WEFT_FEATURE("fma");
  WEFT_FEATURE("f16c");
  if (supports_avx_vnni()) features.emplace_back("avxvnni");
  WEFT_FEATURE("avx512f");
  WEFT_FEATURE("avx512bw");
  WEFT_FEATURE("avx512vl");
  WEFT_FEATURE("avx512dq");
  WEFT_FEATURE("avx512vnni");
  WEFT_FEATURE("avx512bf16");
#undef WEFT_FEATURE
#elif defined(__aarch64__)
  const ArmFeatures& has = arm_features();
  features.emplace_back("neon");
  if (has.fp16) features.emplace_back("fp16");
  if (has.dotprod) features.emplace_back("dotprod");
  if (has.i8mm) features.emplace_back("i8mm");
  if (has.bf16) features.emplace_back("bf16");
  if (has.sve) features.emplace_back("sve");
  if (has.sve2) features.emplace_back("sve2");
#endif
  return features;
}

}  // namespace weft
