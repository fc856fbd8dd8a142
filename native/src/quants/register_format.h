// Enters the decoder, dot product and matrix kernels of a format in the tables.
#pragma once

#include "quants/dot.h"
#include "quants/kept.h"
#include "quants/levels.h"
#include "quants/lookup_layout.h"
#include "quants/quant_kernels.h"

#if defined(WEFT_PANELS)
#include "quants/interleaved.h"
#endif

namespace weft::WEFT_TARGET {

template <typename F>
void set_format(KernelTable& table, DType type) {
  QuantKernels& k = quant_kernels(type);
  k.activation = ActivationType<typename F::Activation>::kType;
  k.groups = kGroupsPerChunk<F>;
  k.zero = F::kZero;
  k.has_min = F::kHasMin;
  k.dot = dot_rows<F>;
  k.one_scale = F::kOneScale;
  k.whole_sums = kWholeSums<F>;
#if defined(WEFT_PANELS)
  set_panels<F>(k);
#endif
  table.type(type).to_float = decode_format<F>;
  table.type(type).matmul_interleaved = k.unpack != nullptr && level_block(type) == 0;
  table.type(type).matmul_levels = k.unpack != nullptr && level_block(type) != 0;
  table.type(type).matmul_lookup = kLooksUp && lookup_block(type) != 0;
  table.type(type).vec_type = k.activation;
}

template <typename F, DType kType>
void register_format(KernelTable& table) {
  if constexpr (is_kept(kType)) set_format<F>(table, kType);
}

}  // namespace weft::WEFT_TARGET
