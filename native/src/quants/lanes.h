// The integer view of formats.h for an interleaved panel (interleave.h), in vectors whose 32-bit
// lanes are rows. Each byte of formats.h becomes a byte of a lane, with the same bits. For the rows
// of vector `v`, Lanes<F> gives
//
//   codes   the eight vectors of chunk `c`; each lane has four neighbouring codes of its row
//   scales  the scales and minima of all groups of the block; groups are kPanelRows floats apart
#pragma once

#include "quants/formats.h"
#include "quants/quant_kernels.h"

#if defined(__AVX2__)

namespace weft::WEFT_TARGET {

inline constexpr int kLaneBytes = kLanes * 4;
inline constexpr int kWordBytes = 4 * kPanelRows;  // bytes of one word of all rows

static inline vi splat_bytes(int x) {
  return vi{} + static_cast<int32_t>(0x01010101u * static_cast<uint32_t>(x));
}

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
  const char* p = block + at * kPanelRows + v * kLanes * 2;
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_cvtepu16_epi32(load_as<__m256i>(p)));
#else
  return reinterpret_cast<vi>(_mm256_cvtepu16_epi32(load_as<__m128i>(p)));
#endif
}
static inline vi lane_u8(const char* block, int at, int v) {
  const char* p = block + at * kPanelRows + v * kLanes;
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_cvtepu8_epi32(load_as<__m128i>(p)));
#else
  return reinterpret_cast<vi>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
}

// Shifts every byte right, then masks it; masks every byte, then shifts it left.
static inline vi bits(vi v, int shift, int mask) { return v >> shift & splat_bytes(mask); }
static inline vi bits_up(vi v, int mask, int shift) { return (v & splat_bytes(mask)) << shift; }

// Byte i of each lane, as a float.
static inline vf unsigned_byte(vi v, int i) {
  return __builtin_convertvector(v >> 8 * i & 255, vf);
}
static inline vf signed_byte(vi v, int i) {
  return __builtin_convertvector(v << (24 - 8 * i) >> 24, vf);
}

// table[code] for each byte, which is 0..15.
static inline vi look_up_lanes(const uint8_t* table, vi codes) {
#if defined(__AVX512BW__)
  const __m512i all = _mm512_broadcast_i32x4(load_as<__m128i>(table));
  return reinterpret_cast<vi>(_mm512_shuffle_epi8(all, reinterpret_cast<__m512i>(codes)));
#else
  const __m256i both = _mm256_broadcastsi128_si256(load_as<__m128i>(table));
  return reinterpret_cast<vi>(_mm256_shuffle_epi8(both, reinterpret_cast<__m256i>(codes)));
#endif
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

// Adds bit `bit` of each byte of the eight words from `word` on to the codes, as their bit `to`.
static inline void add_plane(const char* block, int header, int word, int bit, int to, int v,
                             vi* w) {
  for (int j = 0; j < 8; ++j) {
    w[j] |= bits_up(lane_word(block, header, word + j, v) >> bit, 1, to);
  }
}

// Adds bit i of `word` to code i, as its bit 4.
static inline void add_fifth_bits(vi word, vi* w) {
#if defined(__AVX512F__)
  for (int j = 0; j < 8; ++j) {
    const vi four = word >> 4 * j & 15;
    // The products move bit i of the four bits to byte i.
    w[j] |= ((four | four << 7 | four << 14 | four << 21) & splat_bytes(1)) << 4;
  }
#else
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    // byte i of the word four times; each time another bit of its halves is looked at
    const __m256i order = _mm256_add_epi8(_mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c,
                                                            0, 0x04040404, 0x08080808, 0x0c0c0c0c),
                                          _mm256_set1_epi8(static_cast<char>(i)));
    const __m256i bytes = _mm256_shuffle_epi8(reinterpret_cast<__m256i>(word), order);
    for (int half = 0; half < 2; ++half) {
      const __m256i each = _mm256_set1_epi32(half == 0 ? 0x08040201 : static_cast<int>(0x80402010));
      const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
      w[2 * i + half] |= reinterpret_cast<vi>(set) & splat_bytes(16);
    }
  }
#endif
}

// The 6-bit scales and minima of q4_K and q5_K, packed as in k_quants.h.
static inline void lane_pairs(const char* block, int v, float* scale, float* min) {
  const vf d = lane_half(block, 0, v);
  const vf dmin = vf{} - lane_half(block, 2, v);
  vi a[3];
  for (int i = 0; i < 3; ++i) a[i] = lane_word(block, 4, i, v);
  const vi scales[2] = {a[0] & splat_bytes(63), bits(a[2], 0, 15) | bits(a[0], 2, 48)};
  const vi mins[2] = {a[1] & splat_bytes(63), bits(a[2], 4, 15) | bits(a[1], 2, 48)};
  for (int g = 0; g < 8; ++g) {
    store(scale + g * kPanelRows, unsigned_byte(scales[g / 4], g % 4) * d);
    store(min + g * kPanelRows, unsigned_byte(mins[g / 4], g % 4) * dmin);
  }
}

