// Two chunks of a row at once, in 64-byte vectors, for the formats whose activations are blocks of
// 32 elements (AVX-512 with VNNI only). `pair` gives chunks 2p and 2p+1 of a row: their codes, and
// in the sixteen lanes the scale (and minimum) of the elements that a lane of a dot product holds.
#pragma once

#include "quants/formats.h"

#if defined(__AVX512VNNI__)

namespace weft::WEFT_TARGET {

struct Pair {
  __m512i codes;
  __m512 scales;
  __m512 mins = {};
};

// a in lanes 0-7, b in lanes 8-15.
static inline __m512 two_eights(float a, float b) {
  return _mm512_insertf32x8(_mm512_set1_ps(a), _mm256_set1_ps(b), 1);
}

// The same for two halves in memory.
static inline __m512 two_halves_eights(const void* a, const void* b) {
  const __m128i both = _mm_insert_epi16(_mm_loadu_si16(a), load_as<int16_t>(b), 1);
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_cvtph_ps(both)));
}

static inline __m512i two_vectors(u8x32 a, u8x32 b) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(reinterpret_cast<__m256i>(a)),
                            reinterpret_cast<__m256i>(b), 1);
}

// Two blocks of 32 four-bit codes are loaded as one vector of 16-bit words, from which a
// permutation takes the codes and others the scales.
template <int kWords, int kFirstCode>
struct WordOrder {
  uint16_t codes[32];
  uint16_t fields[2][16];  // words 0 and 1 of each block

  constexpr WordOrder() : codes(), fields() {
    for (int i = 0; i < 32; ++i) {
      codes[i] = static_cast<uint16_t>(i / 16 * kWords + kFirstCode + i % 8);
    }
    for (int i = 0; i < 16; ++i) {
      fields[0][i] = static_cast<uint16_t>(i / 8 * kWords);
      fields[1][i] = static_cast<uint16_t>(i / 8 * kWords + 1);
    }
  }
};

// Blocks of 32 elements whose last 16 bytes are four-bit codes, behind a half d (and a half m).
template <typename F>
static inline Pair word_pair(const typename F::Block* row, int64_t p) {
  constexpr int kWords = sizeof(typename F::Block) / 2;
  static constexpr WordOrder<kWords, kWords - 8> kOrder;
  constexpr auto kMask = static_cast<__mmask32>((1ull << 2 * kWords) - 1);
  const __m512i raw = _mm512_maskz_loadu_epi16(kMask, row + 2 * p);
  const __m512i twice_each = _mm512_permutexvar_epi16(load_as<__m512i>(kOrder.codes), raw);
  const __m512i shifts = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
  Pair pair = {};
  pair.codes = _mm512_and_si512(_mm512_srlv_epi64(twice_each, shifts), _mm512_set1_epi8(15));
  const auto field = [&](int i) {
    const __m512i order = _mm512_castsi256_si512(load_as<__m256i>(kOrder.fields[i]));
    return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(order, raw)));
  };
  pair.scales = field(0);
  if constexpr (F::kHasMin) pair.mins = field(1);
  return pair;
}

// The fifth bits of both blocks, as 16.
static inline __m512i fifth_bits(const uint8_t* first, const uint8_t* second) {
  const uint64_t bits = read32(first) | uint64_t{read32(second)} << 32;
  return _mm512_maskz_set1_epi8(bits, 16);
}

template <typename F>
static inline Pair load_pair(const typename F::Block* row, int64_t p);

template <>
inline Pair load_pair<FormatQ4_0>(const BlockQ4_0* row, int64_t p) {
  return word_pair<FormatQ4_0>(row, p);
}

template <>
inline Pair load_pair<FormatQ4_1>(const BlockQ4_1* row, int64_t p) {
  return word_pair<FormatQ4_1>(row, p);
}

template <>
inline Pair load_pair<FormatQ5_0>(const BlockQ5_0* row, int64_t p) {
  Pair pair = word_pair<FormatQ5_0>(row, p);
  pair.codes = _mm512_or_si512(pair.codes, fifth_bits(row[2 * p].qh, row[2 * p + 1].qh));
  return pair;
}

template <>
inline Pair load_pair<FormatQ5_1>(const BlockQ5_1* row, int64_t p) {
  Pair pair = word_pair<FormatQ5_1>(row, p);
  pair.codes = _mm512_or_si512(pair.codes, fifth_bits(row[2 * p].qh, row[2 * p + 1].qh));
  return pair;
}

