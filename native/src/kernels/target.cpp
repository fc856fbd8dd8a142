// The kernel table of one target: every family registers its kernels here.
#include "kernels/kernel.h"

namespace weft::WEFT_TARGET {

#define WEFT_FAMILIES(X) \
  X(binary) \
  X(unary) \
  X(glu) \
  X(norm) \
  X(softmax) \
  X(rope) \
  X(attention)

#define WEFT_DECLARE(family) void register_##family(KernelTable& table);
WEFT_FAMILIES(WEFT_DECLARE)
#undef WEFT_DECLARE

const KernelTable& table();

const KernelTable& table() {
  static const KernelTable built = [] {
    KernelTable t;
#define WEFT_REGISTER(family) register_##family(t);
    WEFT_FAMILIES(WEFT_REGISTER)
#undef WEFT_REGISTER
    return t;
  }();
  return built;
}

}  // namespace weft::WEFT_TARGET
