// Registers the decoders and products of the formats with 32 elements, and those with one and two
// bits.
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_legacy_formats(KernelTable& table);

void register_legacy_formats(KernelTable& table) {
  register_format<FormatQ4_0, DType::kQ4_0>(table);
  register_format<FormatQ4_1, DType::kQ4_1>(table);
  register_format<FormatQ5_0, DType::kQ5_0>(table);
  register_format<FormatQ5_1, DType::kQ5_1>(table);
  register_format<FormatQ8_0, DType::kQ8_0>(table);
  register_format<FormatQ1_0, DType::kQ1_0>(table);
  register_format<FormatQ2_0, DType::kQ2_0>(table);
}

}  // namespace weft::WEFT_TARGET
