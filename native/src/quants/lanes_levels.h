// Lanes of the codebook types, whose panels have levels instead of codes (levels.h).
#pragma once

#include "kernels/simd/isa.h"
#include "quants/formats_iq.h"
#include "quants/levels.h"

#if defined(WEFT_PANELS)

#include "quants/lanes.h"

namespace weft::WEFT_TARGET {

inline constexpr int kLevelHeader = 2;  // bytes before the words

// The 4-bit steps of kSteps groups, and d.
template <int kSteps>
struct LevelSteps {
  vf d;
  vi words[kSteps / 8];

  LevelSteps(const char* block, int v) : d(lane_half(block, 0, v)) {
    for (int i = 0; i < kSteps / 8; ++i) words[i] = lane_word(block, kLevelHeader, i, v);
  }
  vf step(int g, int mask) const {
    return __builtin_convertvector(words[g / 8] >> g % 8 * 4 & mask, vf);
  }
};

// The table that codes of levels, with their sign in a bit of their own, are looked up in.
struct LevelTable {
  uint8_t of[16] = {};

  template <int kCount>
  constexpr LevelTable(const int8_t (&levels)[kCount], int sign, int zero) {
    for (int i = 0; i < kCount; ++i) {
      of[i] = static_cast<uint8_t>(zero + levels[i]);
      of[i | sign] = static_cast<uint8_t>(zero - levels[i]);
    }
  }
};

// iq2: three bits a level, in two planes.
template <class F, int kSteps>
struct OctalLanes {
  using Block = BlockOctals<kSteps>;
  struct Scales : LevelSteps<kSteps> {
    using LevelSteps<kSteps>::LevelSteps;
    vf scale(int g) const { return this->d * (this->step(g, 15) + 0.5f) * 0.25f; }
  };
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<F::kGroups>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    static constexpr LevelTable kTable(kLevelsIQ2, 4, F::kZero);
    constexpr int kWords = kSteps / 8;
    lane_fields(block, kLevelHeader, kWords + 8 * (c / 4), c % 4 * 2, 3, v, w);
    add_field(block, kLevelHeader, kWords + 16, 2 - c, 4, v, w);
    for (int j = 0; j < 8; ++j) w[j] = look_up_lanes(kTable.of, w[j]);
  }
};

template <>
struct Lanes<FormatIQ2_XXS> : OctalLanes<FormatIQ2_XXS, 8> {};
template <>
struct Lanes<FormatIQ2_XS> : OctalLanes<FormatIQ2_XS, 16> {};
template <>
struct Lanes<FormatIQ2_S> : OctalLanes<FormatIQ2_S, 16> {};

// iq3: four bits.
template <class F>
struct NibbleLanes {
  using Block = BlockNibbles;
  static void codes_of(const LevelTable& table, const char* block, int c, int v, vi* w) {
    lane_nibbles(block, kLevelHeader, 1 + 4 * c, v, w);
    for (int j = 0; j < 8; ++j) w[j] = look_up_lanes(table.of, w[j]);
  }
};

template <>
struct Lanes<FormatIQ3_XXS> : NibbleLanes<FormatIQ3_XXS> {
  struct Scales : LevelSteps<8> {
    using LevelSteps<8>::LevelSteps;
    vf scale(int g) const { return d * (step(g, 15) + 0.5f) * 0.5f; }
  };
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<8>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    static constexpr LevelTable kTable(kLevelsIQ3_XXS, 8, FormatIQ3_XXS::kZero);
    codes_of(kTable, block, c, v, w);
  }
};

template <>
struct Lanes<FormatIQ3_S> : NibbleLanes<FormatIQ3_S> {
  struct Scales : LevelSteps<8> {
    using LevelSteps<8>::LevelSteps;
    vf scale(int g) const { return d * (step(g, 15) * 2.0f + 1.0f); }
  };
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<8>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    static constexpr LevelTable kTable(kLevelsIQ3_S, 8, FormatIQ3_S::kZero);
    codes_of(kTable, block, c, v, w);
  }
};

// iq1, in eighths: 8 (level + 1), and 2 where the shift is +1, are the level and the shift + kZero.
static_assert(FormatIQ1_S::kZero == 9 && FormatIQ1_M::kZero == 9);

template <int kSteps>
struct TritScales : LevelSteps<kSteps> {
  using LevelSteps<kSteps>::LevelSteps;
  vf scale(int g) const { return this->d * (this->step(g, 7) * 2.0f + 1.0f) * 0.125f; }
};

// 8 (level + 1) of word `word` of chunk c.
static inline vi eight_trits(const char* block, int word, int c, int v) {
  const vi pairs = lane_word(block, kLevelHeader, word, v);
  const int place = c % 4 * 2 - 3;
  return (place < 0 ? pairs << -place : pairs >> place) & splat_bytes(24);
}

// 2 in every byte of the lanes where bit `bit` of `word` is not set.
static inline vi upward(vi word, int bit) { return ~(word << (31 - bit) >> 31) & splat_bytes(2); }

template <>
struct Lanes<FormatIQ1_S> {
  using Block = BlockTrits;
  using Scales = TritScales<8>;
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<8>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    const vi shift = upward(lane_word(block, kLevelHeader, 0, v), 4 * c + 3);
    for (int j = 0; j < 8; ++j) w[j] = eight_trits(block, 1 + 8 * (c / 4) + j, c, v) + shift;
  }
};

template <>
struct Lanes<FormatIQ1_M> {
  using Block = BlockShiftedTrits;
  using Scales = TritScales<16>;
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<16>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    const vi shifts = lane_word(block, kLevelHeader, 2, v);
    for (int k = 0; k < 4; ++k) {
      const vi shift = upward(shifts, 4 * c + k);
      for (int j = 2 * k; j < 2 * k + 2; ++j) {
        w[j] = eight_trits(block, 3 + 8 * (c / 4) + j, c, v) + shift;
      }
    }
  }
};

}  // namespace weft::WEFT_TARGET

#endif  // WEFT_PANELS
