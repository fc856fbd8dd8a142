#include "kernels/dispatch.h"

#include <utility>

#include "core/processor.h"

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
#if defined(WEFT_HAVE_AMX)
namespace amx {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace amx
#endif
#if defined(WEFT_HAVE_AMX_SHIM)
namespace amx_shim {
const KernelTable& table();
const PeakLoops& peak_loops();
}  // namespace amx_shim
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
  [[maybe_unused]] const Processor& can = processor();
#if defined(WEFT_HAVE_BASELINE)
  all.push_back({"baseline", &baseline::table, 1, &baseline::peak_loops});
#endif
#if defined(WEFT_HAVE_AVX2)
  all.push_back({"avx2", &avx2::table, can.runs_avx2() ? 10 : 0, &avx2::peak_loops});
#endif
#if defined(WEFT_HAVE_AVX_VNNI)
  all.push_back(
      {"avx_vnni", &avx_vnni::table, can.runs_avx_vnni() ? 15 : 0, &avx_vnni::peak_loops});
#endif
#if defined(WEFT_HAVE_AVX512)
  all.push_back({"avx512", &avx512::table, can.runs_avx512() ? 20 : 0, &avx512::peak_loops});
#endif
#if defined(WEFT_HAVE_AMX_SHIM)  // for tests: never the best
  all.push_back({"amx_shim", &amx_shim::table, can.runs_avx512() ? 2 : 0, &amx_shim::peak_loops});
#endif
#if defined(WEFT_HAVE_AMX)
  all.push_back({"amx", &amx::table, can.runs_amx() ? 30 : 0, &amx::peak_loops});
#endif
#if defined(WEFT_HAVE_NEON)
  all.push_back({"neon", &neon::table, 10, &neon::peak_loops});
#endif
#if defined(WEFT_HAVE_DOTPROD)
  all.push_back({"dotprod", &dotprod::table, can.runs_dotprod() ? 15 : 0, &dotprod::peak_loops});
#endif
#if defined(WEFT_HAVE_I8MM)
  all.push_back({"i8mm", &i8mm::table, can.runs_i8mm() ? 20 : 0, &i8mm::peak_loops});
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
  const Processor& has = processor();
  const std::pair<const char*, bool> named[] = {
#if defined(__aarch64__)
      {"neon", true},
#endif
      {"sse4.2", has.sse42},
      {"avx", has.avx},
      {"avx2", has.avx2},
      {"fma", has.fma},
      {"f16c", has.f16c},
      {"avxvnni", has.avx_vnni},
      {"avx512f", has.avx512f},
      {"avx512bw", has.avx512bw},
      {"avx512vl", has.avx512vl},
      {"avx512dq", has.avx512dq},
      {"avx512vnni", has.avx512vnni},
      {"avx512bf16", has.avx512bf16},
      {"amxtile", has.amx_tile},
      {"amxint8", has.amx_int8},
      {"amxbf16", has.amx_bf16},
      {"fp16", has.fp16},
      {"dotprod", has.dotprod},
      {"i8mm", has.i8mm},
      {"bf16", has.bf16},
      {"sve", has.sve},
      {"sve2", has.sve2},
  };
  std::vector<std::string> features;
  for (const auto& [name, there] : named) {
    if (there) features.emplace_back(name);
  }
  return features;
}

}  // namespace weft
