// Encoders of the four-bit types with uneven levels: iq4_nl and iq4_xs. The encoder of iq4_nl does
// not search for the best scale, as the reference's at run time does not (files were written with a
// search). Source: quantize_row_iq4_nl_impl in ggml-quants.c.
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_iq4_types(KernelTable& table);

namespace {

// The code of the nearest level: the upper one at a midpoint, the last one for NaN.
uint8_t nearest_level(float x) {
  const float doubled = x + x;
  int code = 15;
  for (int i = 0; i < 15; ++i) {
    code -= doubled < static_cast<float>(kIQ4Levels[i] + kIQ4Levels[i + 1]) ? 1 : 0;
  }
  return low8(code);
}

struct Sums {
  float qx;
  float q2;
};

// The sums of w * q * x and w * q * q, where w = x * x and q are the levels nearest to x * inverse.
// Writes their codes unless `codes` is nullptr.
Sums fit_sums(const float* x, float inverse, uint8_t* codes) {
  Sums sums = {0, 0};
  for (int j = 0; j < 32; ++j) {
    const uint8_t code = nearest_level(inverse * x[j]);
    if (codes != nullptr) codes[j] = code;
    const auto q = static_cast<float>(kIQ4Levels[code]);
    const float wq = x[j] * x[j] * q;
    sums.qx += wq * x[j];
    sums.q2 += wq * q;
  }
  return sums;
}

void pack_nibbles(const uint8_t* codes, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) qs[j] = low8(codes[j] | codes[j + 16] << 4);
}

void encode_iq4_nl(const float* x, BlockIQ4_NL& b) {
  const Peak peak = find_peak(x, 32);
  if (peak.magnitude < kTinyGroup) {
    std::memset(&b, 0, sizeof b);
    return;
  }
  const float d = peak.value / static_cast<float>(kIQ4Levels[0]);
  uint8_t codes[32];
  const Sums sums = fit_sums(x, 1.0f / d, codes);
  b.d = float_to_half(sums.q2 > 0 ? sums.qx / sums.q2 : 0.0f);
  pack_nibbles(codes, b.qs);
}

// The best scale for 32 values, out of a first fit and 15 trials.
float search_scale(const float* x) {
  const Peak peak = find_peak(x, 32);
  if (peak.magnitude < kTinyGroup) return 0;
  const auto end = static_cast<float>(kIQ4Levels[0]);
  Sums sums = fit_sums(x, 1.0f / (-peak.value / end), nullptr);
  float d = sums.q2 > 0 ? sums.qx / sums.q2 : 0.0f;
  float best = d * sums.qx;
  for (int step = -7; step <= 7; ++step) {
    sums = fit_sums(x, (static_cast<float>(step) + end) / peak.value, nullptr);
    if (sums.q2 > 0 && sums.qx * sums.qx > best * sums.q2) {
      d = sums.qx / sums.q2;
      best = d * sums.qx;
    }
  }
  return d;
}

void encode_iq4_xs(const float* x, BlockIQ4_XS& b) {
  float scales[8];
  for (int g = 0; g < 8; ++g) scales[g] = search_scale(x + 32 * g);
  const float d = -find_peak(scales, 8).value / 32.0f;
  const float inverse = reciprocal(d);
  b.d = float_to_half(d);
  std::memset(b.scales_l, 0, sizeof b.scales_l);
  uint32_t high = 0;
  for (int g = 0; g < 8; ++g) {
    const int32_t step = clamp(nearest_int(inverse * scales[g]), -32, 31);
    const float group_inverse = reciprocal(d * static_cast<float>(step));
    uint8_t codes[32];
    for (int j = 0; j < 32; ++j) codes[j] = nearest_level(group_inverse * x[32 * g + j]);
    pack_nibbles(codes, b.qs + 16 * g);
    const int32_t stored = step + 32;
    b.scales_l[g / 2] = low8(b.scales_l[g / 2] | (stored & 15) << g % 2 * 4);
    high |= static_cast<uint32_t>(stored >> 4) << 2 * g;
  }
  b.scales_h = static_cast<uint16_t>(high);
}

}  // namespace

void register_iq4_types(KernelTable& table) {
  table.type(DType::kIQ4_NL).from_float = encode_row<BlockIQ4_NL, 32, encode_iq4_nl>;
  table.type(DType::kIQ4_XS).from_float = encode_row<BlockIQ4_XS, 256, encode_iq4_xs>;
}

}  // namespace weft::WEFT_TARGET
