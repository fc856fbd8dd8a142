// Dot products of rows of signed bytes, added up in 32 bits.
//
// Rows of both sources are read as they are stored, kByteRows weights by kByteColumns columns at a
// time. Every product and sum is exact, so that all targets have the same result.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kernel.h"
#include "kernels/simd/isa.h"

namespace weft::WEFT_TARGET {

inline constexpr int kByteRows = 4;

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

// The instruction multiplies unsigned bytes with signed ones: weights are moved up by 128, and
// 128 times the sum of the column is taken off again.
inline constexpr int kByteColumns = 4;
inline constexpr int kBytesAtOnce = 64;
inline constexpr bool kBytesAreMoved = true;
using ByteSums = __m512i;

static inline ByteSums no_sums() { return _mm512_setzero_si512(); }
static inline __m512i byte_row(const int8_t* p) {
  return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
}
static inline __m512i byte_column(const int8_t* p) { return _mm512_loadu_si512(p); }
static inline ByteSums add_products(ByteSums sums, __m512i row, __m512i column) {
  return _mm512_dpbusd_epi32(sums, row, column);
}
static inline __m512i ones() { return _mm512_set1_epi8(1); }
static inline __m128i total(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i all =
      _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half =
      _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

#elif defined(__AVX2__)

using ByteSums = __m256i;
static inline ByteSums no_sums() { return _mm256_setzero_si256(); }
static inline __m128i total(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
  const __m256i cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
  const __m256i all =
      _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
  return _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
}
#if defined(__AVXVNNI__)
inline constexpr int kByteColumns = 3;
inline constexpr int kBytesAtOnce = 32;
inline constexpr bool kBytesAreMoved = true;
static inline __m256i byte_column(const int8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline __m256i byte_row(const int8_t* p) {
  return _mm256_xor_si256(byte_column(p), _mm256_set1_epi8(-128));
}
static inline ByteSums add_products(ByteSums sums, __m256i row, __m256i column) {
  return _mm256_dpbusd_avx_epi32(sums, row, column);
}
static inline __m256i ones() { return _mm256_set1_epi8(1); }
#else
// Products of bytes may exceed what pairs of them are added up in, so bytes become words.
inline constexpr int kByteColumns = 2;
inline constexpr int kBytesAtOnce = 16;
inline constexpr bool kBytesAreMoved = false;
static inline __m256i byte_column(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline __m256i byte_row(const int8_t* p) { return byte_column(p); }
static inline ByteSums add_products(ByteSums sums, __m256i row, __m256i column) {
  return _mm256_add_epi32(sums, _mm256_madd_epi16(row, column));
}
static inline __m256i ones() { return _mm256_set1_epi16(1); }
#endif

#endif

#if defined(__AVX2__)
#define WEFT_BYTE_PRODUCTS 1

// Calls step(row bytes, column bytes) for the pieces of rows of k bytes; the last one is filled up
// with zeros, which a moved row may have any number beside.
template <int R, int C, typename Step>
static inline void for_pieces(const int8_t* const* w, const int8_t* const* x, int64_t k,
                              const Step& step) {
  int64_t i = 0;
  for (; i + kBytesAtOnce <= k; i += kBytesAtOnce) {
    step([&](int r) { return byte_row(w[r] + i); }, [&](int c) { return byte_column(x[c] + i); });
  }
  if (i == k) return;
  alignas(64) int8_t last[R + C][kBytesAtOnce] = {};
  for (int r = 0; r < R; ++r) std::memcpy(last[r], w[r] + i, static_cast<size_t>(k - i));
  for (int c = 0; c < C; ++c) std::memcpy(last[R + c], x[c] + i, static_cast<size_t>(k - i));
  step([&](int r) { return byte_row(last[r]); }, [&](int c) { return byte_column(last[R + c]); });
}

// The sums of the products of kByteRows rows with C columns: sums[c] has one for each row. `minus`
// is what is taken off the sums of each column.
template <int C>
static inline void byte_tile(const int8_t* const* w, const int8_t* const* x, int64_t k,
                             const int32_t* minus, __m128i* sums) {
  ByteSums acc[C][kByteRows];
  for (auto& column : acc) {
    for (ByteSums& sum : column) sum = no_sums();
  }
  for_pieces<kByteRows, C>(w, x, k, [&](const auto& row, const auto& column) {
    decltype(column(0)) columns[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) columns[c] = column(c);
#pragma GCC unroll 4
    for (int r = 0; r < kByteRows; ++r) {
      const auto bytes = row(r);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) acc[c][r] = add_products(acc[c][r], bytes, columns[c]);
    }
  });
  for (int c = 0; c < C; ++c) {
    const __m128i all = total(acc[c][0], acc[c][1], acc[c][2], acc[c][3]);
    sums[c] = _mm_sub_epi32(all, _mm_set1_epi32(minus[c]));
  }
}

// 128 times the sum of k bytes, where rows are moved.
static inline int32_t moved_by(const int8_t* x, int64_t k) {
  if (!kBytesAreMoved) return 0;
  ByteSums sum = no_sums();
  for_pieces<0, 1>(nullptr, &x, k, [&](const auto&, const auto& column) {
    sum = add_products(sum, ones(), column(0));
  });
  const ByteSums none = no_sums();
  return static_cast<int32_t>(static_cast<uint32_t>(_mm_cvtsi128_si32(total(sum, none, none, none)))
                              << 7);
}
#endif

}  // namespace weft::WEFT_TARGET
