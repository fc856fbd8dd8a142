// Enters the decoder, dot product and matrix kernels of a format in the tables.
#pragma once

#include "quants/dot.h"
#include "quants/interleaved.h"
#include "quants/kept.h"
#include "quants/levels.h"
#include "quants/lookup_layout.h"
#include "quants/panels.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

#if defined(WEFT_PANELS)

// Sets the kernels for kTileSizes[kVariant] columns, and those for fewer.
template <typename F, int kVariant>
void set_variants(QuantKernels& k) {
  k.tile[kVariant] = multiply_tile<F, kTileSizes[kVariant]>;
  if constexpr (kHasLanes<F>) {
    constexpr int kFewer = kVariant > 0 ? kTileSizes[kVariant > 0 ? kVariant - 1 : 0] : 0;
    if constexpr (kFewer < kFewColumns<F>) {
      k.columns[kVariant] = multiply_columns<F, kTileSizes[kVariant]>;
    }
  }
  if constexpr (kVariant > 0) set_variants<F, kVariant - 1>(k);
}

#endif

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
  k.wide_zero = kWideZero<F>;
  if constexpr (kSplit<F>) k.zero = kSplitZero;
  k.few_columns = kFewColumns<F>;
  k.pack = pack_panel<F>;
  if constexpr (kHasLanes<F>) k.unpack = unpack_panel<F>;
  set_variants<F, kTileVariants - 1>(k);
#endif
  table.type(type).to_float = decode_format<F>;
  table.type(type).matmul_interleaved = k.unpack != nullptr && level_block(type) == 0;
  table.type(type).matmul_levels = k.unpack != nullptr && level_block(type) != 0;
  table.type(type).matmul_lookup = lookup_block(type) != 0;
  table.type(type).vec_type = k.activation;
}

template <typename F, DType kType>
void register_format(KernelTable& table) {
  if constexpr (is_kept(kType)) set_format<F>(table, kType);
}

}  // namespace weft::WEFT_TARGET
