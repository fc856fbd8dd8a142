// The blocks of quantized activations: q8_0, q8_1, q8_K.
//
// Written as the reference's x86 code quantizes: 127/max and half to even for q8_0 and q8_1; for
// q8_K the value of largest magnitude becomes -127. Source: quantize_row_q8_0 and quantize_row_q8_1
// of ggml's x86 backend, quantize_row_q8_K_ref in ggml-quants.c.
#include "kernels/simd/bytes.h"
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

void register_activation_types(KernelTable& table);

namespace {

struct Extremes {
  float low;
  float high;

  // +0 for zeros of either sign.
  float magnitude() const { return __builtin_fabsf(high > -low ? high : low); }
};

// Least and greatest of 8 * n values.
Extremes find_extremes(const float* x, int n) {
  auto low = load_as<f32x8>(x);
  f32x8 high = low;
  for (int i = 1; i < n; ++i) {
    const auto v = load_as<f32x8>(x + 8 * i);
    low = v < low ? v : low;
    high = v > high ? v : high;
  }
  Extremes e = {low[0], high[0]};
  for (int i = 1; i < 8; ++i) {
    e.low = low[i] < e.low ? low[i] : e.low;
    e.high = high[i] > e.high ? high[i] : e.high;
  }
  return e;
}

// round(x * factor), half to even, of 32 values that stay within a byte.
s8x32 round_codes(const float* x, float factor) {
  i32x8 v[4];
  for (int i = 0; i < 4; ++i) v[i] = round_to_ints(load_as<f32x8>(x + 8 * i) * factor);
  return narrow_ints(v);
}

bool is_finite(float x) { return __builtin_fabsf(x) <= 3.4028234e38f; }

// Whether 8 * n values are all numbers: a NaN never compares, so the extremes may hide it.
bool all_finite(const float* x, int n) {
  f32x8 sum = {};
  for (int i = 0; i < n; ++i) sum = sum + load_as<f32x8>(x + 8 * i) * 0.0f;
  return sum8(sum) == 0;
}

// Codes -127..127 of 32 values; returns the scale.
float encode_32(const float* x, int8_t* q) {
  const Extremes e = find_extremes(x, 4);
  float amax = e.magnitude();
  const bool numbers = all_finite(x, 4);
  if (!numbers) amax = max_magnitude(x, 32);
  const float id = amax != 0 ? 127.0f / amax : 0.0f;
  if (numbers && is_finite(id)) {
    const s8x32 codes = round_codes(x, id);
    std::memcpy(q, &codes, sizeof codes);
  } else {
    for (int j = 0; j < 32; ++j) {
      const int32_t code = truncate(__builtin_nearbyintf(x[j] * id));
      q[j] = static_cast<int8_t>(clamp(code, -128, 127));
    }
  }
  return amax / 127.0f;
}

void encode_q8_0(const float* x, BlockQ8_0& b) { b.d = float_to_half(encode_32(x, b.qs)); }

void encode_q8_1(const float* x, BlockQ8_1& b) {
  const float d = encode_32(x, b.qs);
  const i32x8 sums = dot_bytes(i32x8{}, splat8(1), load_as<s8x32>(b.qs));
  int32_t sum = 0;
  for (int j = 0; j < 8; ++j) sum += sums[j];
  b.d = float_to_half(d);
  b.s = float_to_half(d * static_cast<float>(sum));
}

void encode_q8_K(const float* x, BlockQ8_K& b) {
  const Extremes e = find_extremes(x, 32);
  const bool numbers = all_finite(x, 32);
  if (numbers && e.magnitude() == 0) {
    std::memset(&b, 0, sizeof b);
    return;
  }
  // of a value and its negative the first counts
  const bool is_tie = !numbers || e.high == -e.low;
  const float peak = is_tie ? find_peak(x, 256).value : e.high > -e.low ? e.high : e.low;
  const float inverse = -127.0f / peak;
  b.d = 1.0f / inverse;
  for (int i = 0; i < 256; i += 32) {
    if (numbers && is_finite(inverse)) {
      const s8x32 codes = round_codes(x + i, inverse);
      std::memcpy(b.qs + i, &codes, sizeof codes);
    } else {
      for (int j = i; j < i + 32; ++j) {
        const int32_t code = nearest_int(inverse * x[j]);
        b.qs[j] = narrow8(code < 127 ? code : 127);
      }
    }
    const i32x8 sums = dot_bytes(i32x8{}, splat8(1), load_as<s8x32>(b.qs + i));
    b.bsums[i / 16] = static_cast<int16_t>((sums[0] + sums[1]) + (sums[2] + sums[3]));
    b.bsums[i / 16 + 1] = static_cast<int16_t>((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
}

void decode_q8_1(const BlockQ8_1& b, float* y) {
  const float d = half_to_float(b.d);
  for (int j = 0; j < 32; ++j) y[j] = static_cast<float>(b.qs[j]) * d;
}

void decode_q8_K(const BlockQ8_K& b, float* y) {
  for (int j = 0; j < 256; ++j) y[j] = b.d * static_cast<float>(b.qs[j]);
}

}  // namespace

void register_activation_types(KernelTable& table) {
  table.type(DType::kQ8_0).from_float = encode_row<BlockQ8_0, 32, encode_q8_0>;
  set_codec(table, DType::kQ8_1,
            {.to_float = decode_row<BlockQ8_1, 32, decode_q8_1>,
             .from_float = encode_row<BlockQ8_1, 32, encode_q8_1>});
  set_codec(table, DType::kQ8_K,
            {.to_float = decode_row<BlockQ8_K, 256, decode_q8_K>,
             .from_float = encode_row<BlockQ8_K, 256, encode_q8_K>});
}

}  // namespace weft::WEFT_TARGET
