// The scales of blocks that have whole ones, a byte for each group of a row, in vectors whose lanes
// are rows.
//
// The step of group g is a byte of one of the vectors `bytes`, less kBias or with its sign. With
// AVX2 the sums of a group are pairs of 16 bits; they are multiplied with their step and added up
// in one instruction, so that the step is wanted twice in a lane, as 16 bits each (`pair`).
#pragma once

#include "quants/lane_dots.h"
#include "quants/lanes.h"

namespace weft::WEFT_TARGET {

// Where steps are: the step of group g in byte g % 4 of word g / 4, or (kTurns) the two words of
// eight groups take turns.
enum class StepOrder { kRuns, kTurns };

template <int kCount, int kBias = 0, bool kSignedBytes = false, StepOrder kOrder = StepOrder::kRuns>
struct Steps {
  vi bytes[kCount / 4];

  static constexpr int word(int g) {
    return kOrder == StepOrder::kRuns ? g / 4 : g / 8 * 2 + g % 2;
  }
  static constexpr int byte(int g) { return kOrder == StepOrder::kRuns ? g % 4 : g % 8 / 2; }

  vf as_float(int g) const {
    if constexpr (kSignedBytes) return signed_byte(bytes[word(g)], byte(g));
    const vf step = unsigned_byte(bytes[word(g)], byte(g));
    return kBias == 0 ? step : step - static_cast<float>(kBias);
  }
  vi number(int g) const {
    const vi v = bytes[word(g)];
    if constexpr (kSignedBytes) return v << (24 - 8 * byte(g)) >> 24;
    return byte_number(v, byte(g)) - kBias;
  }
  vi pair(int g) const {
    typedef int16_t numbers __attribute__((vector_size(sizeof(vi))));
    if constexpr (kSignedBytes) {
      const auto high =
          reinterpret_cast<numbers>(byte_pair<true>(bytes[word(g)], byte(g), byte(g)));
      return reinterpret_cast<vi>(high >> 8);
    }
    const auto pair = reinterpret_cast<numbers>(byte_pair(bytes[word(g)], byte(g), byte(g)));
    return reinterpret_cast<vi>(kBias == 0 ? pair : pair - static_cast<int16_t>(kBias));
  }
  // The steps of groups g and g + 1, for an even g.
  vi two(int g) const {
    static_assert(kBias == 0 && !kSignedBytes && kOrder == StepOrder::kRuns);
    return byte_pair(bytes[word(g)], byte(g), byte(g) + 1);
  }
};

// The step of group g as the sums of F's codes are multiplied with it, and that product.
template <typename F, typename Scales>
static inline vi step_of(const Scales& scales, int g) {
  if constexpr (kWholeDots || kSigned<F>) return scales.steps.number(g);
  return scales.steps.pair(g);
}
template <typename F>
static inline vi times_step(vi sums, vi step) {
  return kWholeDots || kSigned<F> ? sums * step : dot_pairs(sums, step);
}

}  // namespace weft::WEFT_TARGET
