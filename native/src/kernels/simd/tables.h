// Tables of 32 sums of 16 bits, looked up for 32 indices at a time.
//
// The second half of a table has the negative sums of the first one.
#pragma once

#include "kernels/simd/bytes.h"

namespace weft::WEFT_TARGET {

inline constexpr int kTableWords = 32;
typedef int16_t Words __attribute__((vector_size(2 * kTableWords)));
typedef uint16_t Indices __attribute__((vector_size(2 * kTableWords)));

// A table as find_sums reads it: AVX2 shuffles bytes, so that low bytes are apart from high ones,
// and needs no entries for the negative.
static inline void put_sums(Words sums, char* table) {
#if defined(__AVX2__) && !defined(__AVX512BW__)
  for (int i = 0; i < 16; ++i) {
    table[i] = static_cast<char>(sums[i]);
    table[16 + i] = static_cast<char>(sums[i] >> 8);
  }
#else
  std::memcpy(table, &sums, sizeof sums);
#endif
}

// The sums at these indices. Only the low five bits of an index count.
static inline Words find_sums(const char* table, Indices index) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Words>(
      _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(index), _mm512_loadu_si512(table)));
#elif defined(__AVX2__)
  const __m256i low = _mm256_broadcastsi128_si256(load_as<__m128i>(table));
  const __m256i high = _mm256_broadcastsi128_si256(load_as<__m128i>(table + 16));
  __m256i parts[2];
  std::memcpy(parts, &index, sizeof parts);
  for (__m256i& part : parts) {
    const __m256i entry = _mm256_and_si256(part, _mm256_set1_epi16(15));
    // a byte with its top bit set becomes 0
    const __m256i to_low = _mm256_or_si256(entry, _mm256_set1_epi16(-0x8000));
    const __m256i to_high = _mm256_or_si256(_mm256_slli_epi16(entry, 8), _mm256_set1_epi16(0x80));
    const __m256i sum =
        _mm256_or_si256(_mm256_shuffle_epi8(low, to_low), _mm256_shuffle_epi8(high, to_high));
    const __m256i negative = _mm256_srai_epi16(_mm256_slli_epi16(part, 11), 15);
    part = _mm256_sub_epi16(_mm256_xor_si256(sum, negative), negative);
  }
  Words found;
  std::memcpy(&found, parts, sizeof found);
  return found;
#elif defined(WEFT_NEON)
  const uint8x16x4_t all = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(table));
  uint16x8_t parts[4];
  std::memcpy(parts, &index, sizeof parts);
  for (uint16x8_t& part : parts) {
    // the places of both bytes of entry i: 2 i and 2 i + 1
    const uint16x8_t places =
        vmlaq_n_u16(vdupq_n_u16(0x0100), vandq_u16(part, vdupq_n_u16(31)), 0x0202);
    part = vreinterpretq_u16_u8(vqtbl4q_u8(all, vreinterpretq_u8_u16(places)));
  }
  Words found;
  std::memcpy(&found, parts, sizeof found);
  return found;
#else
  int16_t entries[kTableWords];
  std::memcpy(entries, table, sizeof entries);
  uint16_t at[kTableWords];
  std::memcpy(at, &index, sizeof at);
  int16_t found[kTableWords];
  for (int r = 0; r < kTableWords; ++r) found[r] = entries[at[r] & 31];
  return load_as<Words>(found);
#endif
}

// Sums v * kLanes and those after it as floats.
static inline vf sum_floats(const Words& sum, int v) {
#if defined(__AVX512BW__)
  const auto all = reinterpret_cast<__m512i>(sum);
  const __m256i half = v == 0 ? _mm512_castsi512_si256(all) : _mm512_extracti64x4_epi64(all, 1);
  return reinterpret_cast<vf>(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(half)));
#else
  typedef int16_t Part __attribute__((vector_size(2 * kLanes)));
  Part part;
  std::memcpy(&part, reinterpret_cast<const char*>(&sum) + v * 2 * kLanes, sizeof part);
  return __builtin_convertvector(part, vf);
#endif
}

}  // namespace weft::WEFT_TARGET
