// The codebook types iq1_s iq1_m iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s in the integer view of
// formats.h.
//
// A code names a vector of levels, and most have a sign bit an element. A "signs and scale" word is
// four 7-bit sign indices and a 4-bit scale on top; the eighth sign makes the number of minuses
// even. iq1 levels are shifted by +-1/8, so that eighths are counted. Source: dequantize_row_iq* in
// ggml-quants.c.
#pragma once

#include <type_traits>

#include "quants/codebooks.h"
#include "quants/formats.h"

namespace weft::WEFT_TARGET {

// The eight sign bits of 7-bit indices.
struct EvenSigns {
  uint8_t of[128];
};
constexpr EvenSigns make_even_signs() {
  EvenSigns signs = {};
  for (int i = 0; i < 128; ++i) {
    int parity = i ^ i >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    signs.of[i] = static_cast<uint8_t>(i | (parity & 1) << 7);
  }
  return signs;
}
inline constexpr EvenSigns kEvenSigns = make_even_signs();

// The signs that the four indices of a signs and scale word name, one after the other.
static inline uint32_t even_signs(uint32_t word) {
  uint32_t signs = 0;
  for (int k = 0; k < 4; ++k) signs |= uint32_t{kEvenSigns.of[word >> 7 * k & 127]} << 8 * k;
  return signs;
}

typedef uint64_t u64x4 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
template <int kLength>
using BookWord = std::conditional_t<kLength == 8, uint64_t, uint32_t>;

// 32 levels: the vectors of a book that codes name, which `code(k)` gives.
template <int kCount, int kLength, class Code>
static inline u8x32 book_levels(const Codebook<kCount, kLength>& book, const Code& code) {
  // by way of registers: a vector that is loaded where its parts were just stored has to wait
  const auto at = [&](int k) { return load_as<BookWord<kLength>>(book.vectors[code(k)]); };
  if constexpr (kLength == 8) {
    return reinterpret_cast<u8x32>(u64x4{at(0), at(1), at(2), at(3)});
  } else {
    return reinterpret_cast<u8x32>(u32x8{at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)});
  }
}

// zero + level, or zero - level where the bit of the element is set.
static inline u8x32 signed_codes(int zero, u8x32 levels, uint32_t signs) {
  const u8x32 minus = spread_bits(signs, 255);
  return splat8(zero) + (levels ^ minus) - minus;
}

// Eight scales that `scale(g)` gives.
template <class Scale>
static inline f32x8 eight_scales(const Scale& scale) {
  float scales[8];
  for (int g = 0; g < 8; ++g) scales[g] = scale(g);
  return load_as<f32x8>(scales);
}

struct FormatIQ2_XXS {
  using Block = BlockIQ2_XXS;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 43, kTop = 86;
  static constexpr bool kHasMin = false, kOneScale = false;
  static const uint8_t* part(const Block& b, int chunk) {
    return reinterpret_cast<const uint8_t*>(&b) + offsetof(Block, qs) + 8 * chunk;
  }
  static f32x8 scale8(const Block& b, int) {
    const float d = half_to_float(b.d);
    return eight_scales([&](int g) {
      return d * (0.5f + static_cast<float>(read32(part(b, g) + 4) >> 28)) * 0.25f;
    });
  }
  static u8x32 codes(const Block& b, int chunk) {
    const uint8_t* p = part(b, chunk);
    const u8x32 levels = book_levels(kBookIQ2_XXS, [&](int k) { return p[k]; });
    return signed_codes(kZero, levels, even_signs(read32(p + 4)));
  }
};

// Scales of sixteen elements, 4 bits each.
static inline f32x8 scales_iq2(float d, const uint8_t* scales, int half) {
  return eight_scales([&](int g) {
    const int step = scales[4 * half + g / 2] >> g % 2 * 4 & 15;
    return d * (0.5f + static_cast<float>(step)) * 0.25f;
  });
}

struct FormatIQ2_XS {
  using Block = BlockIQ2_XS;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 16, kZero = 43, kTop = 86;
  static constexpr bool kHasMin = false, kOneScale = false;
  static f32x8 scale8(const Block& b, int half) {
    return scales_iq2(half_to_float(b.d), b.scales, half);
  }
  static u8x32 codes(const Block& b, int chunk) {
    uint16_t words[4];
    std::memcpy(words, reinterpret_cast<const char*>(&b) + offsetof(Block, qs) + 8 * chunk, 8);
    uint32_t signs = 0;
    for (int k = 0; k < 4; ++k) signs |= uint32_t{kEvenSigns.of[words[k] >> 9]} << 8 * k;
    const u8x32 levels = book_levels(kBookIQ2_XS, [&](int k) { return words[k] & 511; });
    return signed_codes(kZero, levels, signs);
  }
};

