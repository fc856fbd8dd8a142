// Prints the best kernel target of the processor that builds, for WEFT_TARGETS=native.
#include <cstdio>

#include "kernels/supports.h"

int main() {
  std::puts(weft::supports_avx512() ? "avx512" : weft::supports_avx2() ? "avx2" : "baseline");
  return 0;
}
