// Builds the kernel table of one target: each family of families.inc registers its kernels.
#include "kernels/kernel.h"

namespace weft::WEFT_TARGET {

#define WEFT_FAMILY(family) void register_##family(KernelTable& table);
#include "kernels/families.inc"
#undef WEFT_FAMILY

const KernelTable& table();

const KernelTable& table() {
  static const KernelTable of_target = [] {
    KernelTable t;
#define WEFT_FAMILY(family) register_##family(t);
#include "kernels/families.inc"
#undef WEFT_FAMILY
    return t;
  }();
  return of_target;
}

}  // namespace weft::WEFT_TARGET
