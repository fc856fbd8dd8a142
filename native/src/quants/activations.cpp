// Encoders of the blocks of quantized activations: q8_0, q8_1, q8_K; decoders of the last two.
//
// They give the bytes of the reference's x86 code: q8_0 and q8_1 multiply by 127 / max and round
// halves to even; in q8_K the value of largest magnitude becomes -127. Source: quantize_row_q8_0
// and quantize_row_q8_1 of ggml's x86 backend, quantize_row_q8_K_ref in ggml-quants.c.
#include "kernels/simd/bytes.h"
#include "quants/codec.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

void register_activation_types(KernelTable& table);

namespace {

// The largest magnitudes of positive and of negative numbers, as the bits of floats. As integers,
// the bits have the order of the floats, with infinities and then NaNs above all numbers.
struct Extremes {
  uint32_t above;  // 0 when no number is positive
  uint32_t below;  // 0 when no number is negative

  uint32_t bits() const { return above > below ? above : below; }
  float magnitude() const { return to_float(bits()); }
  bool all_finite() const { return bits() < 0x7f800000; }

  static float to_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
};

// The largest magnitude of 8 * n values, as the bits of a float.
uint32_t max_bits(const float* x, int n) {
  i32x8 most = {};
  for (int i = 0; i < n; ++i) most = larger(most, load_as<i32x8>(x + 8 * i) & 0x7fffffff);
  return static_cast<uint32_t>(largest_lane(most));
}

// The bits of negative floats are below those of the others as signed integers, and above them as
// unsigned integers.
Extremes find_extremes(const float* x, int n) {
  i32x8 above = {};
  u32x8 below = {};
  for (int i = 0; i < n; ++i) {
    above = larger(above, load_as<i32x8>(x + 8 * i));
    below = larger(below, load_as<u32x8>(x + 8 * i));
  }
  const uint32_t lowest = largest_lane(below);
  return {static_cast<uint32_t>(largest_lane(above)),
          lowest >= 0x80000000 ? lowest & 0x7fffffff : 0};
}

// round(x * factor), halves to even, for 32 values whose results fit a byte.
s8x32 round_codes(const float* x, float factor) {
  i32x8 v[4];
  for (int i = 0; i < 4; ++i) v[i] = round_to_ints(load_as<f32x8>(x + 8 * i) * factor);
  return narrow_ints(v);
}

bool is_finite(float x) { return __builtin_fabsf(x) <= 3.4028234e38f; }

// Encodes 32 values as codes -127..127 and returns their scale.
float encode_32(const float* x, int8_t* q) {
  const uint32_t most = max_bits(x, 4);
  const bool all_finite = most < 0x7f800000;
  const float amax = all_finite ? Extremes::to_float(most) : max_magnitude(x, 32);
  const float id = amax != 0 ? 127.0f / amax : 0.0f;
  if (all_finite && is_finite(id)) {
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
  if (e.bits() == 0) {
    std::memset(&b, 0, sizeof b);
    return;
  }
  // Where a value and its negative are the largest, the first one counts.
  const bool is_tie = !e.all_finite() || e.above == e.below;
  const float peak = is_tie              ? find_peak(x, 256).value
                     : e.above > e.below ? e.magnitude()
                                         : -e.magnitude();
  const float inverse = -127.0f / peak;
  b.d = 1.0f / inverse;
  for (int i = 0; i < 256; i += 32) {
    if (e.all_finite() && is_finite(inverse)) {
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

QuantKernels& quant_kernels(DType type) {
  static QuantKernels all[kDTypeCount];
  return all[static_cast<size_t>(type)];
}

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
