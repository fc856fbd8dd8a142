// The decoder, dot product and matrix kernels of a format, entered in the tables.
#pragma once

#include "quants/dot.h"
#include "quants/panels.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

template <typename F>
void register_format(KernelTable& table, DType type) {
  QuantKernels& k = quant_kernels(type);
  k.activation = ActivationType<typename F::Activation>::kType;
  k.groups = kGroupsPerChunk<F>;
  k.zero = F::kZero;
  k.has_min = F::kHasMin;
  k.dot = dot_rows<F>;
#if defined(__AVX2__)
  k.pack = pack_panel<F>;
  k.tile[0] = multiply_tile<F, kTileColumns>;
  k.tile[1] = multiply_tile<F, kTileColumns / 2>;
  k.tile[2] = multiply_tile<F, kTileColumns / 4>;
#endif
  table.type(type).to_float = decode_format<F>;
  table.type(type).vec_dot = dot_one<F>;
  table.type(type).vec_type = k.activation;
}

}  // namespace weft::WEFT_TARGET
