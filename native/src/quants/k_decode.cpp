// Decoders of the K-quants. Source: dequantize_row_q*_K in ggml-quants.c.
#include "quants/k_quants.h"

namespace weft::WEFT_TARGET {

void register_k_decoders(KernelTable& table);

namespace {

void decode_q2_K(const BlockQ2_K& b, float* y) {
  const float d = half_to_float(b.d);
  const float dmin = half_to_float(b.dmin);
  for (int g = 0; g < 16; ++g, y += 16) {
    const float scale = d * static_cast<float>(b.scales[g] & 15);
    const float min = dmin * static_cast<float>(b.scales[g] >> 4);
    const uint8_t* q = b.qs + 32 * (g / 8) + 16 * (g % 2);
    const int shift = g / 2 % 4 * 2;
    for (int j = 0; j < 16; ++j) y[j] = scale * static_cast<float>(q[j] >> shift & 3) - min;
  }
}

void decode_q3_K(const BlockQ3_K& b, float* y) {
  const float d = half_to_float(b.d);
  uint8_t scales[16];
  const uint64_t packed[2] = {sixteen_scales(b.scales, 0), sixteen_scales(b.scales, 1)};
  std::memcpy(scales, packed, sizeof scales);
  for (int g = 0; g < 16; ++g, y += 16) {
    const float scale = d * static_cast<float>(scales[g] - 32);
    const uint8_t* q = b.qs + 32 * (g / 8) + 16 * (g % 2);
    const uint8_t* high = b.hmask + 16 * (g % 2);
    const int shift = g / 2 % 4 * 2;
    const int plane = g / 2;
    for (int j = 0; j < 16; ++j) {
      const int code = (q[j] >> shift & 3) | (high[j] >> plane & 1) << 2;
      y[j] = scale * static_cast<float>(code - 4);
    }
  }
}

void decode_q4_K(const BlockQ4_K& b, float* y) {
  const float d = half_to_float(b.d);
  const float dmin = half_to_float(b.dmin);
  const uint64_t scales = pair_scales(b.scales);
  const uint64_t mins = pair_mins(b.scales);
  for (int g = 0; g < 8; ++g, y += 32) {
    const float scale = d * static_cast<float>(scales >> 8 * g & 63);
    const float min = dmin * static_cast<float>(mins >> 8 * g & 63);
    const uint8_t* q = b.qs + 32 * (g / 2);
    const int shift = g % 2 * 4;
    for (int j = 0; j < 32; ++j) y[j] = scale * static_cast<float>(q[j] >> shift & 15) - min;
  }
}

void decode_q5_K(const BlockQ5_K& b, float* y) {
  const float d = half_to_float(b.d);
  const float dmin = half_to_float(b.dmin);
  const uint64_t scales = pair_scales(b.scales);
  const uint64_t mins = pair_mins(b.scales);
  for (int g = 0; g < 8; ++g, y += 32) {
    const float scale = d * static_cast<float>(scales >> 8 * g & 63);
    const float min = dmin * static_cast<float>(mins >> 8 * g & 63);
    const uint8_t* q = b.qs + 32 * (g / 2);
    const int shift = g % 2 * 4;
    for (int j = 0; j < 32; ++j) {
      const int code = (q[j] >> shift & 15) | (b.qh[j] >> g & 1) << 4;
      y[j] = scale * static_cast<float>(code) - min;
    }
  }
}

void decode_q6_K(const BlockQ6_K& b, float* y) {
  const float d = half_to_float(b.d);
  for (int g = 0; g < 16; ++g, y += 16) {
    const float scale = d * static_cast<float>(b.scales[g]);
    // 128 elements use 64 bytes of ql (low halves of both 32s, then high) and 32 bytes of qh
    const uint8_t* low = b.ql + 64 * (g / 8) + 32 * (g / 2 % 2) + 16 * (g % 2);
    const uint8_t* high = b.qh + 32 * (g / 8) + 16 * (g % 2);
    const int low_shift = g / 4 % 2 * 4;
    const int high_shift = g / 2 % 4 * 2;
    for (int j = 0; j < 16; ++j) {
      const int code = (low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4;
      y[j] = scale * static_cast<float>(code - 32);
    }
  }
}

void decode_q8_K(const BlockQ8_K& b, float* y) {
  for (int j = 0; j < 256; ++j) y[j] = b.d * static_cast<float>(b.qs[j]);
}

}  // namespace

void register_k_decoders(KernelTable& table) {
  table.type(DType::kQ2_K).to_float = decode_row<BlockQ2_K, 256, decode_q2_K>;
  table.type(DType::kQ3_K).to_float = decode_row<BlockQ3_K, 256, decode_q3_K>;
  table.type(DType::kQ4_K).to_float = decode_row<BlockQ4_K, 256, decode_q4_K>;
  table.type(DType::kQ5_K).to_float = decode_row<BlockQ5_K, 256, decode_q5_K>;
  table.type(DType::kQ6_K).to_float = decode_row<BlockQ6_K, 256, decode_q6_K>;
  table.type(DType::kQ8_K).to_float = decode_row<BlockQ8_K, 256, decode_q8_K>;
}

}  // namespace weft::WEFT_TARGET
