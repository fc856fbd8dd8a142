// The kernel table of one target: every family registers its kernels here.
#include "kernels/kernel.h"

namespace weft::WEFT_TARGET {

// clang-format off
#define WEFT_FAMILIES(X) \
  X(binary) \
  X(float_types) \
  X(legacy_types) \
  X(k_types) \
  X(iq_types) \
  X(iq4_types) \
  X(ternary_types) \
  X(fp4_types) \
  X(low_bit_types) \
  X(legacy_formats) \
  X(k_formats) \
  X(level_formats) \
  X(copy) \
  X(copy_tile) \
  X(rows_ops) \
  X(matmul) \
  X(matmul_id) \
  X(out_prod)
// clang-format on

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
