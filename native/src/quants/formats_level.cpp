// Registers the decoders and products of the formats with uneven levels, four-bit floats and
// ternary weights.
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_level_formats(KernelTable& table);

void register_level_formats(KernelTable& table) {
  register_format<FormatIQ4_NL, DType::kIQ4_NL>(table);
  register_format<FormatIQ4_XS, DType::kIQ4_XS>(table);
  register_format<FormatMXFP4, DType::kMXFP4>(table);
  register_format<FormatNVFP4, DType::kNVFP4>(table);
  register_format<FormatTQ1_0, DType::kTQ1_0>(table);
  register_format<FormatTQ2_0, DType::kTQ2_0>(table);
  register_format<FormatI2_S, DType::kI2_S>(table);
}

}  // namespace weft::WEFT_TARGET
