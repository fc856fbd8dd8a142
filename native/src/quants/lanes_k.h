// Lanes of the K-quants: blocks of 256 with a scale for each group of 16 or 32, in four to eight
// bits.
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
  static constexpr int kHigh = 0, kLow = 8, kScales = 24;  // words
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
    lane_fields(block, 2, kLow + 8 * (c / 4), c % 4 * 2, 3, v, w);
    add_plane(block, 2, kHigh, c, 2, v, w);
  }
  // The third bit of codes at the top of a byte would be outside.
  static constexpr int place(int c) { return c % 4 == 3 ? 0 : c % 4 * 2; }
  static void codes_in_place(const char* block, int c, int v, vi* w) {
    const int shift = place(c);
    lane_fields(block, 2, kLow + 8 * (c / 4), c % 4 * 2 - shift, 3 << shift, v, w);
    add_plane(block, 2, kHigh, c, 2 + shift, v, w);
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
    lane_fields(block, 4, 11 + 8 * (c / 2), c % 2 * 4, 15, v, w);
    add_plane(block, 4, 3, c, 4, v, w);
  }
};

template <>
struct Lanes<FormatQ6_K> {
  static constexpr int kScales = 0, kLow = 4, kHigh = 36;  // words
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
    lane_fields(block, 2, kLow + 16 * (c / 4) + 8 * (c % 2), c / 2 % 2 * 4, 15, v, w);
    for (int j = 0; j < 8; ++j) {
      w[j] = add_bits(w[j], lane_word(block, 2, kHigh + 8 * (c / 4) + j, v), 4 - c % 4 * 2, 48);
    }
  }
};

}  // namespace weft::WEFT_TARGET

#endif  // __AVX2__
