// Rows of the plain float types.
#include "kernels/matmul/matmul_bf16.h"
#include "kernels/simd/math.h"
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_float_types(KernelTable& table);

namespace {

void decode_f32(const void* src, float* dst, int64_t n) {
  std::memcpy(dst, src, static_cast<size_t>(n) * 4);
}

void encode_f32(const float* src, void* dst, int64_t n) {
  std::memcpy(dst, src, static_cast<size_t>(n) * 4);
}

void decode_f16(const void* src, float* dst, int64_t n) {
  const auto* p = static_cast<const uint16_t*>(src);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(dst + i, load_half(p + i));
  for (; i < n; ++i) dst[i] = half_to_float(p[i]);
}

void encode_f16(const float* src, void* dst, int64_t n) {
  auto* p = static_cast<uint16_t*>(dst);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_half(p + i, load(src + i));
  for (; i < n; ++i) p[i] = float_to_half(src[i]);
}

void decode_bf16(const void* src, float* dst, int64_t n) {
  const auto* p = static_cast<const uint16_t*>(src);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(dst + i, load_bf16(p + i));
  for (; i < n; ++i) dst[i] = bf16_to_float(p[i]);
}

void encode_bf16(const float* src, void* dst, int64_t n) {
  auto* p = static_cast<uint16_t*>(dst);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(p + i, load(src + i));
  for (; i < n; ++i) p[i] = float_to_bf16(src[i]);
}

}  // namespace

void register_float_types(KernelTable& table) {
  set_codec(table, DType::kF32, {.to_float = decode_f32, .from_float = encode_f32});
  set_codec(table, DType::kF16, {.to_float = decode_f16, .from_float = encode_f16});
  set_codec(table, DType::kBF16, {.to_float = decode_bf16, .from_float = encode_bf16});
  // narrower vectors gain nothing by panels
  table.type(DType::kF32).matmul_interleaved = kLanes > 4;
  if (bf16_kernels() != nullptr) table.type(DType::kBF16).vec_type = DType::kBF16;
}

}  // namespace weft::WEFT_TARGET
