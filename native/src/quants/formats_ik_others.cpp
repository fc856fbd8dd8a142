// Registers the decoders and products of ik_llama.cpp's trellises, and of its types that are like
// older ones.
#include "quants/formats_ik.h"
#include "quants/lanes_ik.h"
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_ik_others(KernelTable& table);

void register_ik_others(KernelTable& table) {
  register_format<FormatIQ1_KT, DType::kIQ1_KT>(table);
  register_format<FormatIQ2_KT, DType::kIQ2_KT>(table);
  register_format<FormatIQ3_KT, DType::kIQ3_KT>(table);
  register_format<FormatIQ4_KT, DType::kIQ4_KT>(table);
  register_format<FormatIQ2_BN, DType::kIQ2_BN>(table);
  register_format<FormatIQ1_M_R4, DType::kIQ1_M_R4>(table);
  register_format<FormatQ6_0, DType::kQ6_0>(table);
  register_format<FormatQ8_KV, DType::kQ8_KV>(table);
}

}  // namespace weft::WEFT_TARGET
