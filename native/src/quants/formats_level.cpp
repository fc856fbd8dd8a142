// Registers the decoders and products of the formats with uneven levels, four-bit floats and
// ternary weights.
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_level_formats(KernelTable& table);

void register_level_formats(KernelTable& table) {
  register_format<FormatIQ4_NL>(table, DType::kIQ4_NL);
  register_format<FormatIQ4_XS>(table, DType::kIQ4_XS);
  register_format<FormatMXFP4>(table, DType::kMXFP4);
  register_format<FormatNVFP4>(table, DType::kNVFP4);
  register_format<FormatTQ1_0>(table, DType::kTQ1_0);
  register_format<FormatTQ2_0>(table, DType::kTQ2_0);
  register_format<FormatI2_S>(table, DType::kI2_S);
}

}  // namespace weft::WEFT_TARGET
