// Lanes of the K-quants: blocks of 256 with a scale for each group of 16 or 32, in four to eight
// bits. Codes of three, five and six bits are where whole_codes.h says.
#pragma once

#include "quants/lane_steps.h"
#include "quants/lanes.h"

namespace weft::WEFT_TARGET {

// The 6-bit scales and minima of q4_K and q5_K, packed as in k_quants.h.
struct PairScales {
  vf d, low_d;
  Steps<8> steps, lows;

  PairScales() = default;
  PairScales(const char* block, int v)
      : d(lane_half(block, 0, v)), low_d(vf{} - lane_half(block, 2, v)) {
    vi a[3];
    for (int i = 0; i < 3; ++i) a[i] = lane_word(block, 4, i, v);
    steps.bytes[0] = a[0] & splat_bytes(63);
    steps.bytes[1] = add_bits(bits(a[2], 0, 15), a[0], -2, 48);
    lows.bytes[0] = a[1] & splat_bytes(63);
    lows.bytes[1] = add_bits(bits(a[2], 4, 15), a[1], -2, 48);
  }
  vf scale(int g) const { return steps.as_float(g) * d; }
  vf min(int g) const { return lows.as_float(g) * low_d; }
};

template <>
struct Lanes<FormatQ2_K> {
  struct Scales {
    vf d, low_d;
    Steps<16> steps, lows;

    Scales() = default;
    Scales(const char* block, int v)
        : d(lane_half(block, 0, v)), low_d(vf{} - lane_half(block, 2, v)) {
      for (int i = 0; i < 4; ++i) {
        const vi packed = lane_word(block, 4, i, v);
        steps.bytes[i] = bits(packed, 0, 15);
        lows.bytes[i] = bits(packed, 4, 15);
      }
    }
    vf scale(int g) const { return steps.as_float(g) * d; }
    vf min(int g) const { return lows.as_float(g) * low_d; }
  };
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<16>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 4, 4 + 8 * (c / 4), c % 4 * 2, 3, v, w);
  }
  static constexpr int place(int c) { return c % 4 * 2; }
  static void codes_in_place(const char* block, int c, int v, vi* w) {
    lane_fields(block, 4, 4 + 8 * (c / 4), 0, 3 << place(c), v, w);
  }
};

template <>
struct Lanes<FormatQ3_K> {
  static constexpr int kScales = 24;  // words
  struct Scales {
    vf d;
    Steps<16, 32> steps;

    Scales() = default;
    Scales(const char* block, int v) : d(lane_half(block, 0, v)) {
      vi a[3];
      for (int i = 0; i < 3; ++i) a[i] = lane_word(block, 2, kScales + i, v);
      for (int i = 0; i < 4; ++i) {
        steps.bytes[i] = add_bits(bits(a[i % 2], i / 2 * 4, 15), a[2], 4 - 2 * i, 48);
      }
    }
    vf scale(int g) const { return steps.as_float(g) * d; }
  };
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<16>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    if (c < 6) return lane_fields(block, 2, c / 2 * 8, c % 2 * 3, 7, v, w);
    lane_fields(block, 2, (c - 6) * 8, 6, 3, v, w);
    add_field(block, 2, 16, c == 6 ? -4 : -5, 4, v, w);
  }
  static constexpr int place(int c) { return c < 6 ? c % 2 * 3 : 0; }
  static void codes_in_place(const char* block, int c, int v, vi* w) {
    if (c >= 6) return codes(block, c, v, w);
    lane_fields(block, 2, c / 2 * 8, 0, 7 << place(c), v, w);
  }
};

template <>
struct Lanes<FormatQ4_K> {
  using Scales = PairScales;
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<8>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    lane_fields(block, 4, 3 + 8 * (c / 2), c % 2 * 4, 15, v, w);
  }
  static constexpr int place(int c) { return c % 2 * 4; }
  static void codes_in_place(const char* block, int c, int v, vi* w) {
    lane_fields(block, 4, 3 + 8 * (c / 2), 0, 15 << place(c), v, w);
  }
};

template <>
struct Lanes<FormatQ5_K> {
  using Scales = PairScales;
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<8>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    constexpr int kCodes = 3;  // words
    if (c < 5) return lane_fields(block, 4, kCodes + c * 8, 0, 31, v, w);
    lane_fields(block, 4, kCodes + (c - 5) * 8, 5, 7, v, w);
    if (c == 6) {
      add_field(block, 4, kCodes + 24, -4, 8, v, w);
      add_field(block, 4, kCodes + 32, -3, 16, v, w);
    } else {
      add_field(block, 4, kCodes + (c == 5 ? 24 : 32), -2, 24, v, w);
    }
  }
};

template <>
struct Lanes<FormatQ6_K> {
  static constexpr int kScales = 0, kCodes = 4;  // words
  struct Scales {
    vf d;
    Steps<16, 0, true> steps;

    Scales() = default;
    Scales(const char* block, int v) : d(lane_half(block, 0, v)) {
      for (int i = 0; i < 4; ++i) steps.bytes[i] = lane_word(block, 2, kScales + i, v);
    }
    vf scale(int g) const { return steps.as_float(g) * d; }
  };
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<16>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    const int half = kCodes + c / 4 * 24;
    if (c % 4 < 3) return lane_fields(block, 2, half + c % 4 * 8, 0, 63, v, w);
    lane_fields(block, 2, half, 6, 3, v, w);
    add_field(block, 2, half + 8, -4, 12, v, w);
    add_field(block, 2, half + 16, -2, 48, v, w);
  }
};

template <>
struct Lanes<FormatIQ4_XS> {
  struct Scales {
    vf d;
    Steps<8, 32, false, StepOrder::kTurns> steps;

    // Steps have 4 bits in one word, and 2 more in 16 bits: those of even groups, and of odd ones.
    Scales() = default;
    Scales(const char* block, int v) : d(lane_half(block, 0, v)) {
      const vi low = lane_word(block, 4, 0, v), high = lane_u16(block, 2, v);
      // of groups 0 to 3, twice, and of 4 to 7
      const vi low_byte = high & 255, high_byte = high & 0xff00;
      const vi spread = low_byte | low_byte << 8 | high_byte << 8 | high_byte << 16;
      for (int i = 0; i < 2; ++i) {
        const vi even = (i == 0 ? spread << 4 : spread << 2) & 0x00300030;
        const vi odd = (i == 0 ? spread : spread >> 2) & 0x30003000;
        steps.bytes[i] = bits(low, 4 * i, 15) | even | odd;
      }
    }
    vf scale(int g) const { return steps.as_float(g) * d; }
  };
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<8>(Scales(block, v), scale, min);
  }
  static vi nibbles(const char* block, int c, int j, int v) {
    return lane_nibble(block, 4, 1 + 4 * c, j, v);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    for (int j = 0; j < 8; ++j) w[j] = look_up_lanes(kIQ4Codes, nibbles(block, c, j, v));
  }
};

// Word j of the codes of chunk `c`; what else codes() would compute is not used.
template <typename F>
static inline vi lane_code(const char* block, int c, int j, int v) {
  if constexpr (kLaneDots && kSigned<F> && requires { &Lanes<F>::nibbles; }) {
    return look_up_levels(Lanes<F>::nibbles(block, c, j, v));
  }
  if constexpr (requires { &Lanes<F>::word; }) return Lanes<F>::word(block, c, j, v);
  vi w[8];
  Lanes<F>::codes(block, c, v, w);
  return kSigned<F> ? w[j] ^ splat_bytes(128) : w[j];
}

}  // namespace weft::WEFT_TARGET
