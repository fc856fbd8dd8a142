// Lanes of the K-quants: blocks of 256 with a scale for each group of 16 or 32, in four to eight
// bits. Codes of three, five and six bits are where whole_codes.h says.
#pragma once

#include "quants/lanes.h"

#if defined(__AVX2__)

namespace weft::WEFT_TARGET {

// The 6-bit scales and minima of q4_K and q5_K, packed as in k_quants.h.
struct PairScales {
  vf d, dmin;
  vi scales[2], mins[2];

  PairScales(const char* block, int v)
      : d(lane_half(block, 0, v)), dmin(vf{} - lane_half(block, 2, v)) {
    vi a[3];
    for (int i = 0; i < 3; ++i) a[i] = lane_word(block, 4, i, v);
    scales[0] = a[0] & splat_bytes(63);
    scales[1] = add_bits(bits(a[2], 0, 15), a[0], -2, 48);
    mins[0] = a[1] & splat_bytes(63);
    mins[1] = add_bits(bits(a[2], 4, 15), a[1], -2, 48);
  }
  vf scale(int g) const { return unsigned_byte(scales[g / 4], g % 4) * d; }
  vf min(int g) const { return unsigned_byte(mins[g / 4], g % 4) * dmin; }
};

template <>
struct Lanes<FormatQ2_K> {
  struct Scales {
    vf d, dmin;
    vi scales[4], mins[4];

    Scales(const char* block, int v)
        : d(lane_half(block, 0, v)), dmin(vf{} - lane_half(block, 2, v)) {
      for (int i = 0; i < 4; ++i) {
        const vi packed = lane_word(block, 4, i, v);
        scales[i] = bits(packed, 0, 15);
        mins[i] = bits(packed, 4, 15);
      }
    }
    vf scale(int g) const { return unsigned_byte(scales[g / 4], g % 4) * d; }
    vf min(int g) const { return unsigned_byte(mins[g / 4], g % 4) * dmin; }
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
    vi scales[4];

    Scales(const char* block, int v) : d(lane_half(block, 0, v)) {
      vi a[3];
      for (int i = 0; i < 3; ++i) a[i] = lane_word(block, 2, kScales + i, v);
      for (int i = 0; i < 4; ++i) {
        scales[i] = add_bits(bits(a[i % 2], i / 2 * 4, 15), a[2], 4 - 2 * i, 48);
      }
    }
    vf scale(int g) const { return (unsigned_byte(scales[g / 4], g % 4) - 32.0f) * d; }
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
    vi scales[4];

    Scales(const char* block, int v) : d(lane_half(block, 0, v)) {
      for (int i = 0; i < 4; ++i) scales[i] = lane_word(block, 2, kScales + i, v);
    }
    vf scale(int g) const { return signed_byte(scales[g / 4], g % 4) * d; }
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

}  // namespace weft::WEFT_TARGET

#endif  // __AVX2__
