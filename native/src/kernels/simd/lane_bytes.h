// Words on the four bytes of each lane, for panels whose rows are lanes.
#pragma once

#include "kernels/simd/bytes.h"

#if defined(WEFT_PANELS)

namespace weft::WEFT_TARGET {

static inline vi splat_bytes(int x) {
  return vi{} + static_cast<int32_t>(0x01010101u * static_cast<uint32_t>(x));
}

// Widens kLanes unsigned numbers of 16 bits, or of 8.
static inline vi widen_u16(const char* p) {
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_cvtepu16_epi32(load_as<__m256i>(p)));
#elif defined(WEFT_NEON)
  return vreinterpretq_s32_u32(vmovl_u16(load_as<uint16x4_t>(p)));
#else
  return reinterpret_cast<vi>(_mm256_cvtepu16_epi32(load_as<__m128i>(p)));
#endif
}
static inline vi widen_u8(const char* p) {
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

// Byte i of each lane.
static inline vi byte_number(vi v, int i) {
#if defined(WEFT_NEON)
  if (i == 3) return reinterpret_cast<vi>(reinterpret_cast<vu>(v) >> 24);
  if (i > 0) {
    // an index beyond the vector gives 0
    const vu order = vu{0, 4, 8, 12} + (0xffffff00u + static_cast<uint32_t>(i));
    return vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(v), vreinterpretq_u8_u32(order)));
  }
#endif
  return v >> 8 * i & 255;
}

// Bytes `first` and `second` of each lane as 16-bit numbers, unsigned or (kInHigh) as high bytes.
template <bool kInHigh = false>
static inline vi byte_pair(vi v, int first, int second) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  const int none = static_cast<int>(0x80008000u);
  const int places = kInHigh ? first << 8 | second << 24 | 0x00800080 : first | second << 16 | none;
  const int lane = kInHigh ? 0x04000400 : 0x00040004;
  const __m256i order =
      _mm256_setr_epi32(places, places + lane, places + 2 * lane, places + 3 * lane, places,
                        places + lane, places + 2 * lane, places + 3 * lane);
  return reinterpret_cast<vi>(_mm256_shuffle_epi8(reinterpret_cast<__m256i>(v), order));
#else
  const int up = kInHigh ? 8 : 0;
  return (v >> 8 * first & 255) << up | (v >> 8 * second & 255) << (16 + up);
#endif
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

// The bytes of `b` where bit `bit` of a byte of `choice` is set, else those of `a`.
static inline vi choose_bytes(vi a, vi b, vi choice, int bit) {
#if defined(__AVX512BW__)
  const __m512i set = _mm512_set1_epi8(static_cast<char>(1 << bit));
  return reinterpret_cast<vi>(
      _mm512_mask_blend_epi8(_mm512_test_epi8_mask(reinterpret_cast<__m512i>(choice), set),
                             reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(WEFT_NEON)
  const uint8x16_t set = vtstq_u8(vreinterpretq_u8_s32(choice), vdupq_n_u8(1 << bit));
  return vreinterpretq_s32_u8(vbslq_u8(set, vreinterpretq_u8_s32(b), vreinterpretq_u8_s32(a)));
#else
  // the top bit of a byte chooses
  return reinterpret_cast<vi>(_mm256_blendv_epi8(reinterpret_cast<__m256i>(a),
                                                 reinterpret_cast<__m256i>(b),
                                                 reinterpret_cast<__m256i>(choice << (7 - bit))));
#endif
}

// table[code] for each byte, which is 0..31, or 0..63.
static inline vi look_up_32_lanes(const uint8_t* table, vi codes) {
#if defined(WEFT_NEON)
  return vreinterpretq_s32_u8(vqtbl2q_u8(vld1q_u8_x2(table), vreinterpretq_u8_s32(codes)));
#else
  // shuffles ignore the bits 4 to 6 of a number
  return choose_bytes(look_up_lanes(table, codes), look_up_lanes(table + 16, codes), codes, 4);
#endif
}
static inline vi look_up_64_lanes(const uint8_t* table, vi codes) {
#if defined(WEFT_NEON)
  return vreinterpretq_s32_u8(vqtbl4q_u8(vld1q_u8_x4(table), vreinterpretq_u8_s32(codes)));
#else
  return choose_bytes(look_up_32_lanes(table, codes), look_up_32_lanes(table + 32, codes), codes,
                      5);
#endif
}

// Sums and differences byte by byte, without a carry from one to the next.
typedef uint8_t LaneBytes __attribute__((vector_size(sizeof(vi))));
static inline vi add_each(vi a, vi b) {
  return reinterpret_cast<vi>(reinterpret_cast<LaneBytes>(a) + reinterpret_cast<LaneBytes>(b));
}
static inline vi less_each(vi a, vi b) {
  return reinterpret_cast<vi>(reinterpret_cast<LaneBytes>(a) - reinterpret_cast<LaneBytes>(b));
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

}  // namespace weft::WEFT_TARGET

#endif  // WEFT_PANELS
