// Encoders of one and two bits with one scale: q1_0 and q2_0.
//
// In q1_0 a set bit means +d, a clear one -d, and d is the mean magnitude. q2_0 has four codes per
// byte, from the low bits up, and d is the largest magnitude. Source: quantize_row_q1_0_ref and
// quantize_row_q2_0_ref in ggml-quants.c.
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_low_bit_types(KernelTable& table);

namespace {

void encode_q1_0(const float* x, BlockQ1_0& b) {
  float sum = 0;
  for (int i = 0; i < 128; ++i) sum += __builtin_fabsf(x[i]);
  b.d = float_to_half(sum / 128.0f);
  for (int j = 0; j < 16; ++j) {
    int bits = 0;
    for (int k = 0; k < 8; ++k) bits |= (x[8 * j + k] >= 0 ? 1 : 0) << k;
    b.qs[j] = low8(bits);
  }
}

void encode_q2_0(const float* x, BlockQ2_0& b) {
  const float d = max_magnitude(x, 64);
  const vf id = splat(reciprocal(d));
  b.d = float_to_half(d);
  int32_t codes[64];
  for (int i = 0; i < 64; i += kLanes) {
    const vf scaled = load(x + i) * id;
    // where the reciprocal is infinite the reference's conversion gives its lowest integer
    const vi code = scaled * scaled < 64.0f ? round_half_away(scaled) : vi{} - 1;
    const vi low = code < -1 ? vi{} - 1 : code;
    const vi stored = (low > 2 ? vi{} + 2 : low) + 1;
    std::memcpy(codes + i, &stored, sizeof stored);
  }
  for (int j = 0; j < 16; ++j) {
    const int32_t* q = codes + 4 * j;
    b.qs[j] = low8(q[0] | q[1] << 2 | q[2] << 4 | q[3] << 6);
  }
}

}  // namespace

void register_low_bit_types(KernelTable& table) {
  table.type(DType::kQ1_0).from_float = encode_row<BlockQ1_0, 128, encode_q1_0>;
  table.type(DType::kQ2_0).from_float = encode_row<BlockQ2_0, 64, encode_q2_0>;
}

}  // namespace weft::WEFT_TARGET
