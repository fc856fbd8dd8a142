// Encoders of four-bit floats (E2M1) with a shared scale: mxfp4 (E8M0) and nvfp4 (unsigned E4M3).
//
// Source: quantize_row_mxfp4_ref and quantize_row_nvfp4_ref in ggml-quants.c; the OCP Microscaling
// Formats specification.
#include "quants/fp4.h"

extern "C" double log2(double);

namespace weft::WEFT_TARGET {

void register_fp4_types(KernelTable& table);

namespace {

// The code nearest to x with the (halved) scale, the first of equals. Only codes with the sign of x
// can be nearest, so it compares magnitudes.
uint8_t nearest_code(float x, float scale) {
  const float magnitude = __builtin_fabsf(x);
  int best = 0;
  float best_error = __builtin_fabsf(0.0f * scale - magnitude);
  for (int code = 1; code < 8; ++code) {
    const float error = __builtin_fabsf(static_cast<float>(kE2M1Doubled[code]) * scale - magnitude);
    best = error < best_error ? code : best;
    best_error = error < best_error ? error : best_error;
  }
  return low8(x < 0 && best > 0 ? best | 8 : best);
}

void encode_mxfp4(const float* x, BlockMXFP4& b) {
  const float amax = max_magnitude(x, 32);
  b.e = 0;
  if (amax > 0 && __builtin_isfinite(amax)) {
    // As in the reference, log2 is rounded to float before its floor is taken, so a value just
    // below a power of two may count as that power; the exponent is narrowed to a byte.
    const auto exponent = static_cast<float>(log2(static_cast<double>(amax)));
    b.e = low8(static_cast<int32_t>(__builtin_floorf(exponent)) + 125);
  }
  const float scale = halved_e8m0(b.e);
  for (int j = 0; j < 16; ++j) {
    b.qs[j] = low8(nearest_code(x[j], scale) | nearest_code(x[j + 16], scale) << 4);
  }
}

// Converts a float to unsigned E4M3. Halves are rounded up, large numbers saturate at 0x7e, and
// zero, negative numbers and NaN give 0.
uint8_t ue4m3_byte(float x) {
  if (!(x > 0)) return 0;
  if (x > 448.0f) x = 448.0f;
  int32_t bits;
  std::memcpy(&bits, &x, 4);
  const int32_t exponent = (bits >> 23) - 120;
  if (exponent <= 0) {
    const int32_t mantissa = truncate(x * 512.0f + 0.5f);
    return low8(mantissa < 7 ? mantissa : 7);
  }
  // Exponent and mantissa are adjacent, so a carry out of the mantissa raises the exponent.
  const int32_t code = (exponent << 3 | (bits >> 20 & 7)) + (bits >> 19 & 1);
  return low8(code >= 15 << 3 ? 0x7e : code);
}

void encode_nvfp4(const float* x, BlockNVFP4& b) {
  for (int g = 0; g < 4; ++g, x += 16) {
    b.d[g] = ue4m3_byte(max_magnitude(x, 16) / 6.0f);
    const float scale = halved_ue4m3(b.d[g]);
    for (int j = 0; j < 8; ++j) {
      b.qs[8 * g + j] = low8(nearest_code(x[j], scale) | nearest_code(x[j + 8], scale) << 4);
    }
  }
}

}  // namespace

void register_fp4_types(KernelTable& table) {
  table.type(DType::kMXFP4).from_float = encode_row<BlockMXFP4, 32, encode_mxfp4>;
  table.type(DType::kNVFP4).from_float = encode_row<BlockNVFP4, 64, encode_nvfp4>;
}

}  // namespace weft::WEFT_TARGET
