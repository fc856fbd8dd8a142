// Converters for rows of the plain float types.
#include "kernels/matmul/matmul_bf16.h"
#include "kernels/rows.h"
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_float_types(KernelTable& table);

namespace {

template <DType kType, int64_t kSize>
void decode(const void* src, float* dst, int64_t n) {
  load_floats(static_cast<const char*>(src), kType, kSize, n, dst);
}

template <DType kType, int64_t kSize>
void encode(const float* src, void* dst, int64_t n) {
  store_floats(src, n, static_cast<char*>(dst), kType, kSize);
}

template <DType kType, int64_t kSize>
void set_floats(KernelTable& table) {
  set_codec(table, kType, {.to_float = decode<kType, kSize>, .from_float = encode<kType, kSize>});
}

}  // namespace

void register_float_types(KernelTable& table) {
  set_floats<DType::kF32, 4>(table);
  set_floats<DType::kF16, 2>(table);
  set_floats<DType::kBF16, 2>(table);
  // Targets with shorter vectors gain nothing from panels.
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    table.type(type).matmul_interleaved = kLanes > 4;
  }
  if (bf16_kernels() != nullptr) table.type(DType::kBF16).vec_type = DType::kBF16;
}

}  // namespace weft::WEFT_TARGET
