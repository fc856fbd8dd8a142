// The scales of the four-bit floats, halved because the values of their codes are doubled.
#pragma once

#include "quants/codec.h"

namespace weft {

// Half of each unsigned E4M3 number (bias 7). The code 0x7f means 0, as 0x00 does. Bit 7 of other
// codes is ignored.
struct HalvedUE4M3 {
  float values[256];

  constexpr HalvedUE4M3() : values() {
    for (int code = 0; code < 256; ++code) {
      const int exponent = code >> 3 & 15;
      const auto mantissa = static_cast<float>(code & 7);
      float scale = 1.0f / 1024.0f;  // the scale of the subnormal numbers
      for (int e = 1; e < exponent; ++e) scale *= 2;
      values[code] = exponent == 0 ? mantissa * scale : (8.0f + mantissa) * scale;
    }
    values[0x7f] = 0;
  }
};
inline constexpr HalvedUE4M3 kHalvedUE4M3;

}  // namespace weft

namespace weft::WEFT_TARGET {

// 2^(e - 128). The two smallest results are subnormal.
static inline float halved_e8m0(uint8_t e) {
  const uint32_t bits = e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

static inline float halved_ue4m3(uint8_t code) { return kHalvedUE4M3.values[code]; }

}  // namespace weft::WEFT_TARGET
