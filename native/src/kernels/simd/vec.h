// The vector layer: float vectors as wide as the target, written once.
//
// `vf` has kLanes floats (baseline and NEON 4, AVX2 8, AVX-512 16) and the arithmetic operators of
// the compiler's vector extension. This file adds what the extension lacks: loads, fused
// multiply-add, conversions from and to 16-bit floats, reductions. Only kernel files include it;
// everything is static inside the target's namespace, so that nothing leaks between targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/simd/isa.h"

namespace weft::WEFT_TARGET {

typedef float vf __attribute__((vector_size(kLanes * 4)));
typedef int32_t vi __attribute__((vector_size(kLanes * 4)));
typedef uint32_t vu __attribute__((vector_size(kLanes * 4)));

static inline vf load(const float* p) {
  vf v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline void store(float* p, vf v) { std::memcpy(p, &v, sizeof v); }
// x - 0 is x for every x (x + 0 is not, for -0), so that this compiles to one broadcast.
static inline vf splat(float x) { return x - vf{}; }

// a * b + c, fused where the target can.
static inline vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_fmadd_ps(
      reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
#elif defined(__FMA__)
  return reinterpret_cast<vf>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(WEFT_NEON)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// a > b ? a : b and a < b ? a : b, which x86 has as an instruction; compilers make two of it.
static inline vf vmax(vf a, vf b) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(
      _mm512_max_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(
      _mm256_max_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a > b ? a : b;
#endif
}
static inline vf vmin(vf a, vf b) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(
      _mm512_min_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(
      _mm256_min_ps(reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b)));
#else
  return a < b ? a : b;
#endif
}

// Keeps the compiler from loading a vector again for each of its uses.
static inline vf in_register(vf v) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(v));
#elif defined(__x86_64__)
  __asm__("" : "+x"(v));
#elif defined(WEFT_NEON)
  __asm__("" : "+w"(v));
#endif
  return v;
}

// Makes the compiler treat `v` as a new value, so that it neither hoists work out of a loop nor
// drops it.
template <class V>
static inline void opaque(V& v) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(v));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(v));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(v));
#else
  asm volatile("" : : "r"(&v) : "memory");
#endif
}

static inline float hsum(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
#elif defined(WEFT_NEON)
  return vaddvq_f32(v);
#else
  float s = 0;
  for (int i = 0; i < kLanes; ++i) s += v[i];
  return s;
#endif
}
static inline float hmin(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_min_ps(reinterpret_cast<__m512>(v));
#elif defined(__AVX2__)
  const auto all = reinterpret_cast<__m256>(v);
  __m128 m = _mm_min_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
  m = _mm_min_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_min_ss(m, _mm_shuffle_ps(m, m, 1)));
#elif defined(WEFT_NEON)
  return vminvq_f32(v);
#else
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] < m ? v[i] : m;
  return m;
#endif
}
static inline float hmax(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#else
  float m = v[0];
  for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
  return m;
#endif
}

// IEEE half to float by bit arithmetic: exact for every pattern, NaN stays NaN.
static inline float half_to_float(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#elif defined(WEFT_NEON)
  __fp16 half;
  std::memcpy(&half, &h, sizeof half);
  return half;
#else
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  uint32_t mantissa = h & 0x3ffu;
  uint32_t bits;
  if (exponent == 0x1f) {
    // A signalling NaN becomes quiet, as in hardware.
    bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u);
  } else if (exponent != 0) {
    bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
  } else if (mantissa == 0) {
    bits = sign;
  } else {
    uint32_t e = 113;
    while ((mantissa & 0x400u) == 0) {
      mantissa <<= 1;
      --e;
    }
    bits = sign | (e << 23) | ((mantissa & 0x3ffu) << 13);
  }
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
#endif
}

