// Encoders of ternary weights: tq1_0 and tq2_0.
//
// A trit byte of tq1_0 is the five-digit base-3 number of its codes, first element most
// significant, scaled by 256/243 and rounded up; digit k is the integer part of
// 3 * ((byte * 3^k) mod 256) / 256. Elements of one byte lie 32 apart (bytes 0-31), 16 apart (bytes
// 32-47) and 4 apart (qh). Source: quantize_row_tq1_0_ref and quantize_row_tq2_0_ref in
// ggml-quants.c.
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_ternary_types(KernelTable& table);

namespace {

struct Run {
  int first;  // byte of the block, qh behind qs
  int size;
  int digits;
};
constexpr Run kRuns[3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
// Codes round(x/d) + 1 of a block; returns the scale, its largest magnitude.
float ternary_codes(const float* x, int32_t* codes) {
  const float d = max_magnitude(x, 256);
  const float id = reciprocal(d);
  for (int i = 0; i < 256; ++i) {
    const float scaled = round_half_away(x[i] * id);
    // infinities and NaN count as zero
    codes[i] = (__builtin_isfinite(scaled) ? truncate(scaled) : 0) + 1;
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
