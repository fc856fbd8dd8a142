// Helpers for the converters of all formats.
//
// The converters give the same bytes as the reference, which depend on the order of its float
// operations: there is no fused multiply-add, sums are in index order, and casts are those of x86.
#pragma once

#include "kernels/kernel.h"
#include "kernels/simd/vec.h"
#include "quants/blocks.h"

namespace weft::WEFT_TARGET {

// A group whose largest magnitude is below this counts as zero.
inline constexpr float kTinyGroup = 1e-15f;

// Rounds to the nearest integer, halves to even, in the way of ggml: NaN gives 0, infinities -2^22.
static inline int32_t nearest_int(float x) {
  const float shifted = x + 12582912.0f;  // 1.5 * 2^23 leaves the integer in the mantissa
  int32_t bits;
  std::memcpy(&bits, &shifted, 4);
  return (bits & 0x007fffff) - 0x00400000;
}

// C's (int) x where it is defined, and -2^31 elsewhere, as on x86.
static inline int32_t truncate(float x) {
  return x < 2147483648.0f && x >= -2147483648.0f ? static_cast<int32_t>(x) : INT32_MIN;
}

// Rounds to the nearest integer, halves away from zero.
static inline float round_half_away(float x) {
  const float whole = __builtin_truncf(x);
  const float up = whole + (x < 0 ? -1.0f : 1.0f);
  return __builtin_fabsf(x - whole) >= 0.5f ? up : whole;
}

static inline int8_t narrow8(int32_t x) { return static_cast<int8_t>(static_cast<uint8_t>(x)); }
static inline uint8_t low8(int32_t x) { return static_cast<uint8_t>(x); }

static inline int32_t clamp(int32_t x, int32_t low, int32_t high) {
  return x < low ? low : x > high ? high : x;
}

static inline float reciprocal(float d) { return d != 0 ? 1.0f / d : 0.0f; }

static inline uint32_t read32(const uint8_t* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

struct Peak {
  float magnitude;  // the largest magnitude
  float value;      // the first value of that magnitude; 0 when all are zero or NaN
};

static inline Peak find_peak(const float* x, int n) {
  Peak peak = {0, 0};
  for (int i = 0; i < n; ++i) {
    const float m = __builtin_fabsf(x[i]);
    if (m > peak.magnitude) peak = {m, x[i]};
  }
  return peak;
}

static inline vf magnitude(vf x) {
  return reinterpret_cast<vf>(reinterpret_cast<vi>(x) & 0x7fffffff);
}

// The largest magnitude of a multiple of 16 numbers; a NaN is never larger.
static inline float max_magnitude(const float* x, int n) {
  vf m = {};
  for (int i = 0; i < n; i += kLanes) {
    const vf a = magnitude(load(x + i));
    m = a > m ? a : m;
  }
  return hmax(m);
}

// Rounds to the nearest integer, halves away from zero; -2^31 where that has no int32.
static inline vi round_half_away(vf x) {
  const vi whole = __builtin_convertvector(x, vi);
  const vi far = magnitude(x - __builtin_convertvector(whole, vf)) >= splat(0.5f);
  return whole + (far & (x < vf{} ? vi{} - 1 : vi{} + 1));
}

// Sets the row converters of a type. The rest of its entry stays, so that families may register in
// any order.
static inline void set_codec(KernelTable& table, DType type, const TypeOps& ops) {
  table.type(type).to_float = ops.to_float;
  table.type(type).from_float = ops.from_float;
}

// Row converters made from the converters of one block of kBlock elements.
template <typename Block, int kBlock, void (*decode)(const Block&, float*)>
void decode_row(const void* src, float* dst, int64_t n) {
  const auto* block = static_cast<const Block*>(src);
  for (int64_t i = 0; i < n; i += kBlock) decode(*block++, dst + i);
}

template <typename Block, int kBlock, void (*encode)(const float*, Block&)>
void encode_row(const float* src, void* dst, int64_t n) {
  auto* block = static_cast<Block*>(dst);
  for (int64_t i = 0; i < n; i += kBlock) encode(src + i, *block++);
}

}  // namespace weft::WEFT_TARGET
