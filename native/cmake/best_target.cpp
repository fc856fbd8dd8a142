// Prints the best kernel target of the processor that builds, for WEFT_TARGETS=native; given an
// argument, every target that it runs, for WEFT_QUICK.
#include <cstdio>

#include "core/processor.cpp"

static void print_every_target(const weft::Processor& can) {
  std::printf("baseline");
#if defined(__aarch64__)
  std::printf(";neon");
#endif
  if (can.runs_dotprod()) std::printf(";dotprod");
  if (can.runs_i8mm()) std::printf(";i8mm");
  if (can.runs_avx2()) std::printf(";avx2");
  if (can.runs_avx_vnni()) std::printf(";avx_vnni");
  if (can.runs_avx512()) std::printf(";avx512;amx_shim");
  if (can.runs_amx()) std::printf(";amx");
  std::printf("\n");
}

int main(int count, char**) {
  const weft::Processor& can = weft::processor();
  if (count > 1) return print_every_target(can), 0;
  const char* best = "baseline";
#if defined(__aarch64__)
  best = "neon";
  if (can.runs_dotprod()) best = "neon;dotprod";
  if (can.runs_i8mm()) best = "neon;i8mm";
#endif
  if (can.runs_avx2()) best = "avx2";
  if (can.runs_avx_vnni()) best = "avx2;avx_vnni";  // it takes what is no product from avx2
  if (can.runs_avx512()) best = "avx512";
  if (can.runs_amx()) best = "avx512;amx";
  std::puts(best);
  return 0;
}
