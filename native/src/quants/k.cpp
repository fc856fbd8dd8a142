// Encoders of the K-quants. Source: quantize_row_q*_K_ref in ggml-quants.c.
#include "quants/k_quants.h"
#include "quants/k_search.h"

namespace weft::WEFT_TARGET {

void register_k_types(KernelTable& table);

namespace {

// Codes x + offset anew with the scale as it is stored: the nearest of low..high, less `low`. Where
// that scale is zero, the codes of the search stay.
void requantize(const float* x, int n, float scale, float offset, int low, int high,
                uint8_t* codes) {
  if (scale == 0) return;
  for (int i = 0; i < n; ++i) {
    codes[i] = low8(clamp(nearest_int((x[i] + offset) / scale), low, high) - low);
  }
}

float largest(const float* v, int n) {
  float top = 0;
  for (int i = 0; i < n; ++i) top = v[i] > top ? v[i] : top;
  return top;
}

void encode_q2_K(const float* x, BlockQ2_K& b) {
  constexpr SearchRange kRange = {3, -0.5f, 0.1f, 15, true};
  uint8_t codes[256];
  float scales[16];
  float mins[16];
  for (int g = 0; g < 16; ++g) {
    float weights[16];
    for (int i = 0; i < 16; ++i) weights[i] = __builtin_fabsf(x[16 * g + i]);
    const Fit fit = fit_scale_and_min(x + 16 * g, weights, 16, kRange, codes + 16 * g);
    scales[g] = fit.scale;
    mins[g] = fit.offset;
  }
  const float top_scale = largest(scales, 16);
  const float top_min = largest(mins, 16);
  const auto four_bits = [](float value, float top) {
    return top > 0 ? nearest_int(15.0f / top * value) : 0;
  };
  for (int g = 0; g < 16; ++g) {
    b.scales[g] = low8(four_bits(scales[g], top_scale) | four_bits(mins[g], top_min) << 4);
  }
  b.d = float_to_half(top_scale / 15.0f);
  b.dmin = float_to_half(top_min / 15.0f);
  const float d = half_to_float(b.d);
  const float dmin = half_to_float(b.dmin);
  for (int g = 0; g < 16; ++g) {
    requantize(x + 16 * g, 16, d * static_cast<float>(b.scales[g] & 15),
               dmin * static_cast<float>(b.scales[g] >> 4), 0, 3, codes + 16 * g);
  }
  pack_two_bits(codes, b.qs);
}

void encode_q3_K(const float* x, BlockQ3_K& b) {
  uint8_t codes[256];
  float scales[16];
  uint8_t stored[16] = {};
  for (int g = 0; g < 16; ++g) scales[g] = fit_scale_by_element<4>(x + 16 * g, codes + 16 * g);
  const float peak = find_peak(scales, 16).value;
  b.d = 0;
  if (peak != 0) {
    const float inverse = -32.0f / peak;
    for (int g = 0; g < 16; ++g) {
      // As in the reference, it is narrowed to a byte before it is clamped.
      stored[g] = low8(clamp(narrow8(nearest_int(inverse * scales[g])), -32, 31) + 32);
    }
    b.d = float_to_half(1.0f / inverse);
  }
  pack_sixteen(stored, b.scales);
  const float d = half_to_float(b.d);
  for (int g = 0; g < 16; ++g) {
    requantize(x + 16 * g, 16, d * static_cast<float>(stored[g] - 32), 0, -4, 3, codes + 16 * g);
  }
  pack_planes(codes, 2, b.hmask);
  pack_two_bits(codes, b.qs);
}

struct Pairs {
  uint16_t d;
  uint16_t dmin;
  uint8_t packed[12];
};

// The scales, minima and codes of q4_K and q5_K.
Pairs encode_pairs(const float* x, const SearchRange& range, uint8_t* codes) {
  float scales[8];
  float mins[8];
  for (int g = 0; g < 8; ++g) {
    const float* group = x + 32 * g;
    float sum = 0;
    for (int i = 0; i < 32; ++i) sum += group[i] * group[i];
    const float rms = __builtin_sqrtf(sum / 32.0f);
    float weights[32];
    for (int i = 0; i < 32; ++i) weights[i] = rms + __builtin_fabsf(group[i]);
    const Fit fit = fit_scale_and_min(group, weights, 32, range, codes + 32 * g);
    scales[g] = fit.scale;
    mins[g] = fit.offset;
  }
  const float top_scale = largest(scales, 8);
  const float top_min = largest(mins, 8);
  const float inverse_scale = top_scale > 0 ? 63.0f / top_scale : 0.0f;
  const float inverse_min = top_min > 0 ? 63.0f / top_min : 0.0f;
  uint8_t s[8];
  uint8_t m[8];
  for (int g = 0; g < 8; ++g) {
    const uint8_t ls = low8(nearest_int(inverse_scale * scales[g]));
    const uint8_t lm = low8(nearest_int(inverse_min * mins[g]));
    s[g] = ls < 63 ? ls : 63;
    m[g] = lm < 63 ? lm : 63;
  }
  Pairs out;
  out.d = float_to_half(top_scale / 63.0f);
  out.dmin = float_to_half(top_min / 63.0f);
  pack_pairs(s, m, out.packed);
  const float d = half_to_float(out.d);
  const float dmin = half_to_float(out.dmin);
  for (int g = 0; g < 8; ++g) {
    requantize(x + 32 * g, 32, d * static_cast<float>(s[g]), dmin * static_cast<float>(m[g]), 0,
               range.top, codes + 32 * g);
  }
  return out;
}

void encode_q4_K(const float* x, BlockQ4_K& b) {
  uint8_t codes[256];
  const Pairs pairs = encode_pairs(x, {15, -1.0f, 0.1f, 20, false}, codes);
  b.d = pairs.d;
  b.dmin = pairs.dmin;
  std::memcpy(b.scales, pairs.packed, 12);
  pack_four_bits(codes, b.qs);
}

void encode_q5_K(const float* x, BlockQ5_K& b) {
  uint8_t codes[256];
  const Pairs pairs = encode_pairs(x, {31, -0.5f, 0.1f, 15, false}, codes);
  b.d = pairs.d;
  b.dmin = pairs.dmin;
  std::memcpy(b.scales, pairs.packed, 12);
  pack_planes(codes, 4, b.qh);
  pack_four_bits(codes, b.qs);
}

void encode_q6_K(const float* x, BlockQ6_K& b) {
  uint8_t codes[256];
  float scales[16];
  for (int g = 0; g < 16; ++g) scales[g] = fit_scale<32>(x + 16 * g, codes + 16 * g);
  const Peak peak = find_peak(scales, 16);
  if (peak.magnitude < kTinyGroup) {
    std::memset(&b, 0, sizeof b);
    return;
  }
  const float inverse = -128.0f / peak.value;
  b.d = float_to_half(1.0f / inverse);
  const float d = half_to_float(b.d);
  for (int g = 0; g < 16; ++g) {
    const int32_t step = nearest_int(inverse * scales[g]);
    b.scales[g] = narrow8(step < 127 ? step : 127);
    requantize(x + 16 * g, 16, d * static_cast<float>(b.scales[g]), 0, -32, 31, codes + 16 * g);
  }
  for (int half = 0; half < 2; ++half) {
    const uint8_t* q = codes + 128 * half;
    uint8_t* low = b.ql + 64 * half;
    uint8_t* high = b.qh + 32 * half;
    for (int j = 0; j < 64; ++j) low[j] = low8((q[j] & 15) | (q[j + 64] & 15) << 4);
    for (int j = 0; j < 32; ++j) {
      high[j] = low8(q[j] >> 4 | q[j + 32] >> 4 << 2 | q[j + 64] >> 4 << 4 | q[j + 96] >> 4 << 6);
    }
  }
}

}  // namespace

void register_k_types(KernelTable& table) {
  table.type(DType::kQ2_K).from_float = encode_row<BlockQ2_K, 256, encode_q2_K>;
  table.type(DType::kQ3_K).from_float = encode_row<BlockQ3_K, 256, encode_q3_K>;
  table.type(DType::kQ4_K).from_float = encode_row<BlockQ4_K, 256, encode_q4_K>;
  table.type(DType::kQ5_K).from_float = encode_row<BlockQ5_K, 256, encode_q5_K>;
  table.type(DType::kQ6_K).from_float = encode_row<BlockQ6_K, 256, encode_q6_K>;
}

}  // namespace weft::WEFT_TARGET
