// Prints the best kernel target of the processor that builds, for WEFT_TARGETS=native.
#include <cstdio>

#include "kernels/supports.h"

int main() {
  const char* best = "baseline";
#if defined(__aarch64__)
  best = "neon";
  if (weft::supports_dotprod()) best = "neon;dotprod";
  if (weft::supports_i8mm()) best = "neon;i8mm";
#endif
  if (weft::supports_avx2()) best = "avx2";
  if (weft::supports_avx_vnni()) best = "avx2;avx_vnni";  // it takes what is no product from avx2
  if (weft::supports_avx512()) best = "avx512";
  std::puts(best);
  return 0;
}
