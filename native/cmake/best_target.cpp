// Prints the best kernel target of the processor that builds, for WEFT_TARGETS=native.
#include <cstdio>

#include "core/processor.cpp"

int main() {
  const weft::Processor& can = weft::processor();
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
