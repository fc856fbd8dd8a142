// Scales of the four-bit floats, halved because their codes are kept doubled.
#pragma once

#include "quants/codec.h"

namespace weft::WEFT_TARGET {

// 2^(e - 128); the two smallest are subnormal.
static inline float halved_e8m0(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Unsigned E4M3 with bias 7. The byte 0x7f means 0, like 0x00; otherwise bit 7 is ignored.
static inline float halved_ue4m3(uint8_t code) {
  const uint32_t exponent = code >> 3 & 15u;
  const uint32_t mantissa = code & 7u;
  if (code == 0x7f) return 0;
  if (exponent == 0) return static_cast<float>(mantissa) * (1.0f / 1024.0f);
  const uint32_t bits = (exponent + 119) << 23 | mantissa << 20;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

}  // namespace weft::WEFT_TARGET
