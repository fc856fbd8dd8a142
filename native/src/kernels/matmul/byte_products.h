// Dot products of rows of signed bytes, added up in 32 bits.
//
// Rows of both sources are read as they are stored, kByteRows weights by kByteColumns columns at a
// time. With AVX-512, 32 weights are transposed for many columns: then each lane has the sum of a
// row, and none are added up across a register. Every product and sum is exact, so that all targets
// and ways have the same result.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/kernel.h"
#include "kernels/simd/dot_step.h"

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
  return dot_step(sums, row, column);
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
  return dot_step(sums, row, column);
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

// The last bytes of R rows and C columns, behind the whole pieces, filled up with zeros. A row that
// is moved has other bytes there, beside zeros of the column.
template <int R, int C>
struct LastBytes {
  alignas(64) int8_t bytes[R + C][kBytesAtOnce] = {};
  const int8_t* row[R];
  const int8_t* column[C];

  LastBytes(const int8_t* const* w, const int8_t* const* x, int64_t i, int64_t k) {
    for (int r = 0; r < R; ++r) {
      std::memcpy(bytes[r], w[r] + i, static_cast<size_t>(k - i));
      row[r] = bytes[r];
    }
    for (int c = 0; c < C; ++c) {
      std::memcpy(bytes[R + c], x[c] + i, static_cast<size_t>(k - i));
      column[c] = bytes[R + c];
    }
  }
};

// Adds the products of a row and C columns, n bytes each, in whole pieces.
template <int C>
static inline void add_pieces(ByteSums (&sums)[C][kByteRows], const int8_t* const* w,
                              const int8_t* const* x, int64_t n) {
  static_assert(kByteRows == 4);
  const int8_t *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
  const int8_t* columns[C];
  for (int c = 0; c < C; ++c) columns[c] = x[c];
  for (int64_t i = 0; i < n; i += kBytesAtOnce) {
    const auto a = byte_row(w0 + i), b = byte_row(w1 + i);
    const auto c = byte_row(w2 + i), d = byte_row(w3 + i);
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) {
      const auto column = byte_column(columns[j] + i);
      sums[j][0] = add_products(sums[j][0], a, column);
      sums[j][1] = add_products(sums[j][1], b, column);
      sums[j][2] = add_products(sums[j][2], c, column);
      sums[j][3] = add_products(sums[j][3], d, column);
    }
  }
}

// The sums of the products of kByteRows rows with C columns: sums[c] has one for each row. `minus`
// is what is taken off the sums of each column.
template <int C>
static inline void byte_tile(const int8_t* const* w, const int8_t* const* x, int64_t k,
                             const int32_t* minus, __m128i* sums) {
  ByteSums acc[C][kByteRows];
  for (int c = 0; c < C; ++c) {
    for (int r = 0; r < kByteRows; ++r) acc[c][r] = no_sums();
  }
  const int64_t whole = k - k % kBytesAtOnce;
  add_pieces<C>(acc, w, x, whole);
  if (whole < k) {
    const LastBytes<kByteRows, C> last(w, x, whole, k);
    add_pieces<C>(acc, last.row, last.column, kBytesAtOnce);
  }
  for (int c = 0; c < C; ++c) {
    const __m128i all = total(acc[c][0], acc[c][1], acc[c][2], acc[c][3]);
    sums[c] = _mm_sub_epi32(all, _mm_set1_epi32(minus[c]));
  }
}

// 128 times the sum of k bytes, where rows are moved.
static inline int32_t moved_by(const int8_t* x, int64_t k) {
  if (!kBytesAreMoved) return 0;
  ByteSums sum = no_sums();
  const int64_t whole = k - k % kBytesAtOnce;
  for (int64_t i = 0; i < whole; i += kBytesAtOnce)
    sum = add_products(sum, ones(), byte_column(x + i));
  int32_t rest = 0;
  for (int64_t i = whole; i < k; ++i) rest += x[i];
  const ByteSums none = no_sums();
  const auto all = static_cast<uint32_t>(_mm_cvtsi128_si32(total(sum, none, none, none)) + rest);
  return static_cast<int32_t>(all << 7);
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define WEFT_BYTE_PANELS 1

inline constexpr int kPanelBytes = 32;    // rows of a panel
inline constexpr int kPanelColumns = 12;  // columns that a panel is multiplied with at a time

// Transposes a 16 x 16 matrix of 32-bit words.
static inline void transpose16(__m512i (&v)[16]) {
  __m512i pairs[16], fours[16];
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {  // lane l of fours[i + j]: column 4 l + j of rows i..i+3
    fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512i even_top = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0x88);
    const __m512i odd_top = _mm512_shuffle_i32x4(fours[j], fours[4 + j], 0xdd);
    const __m512i even_low = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(fours[8 + j], fours[12 + j], 0xdd);
    v[j] = _mm512_shuffle_i32x4(even_top, even_low, 0x88);
    v[4 + j] = _mm512_shuffle_i32x4(odd_top, odd_low, 0x88);
    v[8 + j] = _mm512_shuffle_i32x4(even_top, even_low, 0xdd);
    v[12 + j] = _mm512_shuffle_i32x4(odd_top, odd_low, 0xdd);
  }
}

// Four bytes of each of kPanelBytes rows, then the next four; k is a multiple of 64. `sums` are 128
// times the sums of the rows: here the columns are moved.
static inline void pack_byte_panel(const int8_t* const* w, int64_t k, char* panel,
                                   __m512i (&sums)[2]) {
  for (int half = 0; half < 2; ++half) {
    __m512i sum = no_sums();
    for (int64_t i = 0; i < k; i += 64) {
      __m512i words[16];
      for (int r = 0; r < 16; ++r) words[r] = byte_column(w[16 * half + r] + i);
      transpose16(words);
      for (int j = 0; j < 16; ++j) {
        sum = add_products(sum, ones(), words[j]);
        _mm512_storeu_si512(panel + ((i / 4 + j) * 2 + half) * 64, words[j]);
      }
    }
    sums[half] = _mm512_slli_epi32(sum, 7);
  }
}

// The sums of the products of a panel with kPanelColumns columns, a row of `out` for each.
static inline void byte_panel_tile(const char* panel, const int8_t* const* x, int64_t k,
                                   const __m512i (&minus)[2], char* const* out) {
  __m512i acc[kPanelColumns][2];
  for (auto& sums : acc) sums[0] = sums[1] = no_sums();
  for (int64_t i = 0; i < k; i += 4) {
    const __m512i low = _mm512_loadu_si512(panel + i * kPanelBytes);
    const __m512i high = _mm512_loadu_si512(panel + i * kPanelBytes + 64);
#pragma GCC unroll 12
    for (int c = 0; c < kPanelColumns; ++c) {
      int32_t word;
      std::memcpy(&word, x[c] + i, sizeof word);
      const __m512i moved = _mm512_xor_si512(_mm512_set1_epi32(word), _mm512_set1_epi8(-128));
      acc[c][0] = add_products(acc[c][0], moved, low);
      acc[c][1] = add_products(acc[c][1], moved, high);
    }
  }
#pragma GCC unroll 12
  for (int c = 0; c < kPanelColumns; ++c) {
    _mm512_storeu_si512(out[c], _mm512_sub_epi32(acc[c][0], minus[0]));
    _mm512_storeu_si512(out[c] + 64, _mm512_sub_epi32(acc[c][1], minus[1]));
  }
}
#endif
#endif

}  // namespace weft::WEFT_TARGET
