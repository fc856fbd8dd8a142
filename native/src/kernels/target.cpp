// Builds the kernel table of one target: each family of families.inc registers its kernels. A
// target over another one (WEFT_BASE) has its table, and products of its own.
#include "kernels/kernel.h"

#if !defined(WEFT_FAMILIES)  // fewer in a build that keeps what some models need
#define WEFT_FAMILIES "kernels/families.inc"
#endif

#if defined(WEFT_BASE)
namespace weft::WEFT_BASE {
const KernelTable& table();
}
#define WEFT_OTHER_FAMILY(family)
#else
#define WEFT_OTHER_FAMILY(family) WEFT_PRODUCT_FAMILY(family)
#endif

namespace weft::WEFT_TARGET {

#define WEFT_FAMILY(family) WEFT_OTHER_FAMILY(family)
#define WEFT_PRODUCT_FAMILY(family) void register_##family(KernelTable& table);
#include WEFT_FAMILIES
#undef WEFT_FAMILY

const KernelTable& table();

const KernelTable& table() {
  static const KernelTable of_target = [] {
#if defined(WEFT_BASE)
    KernelTable t = WEFT_BASE::table();
#else
    KernelTable t;
#endif
#define WEFT_FAMILY(family) WEFT_OTHER_FAMILY(family)
#define WEFT_PRODUCT_FAMILY(family) register_##family(t);
#include WEFT_FAMILIES
#undef WEFT_FAMILY
    return t;
  }();
  return of_target;
}

}  // namespace weft::WEFT_TARGET
