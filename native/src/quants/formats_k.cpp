// Registers the decoders and products of the K-quants.
#include "quants/register_format.h"

namespace weft::WEFT_TARGET {

void register_k_formats(KernelTable& table);

void register_k_formats(KernelTable& table) {
  register_format<FormatQ2_K>(table, DType::kQ2_K);
  register_format<FormatQ3_K>(table, DType::kQ3_K);
  register_format<FormatQ4_K>(table, DType::kQ4_K);
  register_format<FormatQ5_K>(table, DType::kQ5_K);
  register_format<FormatQ6_K>(table, DType::kQ6_K);
}

}  // namespace weft::WEFT_TARGET
