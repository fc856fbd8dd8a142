// Registers the decoders and products of ik_llama.cpp's types with uneven levels.
#include "quants/formats_ik.h"
#include "quants/lanes_ik.h"
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_ik_levels(KernelTable& table);

void register_ik_levels(KernelTable& table) {
  register_format<FormatIQ2_K, DType::kIQ2_K>(table);
  register_format<FormatIQ3_K, DType::kIQ3_K>(table);
  register_format<FormatIQ4_K, DType::kIQ4_K>(table);
  register_format<FormatIQ5_K, DType::kIQ5_K>(table);
  register_format<FormatIQ6_K, DType::kIQ6_K>(table);
  register_format<FormatIQ2_KS, DType::kIQ2_KS>(table);
  register_format<FormatIQ3_KS, DType::kIQ3_KS>(table);
  register_format<FormatIQ4_KS, DType::kIQ4_KS>(table);
  register_format<FormatIQ5_KS, DType::kIQ5_KS>(table);
  register_format<FormatIQ2_KL, DType::kIQ2_KL>(table);
}

}  // namespace weft::WEFT_TARGET
