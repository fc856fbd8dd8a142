// The integer view of formats.h for an interleaved panel (interleave.h), in vectors whose 32-bit
// lanes are rows. Each byte of formats.h becomes a byte of a lane, with the same bits. For the rows
// of vector `v`, Lanes<F> gives
//
//   codes   the eight vectors of chunk `c`; each lane has four neighbouring codes of its row
//   scales  the scales and minima of all groups of the block; groups are kPanelRows floats apart
//   Scales  the same one by one, for formats with many
//   codes_in_place, place
//           the codes of chunk `c` shifted to the left by place(c) bits, where that takes less
#pragma once

#include "kernels/simd/lane_bytes.h"
#include "quants/formats.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

inline constexpr int kLaneBytes = kLanes * 4;
inline constexpr int kWordBytes = 4 * kPanelRows;  // bytes of one word of all rows

// The 4-byte word number `word` of the rows of vector `v`. Before the words, a block has `header`
// bytes per row.
static inline vi lane_word(const char* block, int header, int word, int v) {
  return load_as<vi>(block + header * kPanelRows + word * kWordBytes + v * kLaneBytes);
}

// The field at byte `at` of the header of each row: a half, an unsigned 16-bit integer, a byte.
static inline vf lane_half(const char* block, int at, int v) {
  return load_half(reinterpret_cast<const uint16_t*>(block + at * kPanelRows) + v * kLanes);
}
static inline vi lane_u16(const char* block, int at, int v) {
  return widen_u16(block + at * kPanelRows + v * kLanes * 2);
}
static inline vi lane_u8(const char* block, int at, int v) {
  return widen_u8(block + at * kPanelRows + v * kLanes);
}

// The level of each nibble of iq4_nl and iq4_xs, signed.
static inline vi look_up_levels(vi codes) {
  return look_up_lanes(reinterpret_cast<const uint8_t*>(kIQ4Levels), codes);
}

// ---- helpers for several formats

// The 32 codes of four bits in four words: first the low halves, then the high halves.
static inline void lane_nibbles(const char* block, int header, int word, int v, vi* w) {
  for (int j = 0; j < 4; ++j) {
    const vi both = lane_word(block, header, word + j, v);
    w[j] = bits(both, 0, 15);
    w[j + 4] = bits(both, 4, 15);
  }
}

// The eight words from `word` on, with each byte shifted right by `shift` and masked.
static inline void lane_fields(const char* block, int header, int word, int shift, int mask, int v,
                               vi* w) {
  for (int j = 0; j < 8; ++j) w[j] = bits(lane_word(block, header, word + j, v), shift, mask);
}

// Adds what the eight words from `word` on have in `mask` after a shift to the left: see add_bits.
static inline void add_field(const char* block, int header, int word, int shift, int mask, int v,
                             vi* w) {
  for (int j = 0; j < 8; ++j) {
    w[j] = add_bits(w[j], lane_word(block, header, word + j, v), shift, mask);
  }
}

// Word j of what lane_nibbles gives.
static inline vi lane_nibble(const char* block, int header, int word, int j, int v) {
  return bits(lane_word(block, header, word + j % 4, v), j / 4 * 4, 15);
}

// The scales and minima of a block, one after the other, as Scales says them.
template <int kGroups, typename Scales>
static inline void store_scales(const Scales& scales, float* scale, float* min) {
  for (int g = 0; g < kGroups; ++g) {
    store(scale + g * kPanelRows, scales.scale(g));
    if constexpr (requires { scales.min(g); }) store(min + g * kPanelRows, scales.min(g));
  }
}

// ---- the formats

template <typename F>
struct Lanes {};

// Bytes of a block of one row in a panel. Lanes that have a Block of their own read another one
// than the block of the file.
template <typename F>
inline constexpr int64_t kStoredBytes = sizeof(typename F::Block);
template <typename F>
  requires requires { typename Lanes<F>::Block; }
inline constexpr int64_t kStoredBytes<F> = sizeof(typename Lanes<F>::Block);

// Block number `block` of a panel.
template <typename F>
static inline const char* lane_block(const char* panel, int64_t block) {
  return panel + block * kPanelRows * kStoredBytes<F>;
}

template <>
struct Lanes<FormatQ4_0> {
  static void scales(const char* block, int v, float* scale, float*) {
    store(scale, lane_half(block, 0, v));
  }
  static void codes(const char* block, int, int v, vi* w) { lane_nibbles(block, 2, 0, v, w); }
};

template <>
struct Lanes<FormatQ4_1> {
  static void scales(const char* block, int v, float* scale, float* min) {
    store(scale, lane_half(block, 0, v));
    store(min, lane_half(block, 2, v));
  }
  static void codes(const char* block, int, int v, vi* w) { lane_nibbles(block, 4, 0, v, w); }
};

template <>
struct Lanes<FormatQ5_0> {
  static void scales(const char* block, int v, float* scale, float*) {
    store(scale, lane_half(block, 0, v));
  }
  static void codes(const char* block, int, int v, vi* w) {
    lane_nibbles(block, 2, 1, v, w);
    add_fifth_bits(lane_word(block, 2, 0, v), w);
  }
};

