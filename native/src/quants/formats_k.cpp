// Registers the decoders and products of the K-quants.
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_k_formats(KernelTable& table);

void register_k_formats(KernelTable& table) {
  register_format<FormatQ2_K, DType::kQ2_K>(table);
  register_format<FormatQ3_K, DType::kQ3_K>(table);
  register_format<FormatQ4_K, DType::kQ4_K>(table);
  register_format<FormatQ5_K, DType::kQ5_K>(table);
  register_format<FormatQ6_K, DType::kQ6_K>(table);
}

}  // namespace weft::WEFT_TARGET