// ---- the formats

template <typename F>
struct Lanes {};

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
struct Lanes<FormatQ2_K> {
  static void scales(const char* block, int v, float* scale, float* min) {
    const vf d = lane_half(block, 0, v);
    const vf dmin = vf{} - lane_half(block, 2, v);
    for (int g = 0; g < 16; ++g) {
      const vi packed = lane_word(block, 4, g / 4, v);
      store(scale + g * kPanelRows, unsigned_byte(bits(packed, 0, 15), g % 4) * d);
      store(min + g * kPanelRows, unsigned_byte(bits(packed, 4, 15), g % 4) * dmin);
    }
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 4, 4 + 8 * (c / 4), c % 4 * 2, 3, v, w);
  }
};

template <>
struct Lanes<FormatQ3_K> {
  static constexpr int kHigh = 0, kLow = 8, kScales = 24;  // words
  static void scales(const char* block, int v, float* scale, float*) {
    const vf d = lane_half(block, 0, v);
    vi a[3];
    for (int i = 0; i < 3; ++i) a[i] = lane_word(block, 2, kScales + i, v);
    for (int g = 0; g < 16; ++g) {
      const int quarter = g / 4;
      const vi low = bits(a[quarter % 2], quarter / 2 * 4, 15);
      const vi both = low | bits_up(a[2] >> 2 * quarter, 3, 4);
      store(scale + g * kPanelRows, (unsigned_byte(both, g % 4) - 32.0f) * d);
    }
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 2, kLow + 8 * (c / 4), c % 4 * 2, 3, v, w);
    add_plane(block, 2, kHigh, c, 2, v, w);
  }
};

template <>
struct Lanes<FormatQ4_K> {
  static void scales(const char* block, int v, float* scale, float* min) {
    lane_pairs(block, v, scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 4, 3 + 8 * (c / 2), c % 2 * 4, 15, v, w);
  }
};

template <>
struct Lanes<FormatQ5_K> {
  static void scales(const char* block, int v, float* scale, float* min) {
    lane_pairs(block, v, scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 4, 11 + 8 * (c / 2), c % 2 * 4, 15, v, w);
    add_plane(block, 4, 3, c, 4, v, w);
  }
};

template <>
struct Lanes<FormatQ6_K> {
  static constexpr int kScales = 0, kLow = 4, kHigh = 36;  // words
  static void scales(const char* block, int v, float* scale, float*) {
    const vf d = lane_half(block, 0, v);
    for (int g = 0; g < 16; ++g) {
      const vi packed = lane_word(block, 2, kScales + g / 4, v);
      store(scale + g * kPanelRows, signed_byte(packed, g % 4) * d);
    }
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 2, kLow + 16 * (c / 4) + 8 * (c % 2), c / 2 % 2 * 4, 15, v, w);
    for (int j = 0; j < 8; ++j) {
      w[j] |= bits_up(lane_word(block, 2, kHigh + 8 * (c / 4) + j, v) >> c % 4 * 2, 3, 4);
    }
  }
};

template <>
struct Lanes<FormatIQ4_NL> {
  static void scales(const char* block, int v, float* scale, float*) {
    store(scale, lane_half(block, 0, v));
  }
  static void codes(const char* block, int, int v, vi* w) {
    lane_nibbles(block, 2, 0, v, w);
    for (int j = 0; j < 8; ++j) w[j] = look_up_lanes(kIQ4Codes, w[j]);
  }
};

template <>
struct Lanes<FormatIQ4_XS> {
  static void scales(const char* block, int v, float* scale, float*) {
    const vf d = lane_half(block, 0, v);
    const vi high = lane_u16(block, 2, v);
    const vi low = lane_word(block, 4, 0, v);
    for (int g = 0; g < 8; ++g) {
      const vi both = (low >> 4 * g & 15) | (high >> 2 * g & 3) << 4;
      store(scale + g * kPanelRows, (__builtin_convertvector(both, vf) - 32.0f) * d);
    }
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_nibbles(block, 4, 1 + 4 * c, v, w);
    for (int j = 0; j < 8; ++j) w[j] = look_up_lanes(kIQ4Codes, w[j]);
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

template <typename F>
inline constexpr bool kHasLanes = requires { &Lanes<F>::codes; };

}  // namespace weft::WEFT_TARGET

#endif  // __AVX2__