template <>
struct Lanes<FormatQ5_1> {
  static void scales(const char* block, int v, float* scale, float* min) {
    store(scale, lane_half(block, 0, v));
    store(min, lane_half(block, 2, v));
  }
  static void codes(const char* block, int, int v, vi* w) {
    lane_nibbles(block, 4, 1, v, w);
    add_fifth_bits(lane_word(block, 4, 0, v), w);
  }
};

template <>
struct Lanes<FormatQ8_0> {
  static void scales(const char* block, int v, float* scale, float*) {
    store(scale, lane_half(block, 0, v));
  }
  static void codes(const char* block, int, int v, vi* w) {
    for (int j = 0; j < 8; ++j) w[j] = lane_word(block, 2, j, v) ^ splat_bytes(128);
  }
};

template <>
struct Lanes<FormatIQ4_NL> {
  static void scales(const char* block, int v, float* scale, float*) {
    store(scale, lane_half(block, 0, v));
  }
  // Word j of the nibbles that are looked up.
  static vi nibbles(const char* block, int, int j, int v) { return lane_nibble(block, 2, 0, j, v); }
  static void codes(const char* block, int c, int v, vi* w) {
    for (int j = 0; j < 8; ++j) w[j] = look_up_lanes(kIQ4Codes, nibbles(block, c, j, v));
  }
};

template <>
struct Lanes<FormatMXFP4> {
  static void scales(const char* block, int v, float* scale, float*) {
    const vi e = lane_u8(block, 0, v);
    // The same as halved_e8m0.
    const vi bits = e < 2 ? (vi{} + 0x00200000) << e : (e - 1) << 23;
    store(scale, reinterpret_cast<vf>(bits));
  }
  static void codes(const char* block, int, int v, vi* w) {
    lane_nibbles(block, 1, 0, v, w);
    for (int j = 0; j < 8; ++j) w[j] = look_up_lanes(kE2M1Codes, w[j]);
  }
};

template <>
struct Lanes<FormatTQ1_0> {
  static void scales(const char* block, int v, float* scale, float*) {
    for (int g = 0; g < 8; ++g) store(scale + g * kPanelRows, lane_half(block, 0, v));
  }
  // A digit of each byte, as in FormatTQ1_0: the two low bytes of a lane are multiplied by
  // `low_power`, the two high bytes by `high_power`.
  static vi digit(vi bytes, int low_power, int high_power) {
    typedef uint16_t words __attribute__((vector_size(sizeof(vi))));
    const auto even = reinterpret_cast<words>(bytes & 0x00ff00ff);
    const auto odd = reinterpret_cast<words>(bytes >> 8 & 0x00ff00ff);
    const auto powers = reinterpret_cast<words>(vi{} + (low_power | high_power << 16));
    const auto thirds = [&](words x) { return (x * powers & 255) * 3 >> 8; };
    return reinterpret_cast<vi>(thirds(even)) | reinterpret_cast<vi>(thirds(odd)) << 8;
  }
  static void codes(const char* block, int c, int v, vi* w) {
    static constexpr int kPowers[5] = {1, 3, 9, 27, 81};
    const auto word = [&](int i) { return lane_word(block, 2, i, v); };
    for (int j = 0; j < 8; ++j) {
      if (c < 5) {
        w[j] = digit(word(j), kPowers[c], kPowers[c]);
      } else if (c < 7) {
        const int power = kPowers[2 * (c - 5) + j / 4];
        w[j] = digit(word(8 + j % 4), power, power);
      } else if (j < 4) {
        w[j] = digit(word(8 + j), kPowers[4], kPowers[4]);
      } else {
        w[j] = digit(word(12), kPowers[j - 4], kPowers[j - 4]);
      }
    }
  }
};

template <>
struct Lanes<FormatTQ2_0> {
  // Each byte holds codes of four chunks, one in each pair of bits.
  static constexpr int kHeader = 2, kPairWords = 16;
  static void scales(const char* block, int v, float* scale, float*) {
    const vf d = lane_half(block, 0, v);
    for (int g = 0; g < 8; ++g) store(scale + g * kPanelRows, d);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 2, 8 * (c / 4), c % 4 * 2, 3, v, w);
  }
};

template <>
struct Lanes<FormatI2_S> {
  static void scales(const char*, int, float* scale, float*) {
    for (int g = 0; g < 4; ++g) store(scale + g * kPanelRows, splat(1.0f));
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 0, 0, 6 - 2 * c, 3, v, w);
    // Code 3 means 0, as code 1 does.
    for (int j = 0; j < 8; ++j) w[j] = w[j] & ~((w[j] & w[j] << 1) & splat_bytes(2));
  }
};

// Whether few columns take the levels of F's nibbles in two parts: see few_columns.h.
template <typename F>
inline constexpr bool kSplit = kPairedDots && requires { &Lanes<F>::nibbles; };
inline constexpr int kSplitZero = 8;  // of the high part

template <typename F>
inline constexpr bool kHasLanes = requires { &Lanes<F>::codes; };

}  // namespace weft::WEFT_TARGET
