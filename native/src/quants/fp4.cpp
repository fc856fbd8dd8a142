// Encoders of four-bit floats (E2M1) with a shared scale: mxfp4 (E8M0) and nvfp4 (unsigned E4M3).
//
// Source: quantize_row_mxfp4_ref and quantize_row_nvfp4_ref in ggml-quants.c; the OCP Microscaling
// Formats specification.
#include "quants/fp4.h"

extern "C" double log2(double);

namespace weft::WEFT_TARGET {

void register_fp4_types(KernelTable& table);

namespace {

// The codes nearest to n numbers (16 or 32) with the (halved) scale, the first of equals. Only
// codes with the sign of a number can be nearest to it, so it compares magnitudes.
template <int n>
void nearest_codes(const float* x, float scale, uint8_t* codes) {
  typedef uint8_t vb __attribute__((vector_size(kLanes)));
  for (int i = 0; i < n; i += kLanes) {
    const vf v = load(x + i);
    const vf m = magnitude(v);
    vi best = {};
    vf best_error = magnitude(splat(0.0f * scale) - m);
    for (int code = 1; code < 8; ++code) {
      const vf error = magnitude(splat(static_cast<float>(kE2M1Doubled[code]) * scale) - m);
      const vi better = error < best_error;
      best = better ? vi{} + code : best;
      best_error = better ? error : best_error;
    }
    best |= (v < vf{}) & (best > 0) & 8;
    const vb bytes = __builtin_convertvector(best, vb);
    std::memcpy(codes + i, &bytes, sizeof bytes);
  }
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
  uint8_t codes[32];
  nearest_codes<32>(x, scale, codes);
  for (int j = 0; j < 16; ++j) b.qs[j] = low8(codes[j] | codes[j + 16] << 4);
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
    uint8_t codes[16];
    nearest_codes<16>(x, scale, codes);
    for (int j = 0; j < 8; ++j) b.qs[8 * g + j] = low8(codes[j] | codes[j + 8] << 4);
  }
}

}  // namespace

void register_fp4_types(KernelTable& table) {
  table.type(DType::kMXFP4).from_float = encode_row<BlockMXFP4, 32, encode_mxfp4>;
  table.type(DType::kNVFP4).from_float = encode_row<BlockNVFP4, 64, encode_nvfp4>;
}

}  // namespace weft::WEFT_TARGET
