// Decoders and dot products of the codebook types.
#include "quants/formats_iq.h"
#include "quants/lanes_levels.h"
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_iq_types(KernelTable& table);

void register_iq_types(KernelTable& table) {
  register_format<FormatIQ2_XXS, DType::kIQ2_XXS>(table);
  register_format<FormatIQ2_XS, DType::kIQ2_XS>(table);
  register_format<FormatIQ2_S, DType::kIQ2_S>(table);
  register_format<FormatIQ3_XXS, DType::kIQ3_XXS>(table);
  register_format<FormatIQ3_S, DType::kIQ3_S>(table);
  register_format<FormatIQ1_S, DType::kIQ1_S>(table);
  register_format<FormatIQ1_M, DType::kIQ1_M>(table);
}

}  // namespace weft::WEFT_TARGET
