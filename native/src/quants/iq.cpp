// Decoders of the codebook types iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s.
//
// A "signs and scale" word is four 7-bit sign indices and a 4-bit scale on top; the eighth sign
// makes the number of minuses even. iq1 levels are shifted by +-1/8. Source: dequantize_row_iq* in
// ggml-quants.c.
#include "quants/codebooks.h"
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_iq_types(KernelTable& table);

namespace {

constexpr float kShift = 0.125f;

// The eight sign bits of a 7-bit index.
uint32_t even_signs(uint32_t index) {
  index &= 127u;
  uint32_t parity = index ^ index >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return index | (parity & 1u) << 7;
}

// y = scale * level * sign for `n` levels, sign bits from the lowest up.
void put(float scale, const int8_t* levels, uint32_t signs, int n, float* y) {
  for (int j = 0; j < n; ++j) {
    const float value = scale * static_cast<float>(levels[j]);
    y[j] = signs >> j & 1u ? -value : value;
  }
}

void decode_iq2_xxs(const BlockIQ2_XXS& b, float* y) {
  const float d = half_to_float(b.d);
  for (int g = 0; g < 8; ++g) {
    uint8_t codes[4];
    uint32_t word;
    std::memcpy(codes, reinterpret_cast<const char*>(b.qs) + 8 * g, 4);
    std::memcpy(&word, reinterpret_cast<const char*>(b.qs) + 8 * g + 4, 4);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.25f;
    for (int k = 0; k < 4; ++k, y += 8) {
      put(scale, kBookIQ2_XXS.vectors[codes[k]], even_signs(word >> 7 * k), 8, y);
    }
  }
}

// Scale of sixteen elements: 4 bits each in `scales`.
float scale_iq2(float d, const uint8_t* scales, int group) {
  const int step = scales[group / 2] >> group % 2 * 4 & 15;
  return d * (0.5f + static_cast<float>(step)) * 0.25f;
}

void decode_iq2_xs(const BlockIQ2_XS& b, float* y) {
  const float d = half_to_float(b.d);
  for (int k = 0; k < 32; ++k, y += 8) {
    const uint32_t word = b.qs[k];
    put(scale_iq2(d, b.scales, k / 2), kBookIQ2_XS.vectors[word & 511u], even_signs(word >> 9), 8,
        y);
  }
}

void decode_iq2_s(const BlockIQ2_S& b, float* y) {
  const float d = half_to_float(b.d);
  for (int k = 0; k < 32; ++k, y += 8) {
    const int code = b.qs[k] | (b.qh[k / 4] >> k % 4 * 2 & 3) << 8;
    put(scale_iq2(d, b.scales, k / 2), kBookIQ2_S.vectors[code], b.signs[k], 8, y);
  }
}

void decode_iq3_xxs(const BlockIQ3_XXS& b, float* y) {
  const float d = half_to_float(b.d);
  for (int g = 0; g < 8; ++g) {
    const uint32_t word = read32(b.signs_scales + 4 * g);
    const float scale = d * (0.5f + static_cast<float>(word >> 28)) * 0.5f;
    for (int k = 0; k < 4; ++k, y += 8) {
      const uint32_t signs = even_signs(word >> 7 * k);
      const uint8_t* codes = b.qs + 8 * g + 2 * k;
      put(scale, kBookIQ3_XXS.vectors[codes[0]], signs, 4, y);
      put(scale, kBookIQ3_XXS.vectors[codes[1]], signs >> 4, 4, y + 4);
    }
  }
}

void decode_iq3_s(const BlockIQ3_S& b, float* y) {
  const float d = half_to_float(b.d);
  for (int g = 0; g < 8; ++g) {
    const int step = b.scales[g / 2] >> g % 2 * 4 & 15;
    const float scale = d * static_cast<float>(1 + 2 * step);
    for (int k = 0; k < 8; ++k, y += 4) {
      const int code = b.qs[8 * g + k] | (b.qh[g] >> k & 1) << 8;
      const uint32_t signs = b.signs[4 * g + k / 2] >> k % 2 * 4;
      put(scale, kBookIQ3_S.vectors[code], signs, 4, y);
    }
  }
}

void put_shifted(float scale, const int8_t* levels, float shift, float* y) {
  for (int j = 0; j < 8; ++j) y[j] = scale * (static_cast<float>(levels[j]) + shift);
}

void decode_iq1_s(const BlockIQ1_S& b, float* y) {
  const float d = half_to_float(b.d);
  for (int g = 0; g < 8; ++g) {
    const int high = b.qh[g];
    const float scale = d * static_cast<float>(2 * (high >> 12 & 7) + 1);
    const float shift = high & 0x8000 ? -kShift : kShift;
    for (int k = 0; k < 4; ++k, y += 8) {
      const int code = b.qs[4 * g + k] | (high >> 3 * k & 7) << 8;
      put_shifted(scale, kBookIQ1.vectors[code], shift, y);
    }
  }
}

void decode_iq1_m(const BlockIQ1_M& b, float* y) {
  uint32_t half = 0;
  for (int k = 0; k < 4; ++k) half |= static_cast<uint32_t>(b.scales[k] >> 12) << 4 * k;
  const float d = half_to_float(static_cast<uint16_t>(half));
  for (int k = 0; k < 32; ++k, y += 8) {
    const int group = k / 2;
    const int step = b.scales[group / 4] >> group % 4 * 3 & 7;
    const float scale = d * static_cast<float>(2 * step + 1);
    const int high = b.qh[k / 2] >> k % 2 * 4 & 15;
    const int code = b.qs[k] | (high & 7) << 8;
    put_shifted(scale, kBookIQ1.vectors[code], high & 8 ? -kShift : kShift, y);
  }
}

}  // namespace

void register_iq_types(KernelTable& table) {
  table.type(DType::kIQ2_XXS).to_float = decode_row<BlockIQ2_XXS, 256, decode_iq2_xxs>;
  table.type(DType::kIQ2_XS).to_float = decode_row<BlockIQ2_XS, 256, decode_iq2_xs>;
  table.type(DType::kIQ2_S).to_float = decode_row<BlockIQ2_S, 256, decode_iq2_s>;
  table.type(DType::kIQ3_XXS).to_float = decode_row<BlockIQ3_XXS, 256, decode_iq3_xxs>;
  table.type(DType::kIQ3_S).to_float = decode_row<BlockIQ3_S, 256, decode_iq3_s>;
  table.type(DType::kIQ1_S).to_float = decode_row<BlockIQ1_S, 256, decode_iq1_s>;
  table.type(DType::kIQ1_M).to_float = decode_row<BlockIQ1_M, 256, decode_iq1_m>;
}

}  // namespace weft::WEFT_TARGET
