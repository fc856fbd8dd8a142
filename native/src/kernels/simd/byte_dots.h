// Words on the products of bytes: four of each lane, whose sum is added to the lane.
//
// x86 multiplies unsigned bytes with signed ones, NEON signed ones, which codes of up to seven bits
// are as well. With VNNI, and with dot products on ARM, it is one instruction. AVX2 multiplies
// bytes to pairs of products and keeps those in 16 bits.
#pragma once

#include "kernels/simd/lane_bytes.h"

namespace weft::WEFT_TARGET {

// The products of pairs of 16-bit numbers, added up.
static inline vi dot_pairs(vi a, vi b) {
#if defined(__AVX512BW__)
  return reinterpret_cast<vi>(
      _mm512_madd_epi16(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<vi>(
      _mm256_madd_epi16(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<vi>(
      _mm_madd_epi16(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

#if defined(WEFT_PANELS)

// ---- what is in registers

// The compiler would reorder the sums of a tile until most of them are in memory (x86), or copy
// them from register to register (ARM).
static inline vi keep(vi v) {
#if defined(WEFT_NEON)
  __asm__("" : "+w"(v));
#elif !defined(__AVX512F__)
  __asm__("" : "+x"(v));
#endif
  return v;
}

// Two vectors that lie side by side, which ARM loads at once.
template <typename V>
static inline void keep_both([[maybe_unused]] V& a, [[maybe_unused]] V& b) {
#if defined(WEFT_NEON)
  __asm__("" : "+w"(a), "+w"(b));
#endif
}

// Zeros in a register of their own.
static inline vi zeros() {
#if defined(WEFT_NEON)
  vi v;
  __asm__ volatile("movi %0.4s, #0" : "=w"(v));
  return v;
#else
  return vi{};
#endif
}

// Memory at `p` is read after this; the compiler would read it earlier, or copy it.
template <typename T>
static inline T* anew(T* p) {
  __asm__ volatile("" : "+r"(p));
  return p;
}

struct FourVectors {
  vi at[4];
};
static inline FourVectors load_four(const void* p) {
#if defined(WEFT_NEON)
  const int32x4x4_t four = vld1q_s32_x4(static_cast<const int32_t*>(p));
  return {{four.val[0], four.val[1], four.val[2], four.val[3]}};
#else
  return load_as<FourVectors>(p);
#endif
}

// ---- products

// acc + the products of unsigned and signed bytes: four of them in each lane or, with kPairedDots,
// two in each 16 bits.
static inline vi add_bytes(vi acc, vi w, vi x) {
#if defined(__AVX512VNNI__)
  return reinterpret_cast<vi>(dot_step(reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(w),
                                       reinterpret_cast<__m512i>(x)));
#elif defined(__AVXVNNI__)
  return reinterpret_cast<vi>(dot_step(reinterpret_cast<__m256i>(acc), reinterpret_cast<__m256i>(w),
                                       reinterpret_cast<__m256i>(x)));
#elif defined(WEFT_NEON)
  return dot_signed(acc, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
#else
  const __m256i pairs =
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(w), reinterpret_cast<__m256i>(x));
  return reinterpret_cast<vi>(_mm256_add_epi16(reinterpret_cast<__m256i>(acc), pairs));
#endif
}

// The sums of add_bytes as 32-bit numbers.
static inline vi widen_pairs(vi sums) {
  return kPairedDots ? dot_pairs(sums, vi{} + 0x00010001) : sums;
}

// acc + the products, four in each lane. Both may be signed on NEON.
static inline vi dot_words(vi acc, vi w, vi x) {
  return kPairedDots ? acc + widen_pairs(add_bytes(vi{}, w, x)) : add_bytes(acc, w, x);
}

// The same of signed bytes with signed ones on targets with kPairedDots.
static inline vi dot_signed_words(vi acc, vi w, vi x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto a = reinterpret_cast<__m256i>(w), b = reinterpret_cast<__m256i>(x);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a));
  return acc + widen_pairs(reinterpret_cast<vi>(pairs));
#else
  return dot_words(acc, w, x);
#endif
}

// dot_words with lane `i` of x, a constant.
static inline vi dot_lane(vi acc, vi w, vi x, int i) {
#if defined(__ARM_FEATURE_DOTPROD) && defined(WEFT_NEON)
  const auto bytes = [](vi v) { return vreinterpretq_s8_s32(v); };
  switch (i) {
    case 0:
      return vdotq_laneq_s32(acc, bytes(w), bytes(x), 0);
    case 1:
      return vdotq_laneq_s32(acc, bytes(w), bytes(x), 1);
    case 2:
      return vdotq_laneq_s32(acc, bytes(w), bytes(x), 2);
    default:
      return vdotq_laneq_s32(acc, bytes(w), bytes(x), 3);
  }
#else
  return dot_words(acc, w, vi{} + x[i]);
#endif
}

// acc + the product of matrices of signed bytes, two rows of eight by two columns of eight, in each
// four lanes: first the sums of row 0.
static inline vi dot_matrices(vi acc, vi rows, vi columns) {
#if defined(WEFT_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
  return vmmlaq_s32(acc, vreinterpretq_s8_s32(rows), vreinterpretq_s8_s32(columns));
#else
  const auto* w = reinterpret_cast<const int8_t*>(&rows);
  const auto* x = reinterpret_cast<const int8_t*>(&columns);
  for (int i = 0; i < 8 * kLanes; ++i) {
    const int quad = i / 32, row = i / 16 % 2, column = i / 8 % 2, at = i % 8;
    acc[i / 8] += w[16 * quad + 8 * row + at] * x[16 * quad + 8 * column + at];
  }
  return acc;
#endif
}

#endif  // WEFT_PANELS

// The step that adds the largest number of products of bytes to sums, for measuring it. SSE2 has
// none: kernels widen bytes to 16 bits and multiply those.
struct PeakDot {
#if defined(WEFT_PANELS)
  static constexpr int kProducts = kMatrixDots ? 8 * kLanes : 4 * kLanes;
  static vi step(vi sum, vi a, vi b) {
    return kMatrixDots ? dot_matrices(sum, a, b) : add_bytes(sum, a, b);
  }
#else
  static constexpr int kProducts = 2 * kLanes;
  static vi step(vi sum, vi a, vi b) { return sum + dot_pairs(a, b); }
#endif
#if defined(WEFT_VNNI) || defined(__ARM_FEATURE_DOTPROD)
  static constexpr bool kFused = true;  // in one instruction
#else
  static constexpr bool kFused = false;
#endif
};

}  // namespace weft::WEFT_TARGET
