// Encoders of ternary weights: tq1_0 and tq2_0.
//
// A byte of tq1_0 is a base-3 number of five codes, the first element most significant, scaled by
// 256/243 and rounded up. Its digit k is the integer part of 3 * ((byte * 3^k) mod 256) / 256. The
// elements of a byte are 32 apart in bytes 0-31, 16 apart in bytes 32-47 and 4 apart in qh. Source:
// quantize_row_tq1_0_ref and quantize_row_tq2_0_ref in ggml-quants.c.
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_ternary_types(KernelTable& table);

namespace {

// Bytes of a block (of qs and then qh) with the same distance between the elements of a byte.
struct Run {
  int first;   // the first byte
  int size;    // bytes, and the distance in elements
  int digits;  // codes per byte
};
constexpr Run kRuns[3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};

// The codes round(x / d) + 1 of a block; returns the scale d, the largest magnitude.
float ternary_codes(const float* x, int32_t* codes) {
  const float d = max_magnitude(x, 256);
  const vf id = splat(reciprocal(d));
  for (int i = 0; i < 256; i += kLanes) {
    const vf scaled = load(x + i) * id;
    // Infinities and NaN count as zero.
    const vi finite = magnitude(scaled) < splat(__builtin_inff());
    const vi code = (finite & round_half_away(scaled)) + 1;
    std::memcpy(codes + i, &code, sizeof code);
  }
  return d;
}

void encode_tq1_0(const float* x, BlockTQ1_0& b) {
  int32_t codes[256];
  b.d = float_to_half(ternary_codes(x, codes));
  uint8_t* bytes = b.qs;
  const int32_t* q = codes;
  for (const Run& run : kRuns) {
    for (int j = 0; j < run.size; ++j) {
      uint32_t number = 0;
      for (int k = 0; k < 5; ++k) {
        number *= 3;
        if (k < run.digits) number += static_cast<uint32_t>(q[run.size * k + j]);
      }
      bytes[run.first + j] = static_cast<uint8_t>(((number & 255u) * 256u + 242u) / 243u);
    }
    q += run.size * run.digits;
  }
}

void encode_tq2_0(const float* x, BlockTQ2_0& b) {
  int32_t codes[256];
  b.d = float_to_half(ternary_codes(x, codes));
  for (int half = 0; half < 2; ++half) {
    const int32_t* q = codes + 128 * half;
    for (int j = 0; j < 32; ++j) {
      b.qs[32 * half + j] =
          low8((q[j] & 3) | (q[j + 32] & 3) << 2 | (q[j + 64] & 3) << 4 | (q[j + 96] & 3) << 6);
    }
  }
}

}  // namespace

void register_ternary_types(KernelTable& table) {
  table.type(DType::kTQ1_0).from_float = encode_row<BlockTQ1_0, 256, encode_tq1_0>;
  table.type(DType::kTQ2_0).from_float = encode_row<BlockTQ2_0, 256, encode_tq2_0>;
}

}  // namespace weft::WEFT_TARGET
