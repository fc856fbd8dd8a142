// Prints the best kernel target of the processor that builds, for WEFT_TARGETS=native.
#include <cstdio>

#include "kernels/supports.h"

int main() {
  const char* best = "baseline";
  if (weft::supports_avx2()) best = "avx2";
  if (weft::supports_avx_vnni()) best = "avx2;avx_vnni";  // it takes what is no product from avx2
  if (weft::supports_avx512()) best = "avx512";
  std::puts(best);
  return 0;
}