template <>
inline Pair load_pair<FormatIQ4_NL>(const BlockIQ4_NL* row, int64_t p) {
  Pair pair = word_pair<FormatIQ4_NL>(row, p);
  const __m512i table = _mm512_broadcast_i32x4(load_as<__m128i>(kIQ4Codes));
  pair.codes = _mm512_shuffle_epi8(table, pair.codes);
  return pair;
}

template <>
inline Pair load_pair<FormatQ8_0>(const BlockQ8_0* row, int64_t p) {
  const BlockQ8_0* b = row + 2 * p;
  const __m512i values = two_vectors(load_as<u8x32>(b[0].qs), load_as<u8x32>(b[1].qs));
  return {_mm512_xor_si512(values, _mm512_set1_epi8(-128)), two_halves_eights(b, b + 1)};
}

template <>
inline Pair load_pair<FormatMXFP4>(const BlockMXFP4* row, int64_t p) {
  const BlockMXFP4* b = row + 2 * p;
  const __m512i table = _mm512_broadcast_i32x4(load_as<__m128i>(kE2M1Codes));
  return {_mm512_shuffle_epi8(table, two_vectors(nibbles(b[0].qs), nibbles(b[1].qs))),
          two_eights(halved_e8m0(b[0].e), halved_e8m0(b[1].e))};
}

template <>
inline Pair load_pair<FormatNVFP4>(const BlockNVFP4* row, int64_t p) {
  const __m512i table = _mm512_broadcast_i32x4(load_as<__m128i>(kE2M1Codes));
  // quarters of 16 elements: low halves of two groups, then their high halves
  const __m512i v = two_vectors(nibbles(row[p].qs), nibbles(row[p].qs + 16));
  const __m512i in_order = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 1, 3, 4, 6, 5, 7), v);
  float d[4];
  for (int g = 0; g < 4; ++g) d[g] = halved_ue4m3(row[p].d[g]);
  const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return {_mm512_shuffle_epi8(table, in_order),
          _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_loadu_ps(d)))};
}

template <>
inline Pair load_pair<FormatQ1_0>(const BlockQ1_0* row, int64_t p) {
  const BlockQ1_0& b = row[p / 2];
  const auto bits = load_as<uint64_t>(b.qs + p % 2 * 8);
  return {_mm512_maskz_set1_epi8(bits, 2), _mm512_set1_ps(half_to_float(b.d))};
}

template <>
inline Pair load_pair<FormatQ2_0>(const BlockQ2_0* row, int64_t p) {
  const BlockQ2_0& b = row[p];
  // every byte four times, then its fields brought down
  const __m512i bytes = _mm512_cvtepu8_epi32(load_as<__m128i>(b.qs));
  const __m512i fields =
      _mm512_or_si512(_mm512_or_si512(bytes, _mm512_slli_epi32(bytes, 6)),
                      _mm512_or_si512(_mm512_slli_epi32(bytes, 12), _mm512_slli_epi32(bytes, 18)));
  return {_mm512_and_si512(fields, _mm512_set1_epi8(3)), _mm512_set1_ps(half_to_float(b.d))};
}

template <>
inline Pair load_pair<FormatI2_S>(const BlockI2_S* row, int64_t p) {
  const int low = static_cast<int>(6 - p % 2 * 4);
  const __m512i codes = field2(twice(row[p / 2].qs), low, low - 2, 3);
  const __m512i table = _mm512_broadcast_i32x4(load_as<__m128i>(kI2SCodes));
  return {_mm512_shuffle_epi8(table, codes), _mm512_set1_ps(1.0f)};
}

// The activation side of a pair.
struct ActivationPair {
  __m512i codes;
  __m512 scales;
  __m512 sums = {};  // s of each block in one of its lanes
};

static inline ActivationPair load_activations(const BlockQ8_0* x, int64_t p) {
  const BlockQ8_0* b = x + 2 * p;
  return {two_vectors(load_as<u8x32>(b[0].qs), load_as<u8x32>(b[1].qs)),
          two_halves_eights(b, b + 1)};
}

static inline ActivationPair load_activations(const BlockQ8_1* x, int64_t p) {
  const BlockQ8_1* b = x + 2 * p;
  const __m512 sums = _mm512_maskz_mov_ps(0x0101, two_halves_eights(&b[0].s, &b[1].s));
  return {two_vectors(load_as<u8x32>(b[0].qs), load_as<u8x32>(b[1].qs)),
          two_halves_eights(b, b + 1), sums};
}

}  // namespace weft::WEFT_TARGET

#endif  // __AVX512VNNI__
