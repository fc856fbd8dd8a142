// Lanes of ik_llama.cpp's types, whose panels have the fields of the blocks of formats_ik.h.
//
// A level is looked up in the first table of its width; what the second table has more is added
// where the group says so. A trellis computes the four levels of a word at once. Steps are signed
// bytes. With dot products of signed bytes levels are signed too, else they are levels + 128.
#pragma once

#include "kernels/simd/isa.h"
#include "quants/formats_ik.h"

#if defined(WEFT_PANELS)

#include "quants/lanes_k.h"

namespace weft::WEFT_TARGET {

// ---- bits of lanes, which have no more than 16, as bytes

// Bits 0 to 3 in bytes 0 to 3, and bits 0, 2, 4 and 6.
static inline vi four_ones(vi v) {
  const vi two = (v | v << 14) & 0x00030003;
  return (two | two << 7) & splat_bytes(1);
}
static inline vi every_second_one(vi v) {
  const vi two = (v | v << 12) & 0x00050005;
  return (two | two << 6) & splat_bytes(1);
}

// The same of pairs of bits.
static inline vi four_pairs(vi v) {
  const vi two = (v | v << 12) & 0x000f000f;
  return (two | two << 6) & splat_bytes(3);
}
static inline vi every_second_pair(vi v) {
  const vi two = (v | v << 8) & 0x00330033;
  return (two | two << 4) & splat_bytes(3);
}

// All bits where bit `bit` of a lane is set, else none.
static inline vi where_set(vi v, int bit) { return v << (31 - bit) >> 31; }

// ---- what all have in common

// `Own` has the steps of groups (`put_steps`), their order (kOrder), and word j of the levels of a
// chunk (`level`).
template <class F, class Own>
struct SteppedLanes {
  struct Scales {
    vf d;
    Steps<F::kGroups, 0, true, Own::kOrder> steps;

    Scales() = default;
    Scales(const char* block, int v) {
      if constexpr (sizeof(F::Block::d) == 4) {
        d = load_as<vf>(block + v * kLaneBytes);
      } else {
        d = lane_half(block, 0, v);
      }
      Own::put_steps(block, v, steps.bytes);
    }
    vf scale(int g) const { return steps.as_float(g) * d; }
  };
  static void scales(const char* block, int v, float* scale, float* min) {
    store_scales<F::kGroups>(Scales(block, v), scale, min);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    for (int j = 0; j < 8; ++j) w[j] = Own::template level<false>(block, c, j, v);
  }
  // Word j of the codes, in the form that products take.
  static vi word(const char* block, int c, int j, int v) {
    return Own::template level<kSigned<F>>(block, c, j, v);
  }
};

// Levels + 128, or signed levels.
template <int kCount>
struct LaneTable {
  alignas(16) uint8_t of[kCount] = {};

