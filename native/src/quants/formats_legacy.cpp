// Registers the decoders and products of the formats with 32 elements, and those with one and two
// bits.
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_legacy_formats(KernelTable& table);

QuantKernels& quant_kernels(DType type) {
  static QuantKernels all[kDTypeCount];
  return all[static_cast<size_t>(type)];
}

void register_legacy_formats(KernelTable& table) {
  register_format<FormatQ4_0>(table, DType::kQ4_0);
  register_format<FormatQ4_1>(table, DType::kQ4_1);
  register_format<FormatQ5_0>(table, DType::kQ5_0);
  register_format<FormatQ5_1>(table, DType::kQ5_1);
  register_format<FormatQ8_0>(table, DType::kQ8_0);
  register_format<FormatQ1_0>(table, DType::kQ1_0);
  register_format<FormatQ2_0>(table, DType::kQ2_0);
}

}  // namespace weft::WEFT_TARGET