struct FormatIQ2_S {
  using Block = BlockIQ2_S;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 16, kZero = 43, kTop = 86;
  static constexpr bool kHasMin = false, kOneScale = false;
  static f32x8 scale8(const Block& b, int half) {
    return scales_iq2(half_to_float(b.d), b.scales, half);
  }
  static u8x32 codes(const Block& b, int chunk) {
    const u8x32 levels = book_levels(
        kBookIQ2_S, [&](int k) { return b.qs[4 * chunk + k] | (b.qh[chunk] >> 2 * k & 3) << 8; });
    return signed_codes(kZero, levels, read32(b.signs + 4 * chunk));
  }
};

struct FormatIQ3_XXS {
  using Block = BlockIQ3_XXS;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 62, kTop = 124;
  static constexpr bool kHasMin = false, kOneScale = false;
  static f32x8 scale8(const Block& b, int) {
    const float d = half_to_float(b.d);
    return eight_scales([&](int g) {
      return d * (0.5f + static_cast<float>(read32(b.signs_scales + 4 * g) >> 28)) * 0.5f;
    });
  }
  static u8x32 codes(const Block& b, int chunk) {
    const u8x32 levels = book_levels(kBookIQ3_XXS, [&](int k) { return b.qs[8 * chunk + k]; });
    return signed_codes(kZero, levels, even_signs(read32(b.signs_scales + 4 * chunk)));
  }
};

struct FormatIQ3_S {
  using Block = BlockIQ3_S;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 16, kTop = 31;
  static constexpr bool kHasMin = false, kOneScale = false;
  static f32x8 scale8(const Block& b, int) {
    const float d = half_to_float(b.d);
    return eight_scales(
        [&](int g) { return d * static_cast<float>(1 + 2 * (b.scales[g / 2] >> g % 2 * 4 & 15)); });
  }
  static u8x32 codes(const Block& b, int chunk) {
    const u8x32 levels = book_levels(
        kBookIQ3_S, [&](int k) { return b.qs[8 * chunk + k] | (b.qh[chunk] >> k & 1) << 8; });
    return signed_codes(kZero, levels, read32(b.signs + 4 * chunk));
  }
};

// zero and the shift, which is an eighth, of each of four vectors; bit k of an index turns that of
// vector k around.
template <int kZero>
struct Shifts {
  uint8_t of[16][32] = {};
  constexpr Shifts() {
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 32; ++j)
        of[i][j] = static_cast<uint8_t>(kZero + (i >> j / 8 & 1 ? -1 : 1));
    }
  }
};

// Levels -1 0 1 in eighths, shifted.
template <int kZero, class Code>
static inline u8x32 codes_iq1(const Code& code, uint32_t minus) {
  static constexpr Shifts<kZero> kShifts;
  u8x32 levels = book_levels(kBookIQ1, code);
  for (int i = 0; i < 3; ++i) levels += levels;
  return levels + load_as<u8x32>(kShifts.of[minus]);
}

struct FormatIQ1_S {
  using Block = BlockIQ1_S;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 9, kTop = 18;
  static constexpr bool kHasMin = false, kOneScale = false;
  static f32x8 scale8(const Block& b, int) {
    const float d = half_to_float(b.d);
    return eight_scales(
        [&](int g) { return d * static_cast<float>(2 * (b.qh[g] >> 12 & 7) + 1) * 0.125f; });
  }
  static u8x32 codes(const Block& b, int chunk) {
    const int high = b.qh[chunk];
    return codes_iq1<kZero>([&](int k) { return b.qs[4 * chunk + k] | (high >> 3 * k & 7) << 8; },
                            high & 0x8000 ? 15u : 0u);
  }
};

struct FormatIQ1_M {
  using Block = BlockIQ1_M;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 16, kZero = 9, kTop = 18;
  static constexpr bool kHasMin = false, kOneScale = false;
  static f32x8 scale8(const Block& b, int half) {
    uint32_t bits = 0;
    for (int k = 0; k < 4; ++k) bits |= static_cast<uint32_t>(b.scales[k] >> 12) << 4 * k;
    const float d = half_to_float(static_cast<uint16_t>(bits));
    return eight_scales([&](int i) {
      const int g = 8 * half + i;
      return d * static_cast<float>(2 * (b.scales[g / 4] >> g % 4 * 3 & 7) + 1) * 0.125f;
    });
  }
  static u8x32 codes(const Block& b, int chunk) {
    const uint32_t high = b.qh[2 * chunk] | static_cast<uint32_t>(b.qh[2 * chunk + 1]) << 8;
    uint32_t minus = 0;
    for (int k = 0; k < 4; ++k) minus |= (high >> (4 * k + 3) & 1) << k;
    return codes_iq1<kZero>([&](int k) { return b.qs[4 * chunk + k] | (high >> 4 * k & 7) << 8; },
                            minus);
  }
};

}  // namespace weft::WEFT_TARGET