// Converts a float to an IEEE half, rounding to nearest even; an overflow becomes infinity.
static inline uint16_t float_to_half(float x) {
#if defined(__F16C__)
  return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(WEFT_NEON)
  const auto half = static_cast<__fp16>(x);
  uint16_t h;
  std::memcpy(&h, &half, sizeof h);
  return h;
#else
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  uint32_t out;
  if (magnitude > 0x7f800000u) {
    out = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {
    out = 0x7c00u;  // 65520 and above round to infinity
  } else if (magnitude >= 0x38800000u) {
    const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    out = (rounded - 0x38000000u) >> 13;
  } else if (magnitude < 0x33000000u) {
    out = 0;
  } else {
    const uint32_t shift = 126u - (magnitude >> 23);
    const uint32_t full = (magnitude & 0x7fffffu) | 0x800000u;
    out = full >> shift;
    const uint32_t rest = full & ((1u << shift) - 1u);
    const uint32_t halfway = 1u << (shift - 1);
    if (rest > halfway || (rest == halfway && (out & 1u))) ++out;
  }
  return static_cast<uint16_t>(sign | out);
#endif
}

static inline float bf16_to_float(uint16_t h) {
  const uint32_t bits = static_cast<uint32_t>(h) << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

// Converts a float to bfloat16, rounding to nearest even; a NaN becomes quiet.
static inline uint16_t float_to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 64u);
  return static_cast<uint16_t>((bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16);
}

// Loads kLanes halves as floats.
static inline vf load_half(const uint16_t* p) {
#if defined(__AVX512F__)
  __m256i h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<vf>(_mm512_cvtph_ps(h));
#elif defined(__AVX2__) && defined(__F16C__)
  __m128i h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<vf>(_mm256_cvtph_ps(h));
#elif defined(WEFT_NEON)
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
#else
  typedef uint16_t vs __attribute__((vector_size(kLanes * 2)));
  vs words;
  std::memcpy(&words, p, sizeof words);
  const vi h = __builtin_convertvector(words, vi);
  // Exponent and mantissa move into place; the product corrects the bias and normalizes subnormals.
  const vi magnitude = (h & 0x7fff) << 13;
  const vi finite = reinterpret_cast<vi>(reinterpret_cast<vf>(magnitude) * 0x1p112f);
  const vi quiet = magnitude > 0x0f800000 ? vi{} + 0x400000 : vi{};
  const vi bits = magnitude < 0x0f800000 ? finite : magnitude | 0x7f800000 | quiet;
  return reinterpret_cast<vf>(bits | (h & 0x8000) << 16);
#endif
}

// Loads kLanes bfloat16 values as floats.
static inline vf load_bf16(const uint16_t* p) {
#if defined(__AVX512F__)
  __m256i h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<vf>(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16)));
#elif defined(__AVX2__)
  __m128i h;
  std::memcpy(&h, p, sizeof h);
  return reinterpret_cast<vf>(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16)));
#elif defined(WEFT_NEON)
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
#else
  vf v;
  for (int i = 0; i < kLanes; ++i) v[i] = bf16_to_float(p[i]);
  return v;
#endif
}

// Stores kLanes floats as halves, rounding to nearest even.
static inline void store_half(uint16_t* p, vf v) {
#if defined(__AVX512F__)
  const __m256i h = _mm512_cvtps_ph(reinterpret_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &h, sizeof h);
#elif defined(__AVX2__) && defined(__F16C__)
  const __m128i h = _mm256_cvtps_ph(reinterpret_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(p, &h, sizeof h);
#elif defined(WEFT_NEON)
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(v[i]);
#endif
}

// Stores kLanes floats as bfloat16, rounding to nearest even; a NaN becomes quiet.
static inline void store_bf16(uint16_t* p, vf x) {
  typedef uint16_t vs __attribute__((vector_size(kLanes * 2)));
  const vu bits = reinterpret_cast<vu>(x);
  const vu rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const vi out = x != x ? reinterpret_cast<vi>(x) | 0x400000 : reinterpret_cast<vi>(rounded);
  const vs words = __builtin_convertvector(reinterpret_cast<vu>(out) >> 16, vs);
  std::memcpy(p, &words, sizeof words);
}

}  // namespace weft::WEFT_TARGET
