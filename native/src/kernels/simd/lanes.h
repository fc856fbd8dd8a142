// Words on the lanes of vectors: conversions, comparisons as bits, and values looked up by lane.
#pragma once

#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

static inline vf int_floats(vi x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x)));
#else
  return __builtin_convertvector(x, vf);
#endif
}

// Widens kLanes signed bytes to integers. The compiler's own conversion does it byte by byte.
static inline vi widen(const void* p) {
#if defined(__AVX512F__)
  __m128i bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return reinterpret_cast<vi>(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
  __m128i bytes = _mm_setzero_si128();
  std::memcpy(&bytes, p, kLanes);
  return reinterpret_cast<vi>(_mm256_cvtepi8_epi32(bytes));
#elif defined(WEFT_NEON)
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
#else
  vi out;
  for (int i = 0; i < kLanes; ++i) out[i] = static_cast<const int8_t*>(p)[i];
  return out;
#endif
}

// ---- comparisons

// A bit for each lane of a mask, which is -1 where it holds and else 0.
static inline uint32_t lane_bits(vi mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#elif defined(WEFT_NEON)
  return vaddvq_u32(vandq_u32(vreinterpretq_u32_s32(mask), uint32x4_t{1, 2, 4, 8}));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(mask[i] & 1) << i;
  return bits;
#endif
}
static inline bool any(vi mask) { return lane_bits(mask) != 0; }

// A bit for each lane that is not `value`, which a NaN is not either.
static inline uint64_t unlike_bits(vf v, float value) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(reinterpret_cast<__m512>(v), _mm512_set1_ps(value), _CMP_NEQ_UQ);
#elif defined(__AVX2__)
  return static_cast<uint64_t>(_mm256_movemask_ps(
      _mm256_cmp_ps(reinterpret_cast<__m256>(v), _mm256_set1_ps(value), _CMP_NEQ_UQ)));
#elif defined(WEFT_NEON)
  const uint32x4_t alike = vceqq_f32(v, vdupq_n_f32(value));
  return vaddvq_u32(vbicq_u32(uint32x4_t{1, 2, 4, 8}, alike));
#else
  uint64_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint64_t{v[i] != value} << i;
  return bits;
#endif
}

// ---- tables

// table[index] for a table of 16.
static inline vf lookup16(const float* table, vi index) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(
      _mm512_permutexvar_ps(reinterpret_cast<__m512i>(index), _mm512_loadu_ps(table)));
#elif defined(__AVX2__)
  const auto at = reinterpret_cast<__m256i>(index);
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), at);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), at);
  return reinterpret_cast<vf>(
      _mm256_blendv_ps(low, high, reinterpret_cast<__m256>(_mm256_slli_epi32(at, 28))));
#elif defined(WEFT_NEON)
  const uint8x16x4_t all = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(table));
  const uint8x16_t places = vreinterpretq_u8_s32(index * 0x04040404 + 0x03020100);
  return vreinterpretq_f32_u8(vqtbl4q_u8(all, places));
#else
  vf out;
  for (int i = 0; i < kLanes; ++i) out[i] = table[index[i]];
  return out;
#endif
}

// Lane index % kLanes of the table.
static inline vf permute(vf table, vi index) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(
      _mm512_permutexvar_ps(reinterpret_cast<__m512i>(index), reinterpret_cast<__m512>(table)));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(
      _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(table), reinterpret_cast<__m256i>(index)));
#else
  vf out;
  for (int i = 0; i < kLanes; ++i) out[i] = table[index[i] & (kLanes - 1)];
  return out;
#endif
}

// table[index] for a table of any size.
static inline vi gather(const int32_t* table, vi index) {
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_i32gather_epi32(reinterpret_cast<__m512i>(index), table, 4));
#elif defined(__AVX2__)
  return reinterpret_cast<vi>(_mm256_i32gather_epi32(table, reinterpret_cast<__m256i>(index), 4));
#else
  vi out;
  for (int i = 0; i < kLanes; ++i) out[i] = table[index[i]];
  return out;
#endif
}

// table[index] for a table of 32.
static inline vi lookup32(const uint32_t* table, vi index) {
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_permutex2var_epi32(
      _mm512_loadu_si512(table), reinterpret_cast<__m512i>(index), _mm512_loadu_si512(table + 16)));
#elif defined(__AVX2__)
  return gather(reinterpret_cast<const int32_t*>(table), index);
#elif defined(WEFT_NEON)
  const auto* bytes = reinterpret_cast<const uint8_t*>(table);
  const uint8x16x4_t low = vld1q_u8_x4(bytes), high = vld1q_u8_x4(bytes + 64);
  const uint8x16_t places = vreinterpretq_u8_s32(index * 0x04040404 + 0x03020100);
  const uint8x16_t first = vqtbl4q_u8(low, places);  // 0 beyond its 64 bytes
  const uint8x16_t there = vsubq_u8(places, vdupq_n_u8(64));
  return vreinterpretq_s32_u8(vqtbx4q_u8(first, high, there));
#else
  vi out = {};
  for (int i = 0; i < kLanes; ++i) out[i] = static_cast<int32_t>(table[index[i]]);
  return out;
#endif
}

// ---- pairs of 16-bit floats

struct Halves {
  vf even, odd;
};

// The two f16 numbers of each lane: those in the lower halves, and those in the upper ones.
static inline Halves split_halves(vf words) {
#if defined(__AVX512F__)
  // the lower halves of all words, then the upper ones
  alignas(64) static constexpr int16_t kOrder[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                     22, 24, 26, 28, 30, 1,  3,  5,  7,  9,  11,
                                                     13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const __m512i all =
      _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), reinterpret_cast<__m512i>(words));
  return {reinterpret_cast<vf>(_mm512_cvtph_ps(_mm512_castsi512_si256(all))),
          reinterpret_cast<vf>(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(all, 1)))};
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i all =
      _mm256_permute4x64_epi64(_mm256_shuffle_epi8(reinterpret_cast<__m256i>(words), order), 0xd8);
  return {reinterpret_cast<vf>(_mm256_cvtph_ps(_mm256_castsi256_si128(all))),
          reinterpret_cast<vf>(_mm256_cvtph_ps(_mm256_extracti128_si256(all, 1)))};
#else
  const auto bits = reinterpret_cast<vu>(words);
#if defined(WEFT_NEON)
  return {vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(bits))),
          vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(bits, 16)))};
#else
  Halves halves = {};
  for (int i = 0; i < kLanes; ++i) {
    halves.even[i] = half_to_float(static_cast<uint16_t>(bits[i]));
    halves.odd[i] = half_to_float(static_cast<uint16_t>(bits[i] >> 16));
  }
  return halves;
#endif
#endif
}

}  // namespace weft::WEFT_TARGET
