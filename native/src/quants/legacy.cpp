// Encoders of the blocks of 32 elements with one scale: q4_0, q4_1, q5_0, q5_1.
//
// Source: the quantizers of these types in ggml-quants.c.
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_legacy_types(KernelTable& table);

namespace {

// The 32 codes 0..2*kHalf-1 of the symmetric types: the value of largest magnitude has code 0,
// which means -kHalf. Returns the scale.
template <int kHalf>
float around_zero(const float* x, uint8_t* q) {
  const float d = find_peak(x, 32).value / static_cast<float>(-kHalf);
  const float id = reciprocal(d);
  for (int j = 0; j < 32; ++j) {
    const int8_t code = narrow8(truncate(x[j] * id + (static_cast<float>(kHalf) + 0.5f)));
    // As in the reference, the code is a byte before the minimum is taken.
    q[j] = low8(code < 2 * kHalf - 1 ? code : 2 * kHalf - 1);
  }
  return d;
}

struct Range {
  float d;
  float low;
};

// The codes of the types with an offset: (x - low) / d, rounded and not clamped.
template <int kTop>
Range from_min(const float* x, int32_t* q) {
  float low = x[0];
  float high = x[0];
  for (int j = 1; j < 32; ++j) {
    if (x[j] < low) low = x[j];
    if (x[j] > high) high = x[j];
  }
  const float d = (high - low) / static_cast<float>(kTop);
  const float id = reciprocal(d);
  for (int j = 0; j < 32; ++j) q[j] = truncate((x[j] - low) * id + 0.5f);
  return {d, low};
}

void pack_nibbles(const uint8_t* q, uint8_t* qs) {
  for (int j = 0; j < 16; ++j) qs[j] = low8((q[j] & 15) | (q[j + 16] & 15) << 4);
}

void pack_fifth_bits(const uint8_t* q, uint8_t* qh) {
  uint32_t bits = 0;
  for (int j = 0; j < 32; ++j) bits |= static_cast<uint32_t>(q[j] >> 4 & 1) << j;
  std::memcpy(qh, &bits, 4);
}

void encode_q4_0(const float* x, BlockQ4_0& b) {
  uint8_t q[32];
  b.d = float_to_half(around_zero<8>(x, q));
  pack_nibbles(q, b.qs);
}

void encode_q4_1(const float* x, BlockQ4_1& b) {
  int32_t q[32];
  uint8_t codes[32];
  const Range range = from_min<15>(x, q);
  b.d = float_to_half(range.d);
  b.m = float_to_half(range.low);
  for (int j = 0; j < 32; ++j) {
    const int8_t code = narrow8(q[j]);
    codes[j] = low8(code < 15 ? code : 15);
  }
  pack_nibbles(codes, b.qs);
}

void encode_q5_0(const float* x, BlockQ5_0& b) {
  uint8_t q[32];
  b.d = float_to_half(around_zero<16>(x, q));
  pack_nibbles(q, b.qs);
  pack_fifth_bits(q, b.qh);
}

void encode_q5_1(const float* x, BlockQ5_1& b) {
  int32_t q[32];
  uint8_t codes[32];
  const Range range = from_min<31>(x, q);
  b.d = float_to_half(range.d);
  b.m = float_to_half(range.low);
  for (int j = 0; j < 32; ++j) codes[j] = low8(q[j]);
  pack_nibbles(codes, b.qs);
  pack_fifth_bits(codes, b.qh);
}

}  // namespace

void register_legacy_types(KernelTable& table) {
  table.type(DType::kQ4_0).from_float = encode_row<BlockQ4_0, 32, encode_q4_0>;
  table.type(DType::kQ4_1).from_float = encode_row<BlockQ4_1, 32, encode_q4_1>;
  table.type(DType::kQ5_0).from_float = encode_row<BlockQ5_0, 32, encode_q5_0>;
  table.type(DType::kQ5_1).from_float = encode_row<BlockQ5_1, 32, encode_q5_1>;
}

}  // namespace weft::WEFT_TARGET
