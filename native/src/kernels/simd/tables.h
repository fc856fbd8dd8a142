// Tables of 32 sums of 16 bits, looked up for 32 indices at a time.
//
// The second half of a table has the negative sums of the first one.
#pragma once

#include "kernels/simd/bytes.h"

namespace weft::WEFT_TARGET {

inline constexpr int kTableWords = 32;
typedef int16_t Words __attribute__((vector_size(2 * kTableWords)));
typedef uint16_t Indices __attribute__((vector_size(2 * kTableWords)));

// The sums at these indices. Only the low five bits of an index count.
static inline Words find_sums(const char* table, Indices index) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Words>(
      _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(index), _mm512_loadu_si512(table)));
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
