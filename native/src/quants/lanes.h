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

#include "core/processor.h"
#include "quants/formats.h"
#include "quants/quant_kernels.h"

#if defined(WEFT_PANELS)

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
#elif defined(WEFT_NEON)
  return vreinterpretq_s32_u32(vmovl_u16(load_as<uint16x4_t>(p)));
#else
  return reinterpret_cast<vi>(_mm256_cvtepu16_epi32(load_as<__m128i>(p)));
#endif
}
static inline vi lane_u8(const char* block, int at, int v) {
  const char* p = block + at * kPanelRows + v * kLanes;
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_cvtepu8_epi32(load_as<__m128i>(p)));
#elif defined(WEFT_NEON)
  uint32_t four;
  std::memcpy(&four, p, sizeof four);
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
#else
  return reinterpret_cast<vi>(
      _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#endif
}

// Shifts every byte right, then masks it.
static inline vi bits(vi v, int shift, int mask) {
#if defined(WEFT_NEON)
  const auto moved =
      reinterpret_cast<vi>(reinterpret_cast<u8x16>(v) >> static_cast<uint8_t>(shift));
  return mask == 255 >> shift ? moved : moved & splat_bytes(mask);
#else
  return v >> shift & splat_bytes(mask);
#endif
}

// low, and the bits of `v` that are in `mask` of a byte after a shift to the left (right where it
// is negative). No bit that counts leaves its byte.
static inline vi add_bits(vi low, vi v, int shift, int mask) {
#if defined(WEFT_NEON)
  if (shift < 0) {  // added while they are shifted: one instruction
    const auto wanted = reinterpret_cast<u8x16>(v & splat_bytes(mask << -shift));
    return reinterpret_cast<vi>(reinterpret_cast<u8x16>(low) +
                                (wanted >> static_cast<uint8_t>(-shift)));
  }
#endif
  const vi moved = shift > 0 ? v << shift : v >> -shift;
#if defined(__AVX512F__)
  constexpr int kOrAnd = 0xf8;  // a | (b & c)
  return reinterpret_cast<vi>(
      _mm512_ternarylogic_epi32(reinterpret_cast<__m512i>(low), reinterpret_cast<__m512i>(moved),
                                reinterpret_cast<__m512i>(splat_bytes(mask)), kOrAnd));
#else
  return low | (moved & splat_bytes(mask));
#endif
}

// Byte i of each lane, as a float.
static inline vf unsigned_byte(vi v, int i) {
#if defined(__AVX512BW__)
  if (i == 1 || i == 2) {
    // an index with its highest bit set gives 0
    const int none = static_cast<int>(0x80808000u) + i;
    const __m512i order = _mm512_set4_epi32(none + 12, none + 8, none + 4, none);
    return __builtin_convertvector(
        reinterpret_cast<vi>(_mm512_shuffle_epi8(reinterpret_cast<__m512i>(v), order)), vf);
  }
  if (i == 3) {
    return __builtin_convertvector(
        reinterpret_cast<vi>(_mm512_srli_epi32(reinterpret_cast<__m512i>(v), 24)), vf);
  }
#endif
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
#elif defined(WEFT_NEON)
  return vreinterpretq_s32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_s32(codes)));
#else
  const __m256i both = _mm256_broadcastsi128_si256(load_as<__m128i>(table));
  return reinterpret_cast<vi>(_mm256_shuffle_epi8(both, reinterpret_cast<__m256i>(codes)));
#endif
}

#if defined(WEFT_NEON)
// The level of each nibble of iq4_nl and iq4_xs, signed.
static inline vi look_up_levels(vi codes) {
  return vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(kIQ4Levels), vreinterpretq_u8_s32(codes)));
}
#endif

// How far ahead of its use memory is asked for. The hardware loses track inside the bigger blocks,
// whose words are not read in the order of their addresses. What follows a panel is the next one.
inline constexpr int64_t kAhead = 4608;

// Whether memory may be asked for in bursts. Zen 4 and its forerunners, which are told by what they
// lack of Zen 5, wait for the lines of a burst: they are asked for less at a time and less far
// ahead.
static inline bool takes_bursts() {
#if !defined(__x86_64__)
  return true;
#else
  static const bool takes = !processor().is_amd || processor().avx_vnni;
  return takes;
#endif
}

// In a loop in the order of addresses: unrolled, or shared out over the chunks, the bigger blocks
// were read half as fast on x86. On ARM unrolled, for its counts of instructions.
template <int64_t kBytes>
static inline void prefetch_lines(const char* p) {
#if defined(WEFT_NEON)
#pragma GCC unroll 128
#else
#pragma GCC unroll 1
#endif
  for (int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(p + line, 0, 3);
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

// Adds bit i of `word` to code i, as its bit 4.
static inline void add_fifth_bits(vi word, vi* w) {
#if defined(__AVX512BW__)
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    // byte i of the word four times; each time another bit of its halves is looked at
    const __m512i order = _mm512_add_epi8(_mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0),
                                          _mm512_set1_epi8(static_cast<char>(i)));
    const __m512i bytes = _mm512_shuffle_epi8(reinterpret_cast<__m512i>(word), order);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const __m512i each = _mm512_set1_epi32(half == 0 ? 0x08040201 : static_cast<int>(0x80402010));
      const auto codes = reinterpret_cast<__m512i>(w[2 * i + half]);
      w[2 * i + half] = reinterpret_cast<vi>(_mm512_mask_add_epi8(
          codes, _mm512_test_epi8_mask(bytes, each), codes, _mm512_set1_epi8(16)));
    }
  }
#elif defined(WEFT_NEON)
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t order = uint32x4_t{0, 0x04040404, 0x08080808, 0x0c0c0c0c} + 0x01010101u * i;
    const uint8x16_t bytes = vqtbl1q_u8(vreinterpretq_u8_s32(word), vreinterpretq_u8_u32(order));
    for (int half = 0; half < 2; ++half) {
      const uint8x16_t each =
          vreinterpretq_u8_u32(vdupq_n_u32(half == 0 ? 0x08040201 : 0x80402010));
      w[2 * i + half] |= vreinterpretq_s32_u8(vtstq_u8(bytes, each)) & splat_bytes(16);
    }
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
// than that of the file.
template <typename F>
inline constexpr int64_t kStoredBytes = sizeof(typename F::Block);
template <typename F>
  requires requires { typename Lanes<F>::Block; }
inline constexpr int64_t kStoredBytes<F> = sizeof(typename Lanes<F>::Block);

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
#if defined(WEFT_VNNI) || defined(WEFT_NEON)
template <typename F>
inline constexpr bool kSplit = false;
#else
template <typename F>
inline constexpr bool kSplit = requires { &Lanes<F>::nibbles; };
#endif
inline constexpr int kSplitZero = 8;  // of the high part

template <typename F>
inline constexpr bool kHasLanes = requires { &Lanes<F>::codes; };

}  // namespace weft::WEFT_TARGET

#endif  // WEFT_PANELS
