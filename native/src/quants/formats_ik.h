// ik_llama.cpp's types in the integer view of formats.h: uneven levels, trellises and a few others.
//
// A value is d * step * level. Each width has two tables of levels, of which the second is the
// first one plus a number; a bit of a group says which one it uses. A trellis makes levels of a
// seed: its products with the powers of a constant, modulo 2^32, have four fields of six bits,
// whose sum less 126 is a level. Types whose scale files store once for a row have a copy of it in
// each block (frontends/gguf/row_forms.py). Layouts: src/weft/quants/_ik.py. Source:
// dequantize_row_* and QuantizerIQKT::set_values in iqk_quantize.cpp.
#pragma once

#include "quants/blocks_ik.h"
#include "quants/formats.h"
#include "quants/formats_iq.h"

namespace weft::WEFT_TARGET {

// ---- levels + 128 of the first table of each width, and what the second has more

inline constexpr int kMoreIQ2 = 5, kMoreIQ3 = 4, kMoreIQ4 = 4, kMoreIQ5 = 2, kMoreIQ6 = 1;
inline constexpr uint8_t kIQ2Codes[16] = {97, 115, 129, 145};
inline constexpr uint8_t kIQ3Codes[16] = {65, 88, 105, 118, 129, 141, 156, 175};
inline constexpr uint8_t kIQ5Codes[32] = {2,   14,  25,  36,  45,  54,  63,  71,  78,  85,  92,
                                          98,  104, 110, 116, 122, 127, 133, 139, 145, 151, 157,
                                          164, 171, 179, 187, 196, 205, 215, 225, 237, 249};
inline constexpr uint8_t kIQ6Codes[64] = {
    1,   7,   13,  19,  24,  30,  35,  40,  44,  49,  54,  58,  62,  66,  70,  74,
    77,  81,  84,  88,  91,  94,  97,  100, 103, 106, 109, 112, 115, 117, 120, 123,
    126, 128, 131, 134, 137, 140, 142, 145, 148, 151, 155, 158, 161, 164, 168, 172,
    175, 179, 183, 187, 191, 196, 200, 205, 210, 215, 220, 226, 231, 237, 243, 249};
// The first and the second level of each pair of iq2_kl, plus 128.
inline constexpr uint8_t kIQ2KLFirst[] = {65,  65,  88,  88,  88,  88,  105, 105, 105, 105, 105,
                                          118, 118, 118, 118, 129, 129, 129, 129, 129, 141, 141,
                                          141, 141, 141, 156, 156, 156, 156, 156, 175, 175};
inline constexpr uint8_t kIQ2KLSecond[] = {105, 141, 65,  118, 141, 175, 88,  105, 129, 141, 156,
                                           65,  129, 141, 175, 105, 118, 129, 141, 156, 88,  105,
                                           118, 129, 141, 65,  105, 129, 156, 175, 105, 141};

// ---- helpers

// 255 where bit 0 of a byte is set, else 0.
static inline u8x32 whole_bytes(u8x32 bits) { return splat8(0) - bits; }

// table[code] for 32 codes below 16. Without shuffles it is a loop, of which products would have
// hundreds of copies.
#if !defined(WEFT_PANELS)
[[gnu::noinline]]
#endif
static inline u8x32 look_up_codes(const uint8_t* table, u8x32 codes) {
  return look_up(table, codes);
}

// table[code] for 32 codes below 32, whose fifth bits are the bits 0 of `high`.
static inline u8x32 look_up_32(const uint8_t* table, u8x32 low, u8x32 high) {
  const u8x32 first = look_up_codes(table, low), second = look_up_codes(table + 16, low);
  return first ^ ((first ^ second) & whole_bytes(high));
}

// What is added to the 32 codes of chunk `chunk`, whose group or two groups have these bits of
// `extra`.
template <int kMore, int kPer>
static inline u8x32 more_of(uint32_t extra, int chunk) {
  if constexpr (kPer == 1) return splat8(extra >> chunk & 1 ? kMore : 0);
  const uint32_t two = extra >> 2 * chunk;
  const auto half = [&](uint32_t bit) { return low_half(splat8(bit ? kMore : 0)); };
  return join(half(two & 1), half(two & 2));
}

// Eight numbers of four bits as bytes, in the order of the bits.
static inline uint64_t spread_nibbles(uint32_t packed) {
  uint64_t v = packed;
  v = (v | v << 16) & 0x0000ffff0000ffffu;
  v = (v | v << 8) & 0x00ff00ff00ff00ffu;
  return (v | v << 4) & 0x0f0f0f0f0f0f0f0fu;
}
// The same of the low halves of four bytes, then of their high halves.
static inline uint64_t split_nibbles(const uint8_t* p) {
  const uint32_t four = read32(p);
  return uint64_t{four >> 4 & 0x0f0f0f0fu} << 32 | (four & 0x0f0f0f0fu);
}
// Eight numbers of two bits, and of one bit.
static inline uint64_t spread_pairs(uint32_t packed) {
  uint64_t v = packed & 0xffffu;
  v = (v | v << 24) & 0x000000ff000000ffu;
  v = (v | v << 12) & 0x000f000f000f000fu;
  return (v | v << 6) & 0x0303030303030303u;
}
static inline uint64_t spread_ones(uint32_t packed) {
  uint64_t v = packed & 0xffu;
  v = (v | v << 28) & 0x0000000f0000000fu;
  v = (v | v << 14) & 0x0003000300030003u;
  return (v | v << 7) & 0x0101010101010101u;
}

static inline uint32_t read16(const uint8_t* p) { return p[0] | static_cast<uint32_t>(p[1]) << 8; }

// The two bits of each code of a chunk, and the bit that a plane of 32 bytes adds.
static inline u8x32 two_bits(const uint8_t* qs, int chunk) {
  return field(load_as<u8x32>(qs + 32 * (chunk / 4)), chunk % 4 * 2, 3);
}
static inline u8x32 plane(const uint8_t* qh, int chunk) {
  return field(load_as<u8x32>(qh), chunk, 1);
}
// Four bits of each code, whose byte has one of this chunk and one of its neighbour.
static inline u8x32 four_bits(const uint8_t* qs, int chunk) {
  return field(load_as<u8x32>(qs + 32 * (chunk / 2)), chunk % 2 * 4, 15);
}

// ---- uneven levels

// The format of unpacked panels: all that is left there of a format are signed codes and steps.
template <int kTheGroups>
struct SignedPanels {
  using Block = BlockIQ4_XS;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = kTheGroups, kZero = 128, kTop = 255;
  static constexpr bool kHasMin = false, kOneScale = false;
  static i32x8 step8(const Block& b, int half);
};

// What all types of 256 weights here have in common.
template <class TheBlock, int kTheGroups, int kTheTop>
struct FormatUneven {
  using Block = TheBlock;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = kTheGroups, kZero = 128, kTop = kTheTop;
  static constexpr bool kHasMin = false, kOneScale = false;
  using Panels = SignedPanels<kGroups>;
  static float d(const Block& b) {
    if constexpr (sizeof b.d == 4) {
      return b.d;
    } else {
      return half_to_float(b.d);
    }
  }
};

struct FormatIQ2_K : FormatUneven<BlockIQ2_K, 16, 150> {
  static i32x8 step8(const Block& b, int half) {
    return widen_unsigned(spread_nibbles(read32(b.scales + 4 * half))) - 8;
  }
  static u8x32 codes(const Block& b, int chunk) {
    return look_up_codes(kIQ2Codes, two_bits(b.qs, chunk)) + more_of<kMoreIQ2, 2>(b.extra, chunk);
  }
};

struct FormatIQ2_KS : FormatUneven<BlockIQ2_KS, 8, 150> {
  static i32x8 step8(const Block& b, int) {
    const uint64_t high = spread_ones(b.extra >> 8) << 4;
    return widen_unsigned(spread_nibbles(read32(b.scales)) | high) - 16;
  }
  static u8x32 codes(const Block& b, int chunk) {
    return look_up_codes(kIQ2Codes, two_bits(b.qs, chunk)) + more_of<kMoreIQ2, 1>(b.extra, chunk);
  }
};

template <class Block>
static inline u8x32 codes_iq3(const Block& b, int chunk) {
  return look_up_codes(kIQ3Codes, two_bits(b.qs, chunk) | field_up(plane(b.qh, chunk), 1, 2));
}

struct FormatIQ3_K : FormatUneven<BlockIQ3_K, 16, 179> {
  static i32x8 step8(const Block& b, int half) {
    const i32x8 minus = -widen_unsigned(spread_ones(b.signs >> 8 * half));
    const i32x8 step = widen_unsigned(spread_nibbles(read32(b.scales + 4 * half))) * 2 + 1;
    return (step ^ minus) - minus;
  }
  static u8x32 codes(const Block& b, int chunk) {
    return codes_iq3(b, chunk) + more_of<kMoreIQ3, 2>(b.extra, chunk);
  }
};

struct FormatIQ3_KS : FormatUneven<BlockIQ3_KS, 8, 179> {
  static i32x8 step8(const Block& b, int) {
    return widen_unsigned(split_nibbles(b.scales) | spread_ones(b.extra) << 4) - 16;
  }
  static u8x32 codes(const Block& b, int chunk) {
    return codes_iq3(b, chunk) + more_of<kMoreIQ3, 1>(b.extra >> 8, chunk);
  }
};

// The steps of iq4_k and iq5_k.
template <class Block>
static inline i32x8 six_bits(const Block& b, int half) {
  const uint64_t high = spread_pairs(read16(b.scales_h + 2 * half)) << 4;
  return widen_unsigned(spread_nibbles(read32(b.scales_l + 4 * half)) | high) - 32;
}

struct FormatIQ4_K : FormatUneven<BlockIQ4_K, 16, 245> {
  static i32x8 step8(const Block& b, int half) { return six_bits(b, half); }
  static u8x32 codes(const Block& b, int chunk) {
    return look_up_codes(kIQ4Codes, nibbles(b.qs + 16 * chunk)) +
           more_of<kMoreIQ4, 2>(b.extra, chunk);
  }
};

// The steps of iq4_ks and iq5_ks, whose lowest bits choose the table.
static inline i32x8 odd_steps(const uint8_t* scales) {
  return widen_unsigned(load_as<uint64_t>(scales) & 0xfefefefefefefefeu) - 127;
}

struct FormatIQ4_KS : FormatUneven<BlockIQ4_KS, 8, 245> {
  static i32x8 step8(const Block& b, int) { return odd_steps(b.scales); }
  static u8x32 codes(const Block& b, int chunk) {
    const u8x32 more = more_of<kMoreIQ4, 1>(b.scales[chunk], 0);
    return look_up_codes(kIQ4Codes, nibbles(b.qs + 16 * chunk)) + more;
  }
};

template <class Block>
static inline u8x32 codes_iq5(const Block& b, int chunk) {
  return look_up_32(kIQ5Codes, four_bits(b.qs, chunk), plane(b.qh, chunk));
}

struct FormatIQ5_K : FormatUneven<BlockIQ5_K, 16, 251> {
  static i32x8 step8(const Block& b, int half) { return six_bits(b, half); }
  static u8x32 codes(const Block& b, int chunk) {
    return codes_iq5(b, chunk) + more_of<kMoreIQ5, 2>(b.extra, chunk);
  }
};

struct FormatIQ5_KS : FormatUneven<BlockIQ5_KS, 8, 251> {
  static i32x8 step8(const Block& b, int) { return odd_steps(b.scales); }
  static u8x32 codes(const Block& b, int chunk) {
    return codes_iq5(b, chunk) + more_of<kMoreIQ5, 1>(b.scales[chunk], 0);
  }
};

struct FormatIQ6_K : FormatUneven<BlockIQ6_K, 16, 250> {
  static i32x8 step8(const Block& b, int half) {
    return widen_signed(load_as<uint64_t>(b.scales + 8 * half));
  }
  static u8x32 codes(const Block& b, int chunk) {
    const u8x32 low = four_bits(b.qs, chunk), high = two_bits(b.qh, chunk);
    const u8x32 fifth = high & splat8(1);
    const u8x32 first = look_up_32(kIQ6Codes, low, fifth);
    const u8x32 second = look_up_32(kIQ6Codes + 32, low, fifth);
    const u8x32 sixth = whole_bytes(field(high, 1, 1));
    return (first ^ ((first ^ second) & sixth)) + more_of<kMoreIQ6, 2>(b.extra, chunk);
  }
};

struct FormatIQ2_KL : FormatUneven<BlockIQ2_KL, 8, 175> {
  static i32x8 step8(const Block& b, int) {
    return widen_unsigned(split_nibbles(b.scales_l) | spread_pairs(b.scales_h) << 4) - 32;
  }
  static u8x32 codes(const Block& b, int chunk) {
    const auto packed = load_as<u8x16>(b.qs + 16 * (chunk / 2));
    const auto fifths = load_as<u8x16>(b.qh);
    const u8x32 low = field(join(packed, packed), chunk % 2 * 4, 15);
    const u8x32 high = field(join(fifths, fifths), chunk, 1);
    const u8x16 first = low_half(look_up_32(kIQ2KLFirst, low, high));
    const u8x16 second = low_half(look_up_32(kIQ2KLSecond, low, high));
    return __builtin_shufflevector(first, second, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22,
                                   7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                   31);
  }
};

// ---- trellises

// The powers of the constant, modulo 2^32.
struct TrellisPowers {
  uint32_t of[8] = {};
  constexpr TrellisPowers() {
    uint32_t power = 1;
    for (uint32_t& p : of) p = power *= 0xcbac1fedu;
  }
};
inline constexpr TrellisPowers kTrellisPowers;

// 32 levels that `seed(k)` makes, kEach of a seed.
template <int kEach, class Seed>
static inline s8x32 trellis_levels(const Seed& seed) {
  const auto powers = load_as<u32x8>(kTrellisPowers.of);
  const auto first_four = __builtin_shufflevector(powers, powers, 0, 1, 2, 3, 0, 1, 2, 3);
  i32x8 levels[4];
  for (int i = 0; i < 4; ++i) {
    u32x8 state;
    if constexpr (kEach == 8) {
      state = powers * (u32x8{} + (seed(i) + 4096u));
    } else {
      const u32x8 low = u32x8{} + (seed(2 * i) + 4096u), high = u32x8{} + (seed(2 * i + 1) + 4096u);
      state = first_four * __builtin_shufflevector(low, high, 0, 1, 2, 3, 8, 9, 10, 11);
    }
    // the top byte of the product is the sum of the four bytes, which is below 256
    const u32x8 sums = (state & 0x3f3f3f3fu) * 0x01010101u >> 24u;
    levels[i] = reinterpret_cast<i32x8>(sums) - 126;
  }
  return narrow_ints(levels);
}

static inline u8x32 above_zero(s8x32 levels) {
  return reinterpret_cast<u8x32>(levels) ^ splat8(128);
}

// The steps of eight codes, which are levels of iq4_ks.
static inline i32x8 level_steps(uint64_t codes) {
  i32x8 steps;
  for (int g = 0; g < 8; ++g) steps[g] = kIQ4Levels[codes >> 8 * g & 15];
  return steps;
}

struct FormatIQ1_KT : FormatUneven<BlockIQ1_KT, 8, 254> {
  static i32x8 step8(const Block& b, int) { return level_steps(load_as<uint64_t>(b.sh)); }
  static u8x32 codes(const Block& b, int chunk) {
    const uint32_t top = b.sh[chunk];
    return above_zero(trellis_levels<8>([&](int k) {
      const uint32_t high = static_cast<uint32_t>(b.qh[chunk % 4 * 4 + k]) >> chunk / 4 * 4 & 15;
      return b.ql[4 * chunk + k] | high << 8 | (top >> (4 + k) & 1) << 12;
    }));
  }
};

struct FormatIQ2_KT : FormatUneven<BlockIQ2_KT, 8, 254> {
  static i32x8 step8(const Block& b, int) { return level_steps(split_nibbles(b.scales)); }
  static u8x32 codes(const Block& b, int chunk) {
    return above_zero(
        trellis_levels<8>([&](int k) { return static_cast<uint32_t>(b.ql[4 * chunk + k]); }));
  }
};

struct FormatIQ3_KT : FormatUneven<BlockIQ3_KT, 8, 254> {
  static i32x8 step8(const Block& b, int) { return widen_unsigned(split_nibbles(b.scales)); }
  static u8x32 codes(const Block& b, int chunk) {
    const s8x32 levels =
        trellis_levels<8>([&](int k) { return static_cast<uint32_t>(b.ql[4 * chunk + k]); });
    const auto is_negative = reinterpret_cast<u8x32>(levels < s8x32{});
    // a magnitude with the sign of the plane: the level changes its sign where the two differ
    const u8x32 minus = is_negative ^ whole_bytes(plane(b.signs, chunk));
    return ((reinterpret_cast<u8x32>(levels) ^ minus) - minus) ^ splat8(128);
  }
};

struct FormatIQ4_KT : FormatUneven<BlockIQ4_KT, 8, 254> {
  static i32x8 step8(const Block& b, int) {
    const auto words = load_as<u32x8>(reinterpret_cast<const char*>(&b) + offsetof(Block, steps));
    return reinterpret_cast<i32x8>(words >> 1u & 127u) - 64;
  }
  static u8x32 codes(const Block& b, int chunk) {
    const uint32_t word = b.steps[chunk];
    return above_zero(trellis_levels<4>([&](int k) {
      const int i = 8 * chunk + k;
      const uint32_t high = static_cast<uint32_t>(b.qh[i % 32]) >> i / 32 * 4 & 15;
      return (b.ql[i] | high << 8 | (word >> (8 + 3 * k) & 7) << 12) + ((word & 1) << 15);
    }));
  }
};

// ---- others

struct FormatIQ1_M_R4 {
  using Block = BlockIQ1_M_R4;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 16, kZero = 9, kTop = 18;
  static constexpr bool kHasMin = false, kOneScale = false;
  static float d(const Block& b) { return half_to_float(b.d) * 0.125f; }
  static i32x8 step8(const Block& b, int half) {
    return widen_unsigned(spread_nibbles(read32(b.scales + 4 * half)));
  }
  static u8x32 codes(const Block& b, int chunk) {
    const uint32_t high = read16(b.qh + 2 * chunk);
    uint32_t minus = 0;
    for (int k = 0; k < 4; ++k) minus |= (high >> (4 * k + 3) & 1) << k;
    return codes_iq1<kZero>([&](int k) { return b.qs[4 * chunk + k] | (high >> 4 * k & 7) << 8; },
                            minus);
  }
};

struct FormatIQ2_BN {
  using Block = BlockIQ2_BN;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 2, kGroups = 2, kZero = 1, kTop = 3;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) { scale[0] = scale[1] = b.d; }
  static u8x32 codes(const Block& b, int chunk) {
    const auto packed = load_as<u8x16>(b.qs);
    const u8x16 low = low_half(field(join(packed, packed), 4 * chunk, 3));
    const u8x16 high = low_half(field(join(packed, packed), 4 * chunk + 2, 3));
    return join(low, high);
  }
};

struct FormatQ6_0 {
  using Block = BlockQ6_0;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 32, kTop = 63;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) { *scale = half_to_float(b.d); }
  static u8x32 codes(const Block& b, int) {
    const auto h = load_as<uint64_t>(b.qh);
    const auto high = reinterpret_cast<u8x32>(u64x4{h, h >> 4, h >> 2, h >> 6});
    return nibbles(b.qs) | field_up(high, 3, 4);
  }
};

struct FormatQ8_KV {
  using Block = BlockQ8_KV;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 128, kTop = 255;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) { *scale = b.d; }
  static u8x32 codes(const Block& b, int) { return load_as<u8x32>(b.qs) ^ splat8(128); }
};

}  // namespace weft::WEFT_TARGET
