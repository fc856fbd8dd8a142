// Decoders and dot products of the codebook types.
#include "quants/formats_iq.h"
#include "quants/lanes_levels.h"
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_iq_types(KernelTable& table);

void register_iq_types(KernelTable& table) {
  register_format<FormatIQ2_XXS>(table, DType::kIQ2_XXS);
  register_format<FormatIQ2_XS>(table, DType::kIQ2_XS);
  register_format<FormatIQ2_S>(table, DType::kIQ2_S);
  register_format<FormatIQ3_XXS>(table, DType::kIQ3_XXS);
  register_format<FormatIQ3_S>(table, DType::kIQ3_S);
  register_format<FormatIQ1_S>(table, DType::kIQ1_S);
  register_format<FormatIQ1_M>(table, DType::kIQ1_M);
}

}  // namespace weft::WEFT_TARGET