  constexpr LaneTable(const uint8_t (&codes)[kCount], bool is_signed) {
    for (int i = 0; i < kCount; ++i) {
      of[i] = static_cast<uint8_t>(is_signed ? codes[i] ^ 128 : codes[i]);
    }
  }
};

template <const auto& kCodes, bool kAsSigned>
static inline vi look_up_level(vi numbers) {
  constexpr int kCount = sizeof kCodes;
  static constexpr LaneTable<kCount> kTable(kCodes, kAsSigned);
  if constexpr (kCount == 64) {
    return look_up_64_lanes(kTable.of, numbers);
  } else if constexpr (kCount == 32) {
    return look_up_32_lanes(kTable.of, numbers);
  } else {
    return look_up_lanes(kTable.of, numbers);
  }
}

// Two tables of levels. `Own` has the number of a level in its table (`number`), and all bits where
// a group takes the second one (`second`).
template <class F, class Own, const auto& kCodes, int kMore>
struct UnevenLanes : SteppedLanes<F, Own> {
  template <bool kAsSigned>
  static vi level(const char* block, int c, int j, int v) {
    constexpr int kPer = kGroupsPerChunk<F>;
    const vi more = Own::second(block, c * kPer + j * kPer / 8, v) & splat_bytes(kMore);
    return add_each(look_up_level<kCodes, kAsSigned>(Own::number(block, c, j, v)), more);
  }
};

// Steps whose bits are a nibble and `high`, less kZero: of groups 2i in byte i of the first, of the
// others in the second vector.
template <int kZero>
static inline void put_turns(vi nibbles, vi even, vi odd, vi* bytes) {
  bytes[0] = less_each(bits(nibbles, 0, 15) | even, splat_bytes(kZero));
  bytes[1] = less_each(bits(nibbles, 4, 15) | odd, splat_bytes(kZero));
}

// Word j of chunk c of planes of two bits and of four bits from word `first` on.
static inline vi lane_pair(const char* block, int header, int first, int c, int j, int v) {
  return bits(lane_word(block, header, first + 8 * (c / 4) + j, v), c % 4 * 2, 3);
}
static inline vi lane_four(const char* block, int header, int first, int c, int j, int v) {
  return bits(lane_word(block, header, first + 8 * (c / 2) + j, v), c % 2 * 4, 15);
}

// ---- uneven levels; numbers behind the header are those of words of four bytes

template <>
struct Lanes<FormatIQ2_K> : UnevenLanes<FormatIQ2_K, Lanes<FormatIQ2_K>, kIQ2Codes, kMoreIQ2> {
  static constexpr StepOrder kOrder = StepOrder::kTurns;
  static void put_steps(const char* block, int v, vi* bytes) {
    for (int h = 0; h < 2; ++h) put_turns<8>(lane_word(block, 4, h, v), vi{}, vi{}, bytes + 2 * h);
  }
  static vi number(const char* block, int c, int j, int v) {
    return lane_pair(block, 4, 2, c, j, v);
  }
  static vi second(const char* block, int g, int v) { return where_set(lane_u16(block, 2, v), g); }
};

template <>
struct Lanes<FormatIQ2_KS> : UnevenLanes<FormatIQ2_KS, Lanes<FormatIQ2_KS>, kIQ2Codes, kMoreIQ2> {
  static constexpr StepOrder kOrder = StepOrder::kTurns;
  static void put_steps(const char* block, int v, vi* bytes) {
    const vi high = lane_u16(block, 2, v) >> 8;
    put_turns<16>(lane_word(block, 4, 0, v), every_second_one(high) << 4,
                  every_second_one(high >> 1) << 4, bytes);
  }
  static vi number(const char* block, int c, int j, int v) {
    return lane_pair(block, 4, 1, c, j, v);
  }
  static vi second(const char* block, int g, int v) { return where_set(lane_u16(block, 2, v), g); }
};

template <>
struct Lanes<FormatIQ3_K> : UnevenLanes<FormatIQ3_K, Lanes<FormatIQ3_K>, kIQ3Codes, kMoreIQ3> {
  static constexpr StepOrder kOrder = StepOrder::kTurns;
  static void put_steps(const char* block, int v, vi* bytes) {
    const vi signs = lane_u16(block, 4, v);
    for (int i = 0; i < 4; ++i) {
      const vi nibbles = lane_word(block, 6, i / 2, v);
      const vi step = bits(nibbles, i % 2 * 4, 15) << 1 | splat_bytes(1);
      const vi minus = less_each(vi{}, every_second_one(signs >> (i / 2 * 8 + i % 2)));
      bytes[i] = less_each(step ^ minus, minus);
    }
  }
  static vi number(const char* block, int c, int j, int v) {
    return add_bits(lane_pair(block, 6, 2, c, j, v), lane_word(block, 6, 18 + j, v), 2 - c, 4);
  }
  static vi second(const char* block, int g, int v) { return where_set(lane_u16(block, 2, v), g); }
};

template <>
struct Lanes<FormatIQ3_KS> : UnevenLanes<FormatIQ3_KS, Lanes<FormatIQ3_KS>, kIQ3Codes, kMoreIQ3> {
  static constexpr StepOrder kOrder = StepOrder::kRuns;
  static void put_steps(const char* block, int v, vi* bytes) {
    const vi high = lane_u16(block, 2, v);
    put_turns<16>(lane_word(block, 4, 0, v), four_ones(high) << 4, four_ones(high >> 4) << 4,
                  bytes);
  }
  static vi number(const char* block, int c, int j, int v) {
    return add_bits(lane_pair(block, 4, 1, c, j, v), lane_word(block, 4, 17 + j, v), 2 - c, 4);
  }
  static vi second(const char* block, int g, int v) {
    return where_set(lane_u16(block, 2, v), 8 + g);
  }
};

// The steps of iq4_k and iq5_k.
static inline void put_six_bits(const char* block, int v, vi* bytes) {
  const vi high = lane_word(block, 4, 0, v);
  for (int h = 0; h < 2; ++h) {
    const vi pairs = high >> 16 * h & 0xffff;
    put_turns<32>(lane_word(block, 4, 1 + h, v), every_second_pair(pairs) << 4,
                  every_second_pair(pairs >> 2) << 4, bytes + 2 * h);
  }
}

template <>
struct Lanes<FormatIQ4_K> : UnevenLanes<FormatIQ4_K, Lanes<FormatIQ4_K>, kIQ4Codes, kMoreIQ4> {
  static constexpr StepOrder kOrder = StepOrder::kTurns;
  static void put_steps(const char* block, int v, vi* bytes) { put_six_bits(block, v, bytes); }
  static vi number(const char* block, int c, int j, int v) {
    return lane_nibble(block, 4, 3 + 4 * c, j, v);
  }
  static vi second(const char* block, int g, int v) { return where_set(lane_u16(block, 2, v), g); }
};

template <>
struct Lanes<FormatIQ5_K> : UnevenLanes<FormatIQ5_K, Lanes<FormatIQ5_K>, kIQ5Codes, kMoreIQ5> {
  static constexpr StepOrder kOrder = StepOrder::kTurns;
  static void put_steps(const char* block, int v, vi* bytes) { put_six_bits(block, v, bytes); }
  static vi number(const char* block, int c, int j, int v) {
    return add_bits(lane_four(block, 4, 3, c, j, v), lane_word(block, 4, 35 + j, v), 4 - c, 16);
  }
  static vi second(const char* block, int g, int v) { return where_set(lane_u16(block, 2, v), g); }
};

template <>
struct Lanes<FormatIQ6_K> : UnevenLanes<FormatIQ6_K, Lanes<FormatIQ6_K>, kIQ6Codes, kMoreIQ6> {
  static constexpr StepOrder kOrder = StepOrder::kRuns;
  static void put_steps(const char* block, int v, vi* bytes) {
    for (int i = 0; i < 4; ++i) bytes[i] = lane_word(block, 4, i, v);
  }
  static vi number(const char* block, int c, int j, int v) {
    const vi high = lane_word(block, 4, 36 + 8 * (c / 4) + j, v);
    return add_bits(lane_four(block, 4, 4, c, j, v), high, 4 - c % 4 * 2, 48);
  }
  static vi second(const char* block, int g, int v) { return where_set(lane_u16(block, 2, v), g); }
};

// The steps of iq4_ks and iq5_ks, whose lowest bits choose the table.
static inline void put_odd_steps(const char* block, int v, vi* bytes) {
  for (int i = 0; i < 2; ++i) {
    bytes[i] = less_each(lane_word(block, 4, i, v) & splat_bytes(0xfe), splat_bytes(127));
  }
}
static inline vi lowest_bit(const char* block, int g, int v) {
  return where_set(lane_word(block, 4, g / 4, v), 8 * (g % 4));
}

template <>
struct Lanes<FormatIQ4_KS> : UnevenLanes<FormatIQ4_KS, Lanes<FormatIQ4_KS>, kIQ4Codes, kMoreIQ4> {
  static constexpr StepOrder kOrder = StepOrder::kRuns;
  static void put_steps(const char* block, int v, vi* bytes) { put_odd_steps(block, v, bytes); }
  static vi number(const char* block, int c, int j, int v) {
    return lane_nibble(block, 4, 2 + 4 * c, j, v);
  }
  static vi second(const char* block, int g, int v) { return lowest_bit(block, g, v); }
};

template <>
struct Lanes<FormatIQ5_KS> : UnevenLanes<FormatIQ5_KS, Lanes<FormatIQ5_KS>, kIQ5Codes, kMoreIQ5> {
  static constexpr StepOrder kOrder = StepOrder::kRuns;
  static void put_steps(const char* block, int v, vi* bytes) { put_odd_steps(block, v, bytes); }
  static vi number(const char* block, int c, int j, int v) {
    return add_bits(lane_four(block, 4, 2, c, j, v), lane_word(block, 4, 34 + j, v), 4 - c, 16);
  }
  static vi second(const char* block, int g, int v) { return lowest_bit(block, g, v); }
};

// A number names two neighbouring levels.
template <>
struct Lanes<FormatIQ2_KL> : SteppedLanes<FormatIQ2_KL, Lanes<FormatIQ2_KL>> {
  static constexpr StepOrder kOrder = StepOrder::kRuns;
  static void put_steps(const char* block, int v, vi* bytes) {
    const vi high = lane_u16(block, 2, v);
    put_turns<32>(lane_word(block, 4, 0, v), four_pairs(high & 255) << 4,
                  four_pairs(high >> 8) << 4, bytes);
  }
  template <bool kAsSigned>
  static vi level(const char* block, int c, int j, int v) {
    const vi low = bits(lane_word(block, 4, 1 + 4 * (c / 2) + j / 2, v), c % 2 * 4, 15);
    const vi numbers = add_bits(low, lane_word(block, 4, 17 + j / 2, v), 4 - c, 16);
    const vi first = look_up_level<kIQ2KLFirst, kAsSigned>(numbers);
    const vi second = look_up_level<kIQ2KLSecond, kAsSigned>(numbers);
    const vi even = (first & 0x00ff00ff) | (second & 0x00ff00ff) << 8;
    const vi odd = (first >> 8 & 0x00ff00ff) | (second & ~0x00ff00ff);
    if (j % 2 == 0) return (even & 0xffff) | odd << 16;
    return (even >> 16 & 0xffff) | (odd & ~0xffff);
  }
};

// ---- trellises

// Four levels, beginning with level `first` of the seed.
template <bool kAsSigned>
static inline vi trellis_word(vi seed, int first) {
  const vu state = reinterpret_cast<vu>(seed) + 4096u;
  vi sums = {};
#pragma GCC unroll 4
  for (int i = 3; i >= 0; --i) {
    const auto fields =
        reinterpret_cast<vi>(state * kTrellisPowers.of[first + i]) & splat_bytes(63);
    sums = dot_words(sums << 8, fields, splat_bytes(1));
  }
  return kAsSigned ? less_each(sums, splat_bytes(126)) : sums + splat_bytes(2);
}

// Eight levels of each of four seeds: `Own` has the seed.
template <class F, class Own>
struct TrellisLanes : SteppedLanes<F, Own> {
  static constexpr StepOrder kOrder = StepOrder::kRuns;
  template <bool kAsSigned>
  static vi level(const char* block, int c, int j, int v) {
    return trellis_word<kAsSigned>(Own::seed(block, c, j / 2, v), j % 2 * 4);
  }
};

// The 16 bits of seed k of chunk c.
static inline vi lane_seed(const char* block, int c, int k, int v) {
  const vi two = lane_word(block, 4, 1 + 2 * c + k / 2, v);
  return k % 2 == 0 ? two & 0xffff : reinterpret_cast<vi>(reinterpret_cast<vu>(two) >> 16);
}

template <>
struct Lanes<FormatIQ1_KT> : TrellisLanes<FormatIQ1_KT, Lanes<FormatIQ1_KT>> {
  static void put_steps(const char* block, int v, vi* bytes) {
    for (int i = 0; i < 2; ++i) {
      bytes[i] = look_up_levels(bits(lane_word(block, 4, i, v), 0, 15));
    }
  }
  static vi seed(const char* block, int c, int k, int v) {
    const vi low = lane_word(block, 4, 2 + c, v) >> 8 * k & 255;
    const vi high = lane_word(block, 4, 10 + c % 4, v) >> (8 * k + c / 4 * 4) & 15;
    const vi top = lane_word(block, 4, c / 4, v) >> (8 * (c % 4) + 4 + k) & 1;
    return low | high << 8 | top << 12;
  }
};

template <>
struct Lanes<FormatIQ2_KT> : TrellisLanes<FormatIQ2_KT, Lanes<FormatIQ2_KT>> {
  static void put_steps(const char* block, int v, vi* bytes) {
    const vi nibbles = lane_word(block, 4, 0, v);
    for (int i = 0; i < 2; ++i) bytes[i] = look_up_levels(bits(nibbles, 4 * i, 15));
  }
  static vi seed(const char* block, int c, int k, int v) { return lane_seed(block, c, k, v); }
};

// Magnitudes with signs of their own.
template <>
struct Lanes<FormatIQ3_KT> : SteppedLanes<FormatIQ3_KT, Lanes<FormatIQ3_KT>> {
  static constexpr StepOrder kOrder = StepOrder::kRuns;
  static void put_steps(const char* block, int v, vi* bytes) {
    put_turns<0>(lane_word(block, 4, 0, v), vi{}, vi{}, bytes);
  }
  template <bool kAsSigned>
  static vi level(const char* block, int c, int j, int v) {
    const vi made = trellis_word<true>(lane_seed(block, c, j / 2, v), j % 2 * 4);
    // a level changes its sign where that differs from its bit
    const vi differs = bits(made, 7, 1) ^ bits(lane_word(block, 4, 17 + j, v), c, 1);
    const vi minus = less_each(vi{}, differs);
    const vi level = less_each(made ^ minus, minus);
    return kAsSigned ? level : level ^ splat_bytes(128);
  }
};

// Four levels of each of eight seeds.
template <>
struct Lanes<FormatIQ4_KT> : SteppedLanes<FormatIQ4_KT, Lanes<FormatIQ4_KT>> {
  static constexpr StepOrder kOrder = StepOrder::kRuns;
  static void put_steps(const char* block, int v, vi* bytes) {
    for (int i = 0; i < 2; ++i) {
      vi all = {};
      for (int k = 0; k < 4; ++k) all |= (lane_word(block, 4, 4 * i + k, v) & 255) << 8 * k;
      bytes[i] = less_each(bits(all, 1, 127), splat_bytes(64));
    }
  }
  template <bool kAsSigned>
  static vi level(const char* block, int c, int j, int v) {
    const vi word = lane_word(block, 4, c, v);
    const int at = j % 4 * 8;
    const vi low = lane_word(block, 4, 8 + 2 * c + j / 4, v) >> at & 255;
    const vi high = lane_word(block, 4, 24 + 2 * (c % 4) + j / 4, v) >> (at + c / 4 * 4) & 15;
    const vi top = word >> (8 + 3 * j) & 7;
    return trellis_word<kAsSigned>((low | high << 8 | top << 12) + ((word & 1) << 15), 0);
  }
};

// ---- others

template <>
struct Lanes<FormatIQ2_BN> {
  static void scales(const char* block, int v, float* scale, float*) {
    const vf d = load_as<vf>(block + v * kLaneBytes);
    for (int g = 0; g < 2; ++g) store(scale + g * kPanelRows, d);
  }
  static void codes(const char* block, int c, int v, vi* w) {
    for (int j = 0; j < 8; ++j) w[j] = bits(lane_word(block, 4, j % 4, v), 4 * c + j / 4 * 2, 3);
  }
};

template <>
struct Lanes<FormatQ6_0> {
  static void scales(const char* block, int v, float* scale, float*) {
    store(scale, lane_half(block, 0, v));
  }
  static void codes(const char* block, int, int v, vi* w) {
    // bits 4 and 5 of a code: those of words j and j + 4 are neighbours
    for (int j = 0; j < 8; ++j) {
      const int at = j / 2 % 2 * 4 + j / 4 * 2;
      w[j] = add_bits(lane_nibble(block, 2, 2, j, v), lane_word(block, 2, j % 2, v), 4 - at, 48);
    }
  }
};

template <>
struct Lanes<FormatQ8_KV> {
  static void scales(const char* block, int v, float* scale, float*) {
    store(scale, load_as<vf>(block + v * kLaneBytes));
  }
  static void codes(const char* block, int, int v, vi* w) {
    for (int j = 0; j < 8; ++j) w[j] = lane_word(block, 4, j, v) ^ splat_bytes(128);
  }
};

}  // namespace weft::WEFT_TARGET

#endif  // WEFT_PANELS
