// Vectors of levels for kLanes groups at once, for the encoders of the codebook types.
#pragma once

#include "core/grid_neighbours.h"
#include "kernels/encode/lanes.h"

namespace weft::WEFT_TARGET {

typedef uint16_t vhalves __attribute__((vector_size(kLanes * 2)));

// The values of up to 8 levels, twice.
struct LevelTable {
  float of[16];
};
// 1, 3, 5 and so on: what iq2 and iq3 search with.
inline constexpr LevelTable kOddLevels3 = {{1, 3, 5, 7, 9, 11, 13, 15, 1, 3, 5, 7, 9, 11, 13, 15}};
inline constexpr LevelTable kOddLevels2 = {{1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7, 1, 3, 5, 7}};

// kLen levels of kBits bits a vector.
template <int kLen, int kBits>
class GridSearch {
 public:
  explicit GridSearch(DType type) : grid_(grid_neighbours(type)) {}

  // For lanes in `active`: the vector itself where the codebook has it, otherwise the neighbour
  // with the least sum of w * (scale * level - x)^2, the first of equals. `off` is set where the
  // codebook lacks the vector.
  vi find(vi number, const vf* x, const vf* w, vf scale, const LevelTable& levels, vi active,
          vi& off) const {
    const vi code = gather(grid_.codes.data(), number);
    off = active & (code < vi{});
    for (uint32_t bits = lane_bits(off); bits != 0; bits &= bits - 1) {
      const int lane = __builtin_ctz(bits);
      const uint16_t* list = grid_.lists.data() + (-1 - code[lane]);
      number[lane] = nearest(list, reinterpret_cast<const float*>(x) + lane,
                             reinterpret_cast<const float*>(w) + lane, scale[lane], levels);
    }
    return number;
  }

  vi find(vi number, const vf* x, const vf* w, vf scale, const LevelTable& levels,
          vi active) const {
    vi off;
    return find(number, x, w, scale, levels, active, off);
  }

  // Codes of vectors that the codebook has.
  vi codes(vi number) const { return most(gather(grid_.codes.data(), number), vi{}); }

  int32_t first_vector() const { return grid_.vectors[0]; }

 private:
  // x and w are those of one lane, kLanes apart.
  static int32_t nearest(const uint16_t* list, const float* x, const float* w, float scale,
                         const LevelTable& levels) {
    if constexpr (kLanes >= 8) {  // all levels of an element are in a vector
      // The part that a level of element i has in the sum, for all levels.
      vf part[kLen];
      const vf scaled = splat(scale) * load(levels.of);
      for (int i = 0; i < kLen; ++i) {
        const vf diff = scaled - splat(x[i * kLanes]);
        part[i] = splat(w[i * kLanes]) * diff * diff;
      }
      const int n = list[0];
      ++list;
      float best = 3.402823466e+38f;
      int32_t found = list[0];
      for (int first = 0; first < n; first += kLanes) {
        vhalves numbers;
        std::memcpy(&numbers, list + first, sizeof numbers);
        const vi number = __builtin_convertvector(numbers, vi);
        vf sum = permute(part[0], number);
        for (int i = 1; i < kLen; ++i) sum += permute(part[i], number >> kBits * i);
        const vi better = sum < splat(best);
        if (!any(better)) continue;
        best = hmin(better ? sum : splat(best));
        found = list[first + __builtin_ctz(lane_bits(sum == splat(best)))];
      }
      return found;
    } else {
      constexpr int kLevels = 1 << kBits;
      float part[kLen][kLevels];
      for (int i = 0; i < kLen; ++i) {
        for (int level = 0; level < kLevels; ++level) {
          const float diff = scale * levels.of[level] - x[i * kLanes];
          part[i][level] = w[i * kLanes] * diff * diff;
        }
      }
      const int n = list[0];
      ++list;
      float best = 3.402823466e+38f;
      int32_t found = list[0];
      for (int j = 0; j < n; ++j) {
        float sum = 0;
        for (int i = 0; i < kLen; ++i) sum += part[i][list[j] >> kBits * i & (kLevels - 1)];
        if (sum < best) {
          best = sum;
          found = list[j];
        }
      }
      return found;
    }
  }

  const GridNeighbours& grid_;
};

// The vector of levels 0..top that are nearest to 0.5 * (inverse * x - 1).
template <int kLen, int kBits>
static inline vi nearest_vector(vf inverse, const vf* x, int top) {
  vi number = {};
  for (int i = 0; i < kLen; ++i) {
    const vf level = splat(0.5f) * (inverse * x[i] - splat(1.0f));
    number |= clamp(nearest_int(level), 0, top) << kBits * i;
  }
  return number;
}

// Sums of w * x * level and w * level^2 over n elements, whose vectors are `numbers`.
struct LaneSums {
  vf qx = {};
  vf q2 = {};

  template <int kLen, int kBits>
  void add(const vf* x, const vf* w, vi number, vf levels) {
    for (int i = 0; i < kLen; ++i) {
      const vi level = number >> kBits * i;
      const vf q =
          kLanes >= 8 ? permute(levels, level) : int_floats((level & ((1 << kBits) - 1)) * 2 + 1);
      qx += w[i] * x[i] * q;
      q2 += w[i] * q * q;
    }
  }
};

// Magnitudes of kSize elements, and their signs, a bit each of eight.
template <int kSize>
struct Signed {
  vf x[kSize];
  vi signs[kSize / 8];
  vf high;  // the largest of x

  // With kEven the number of minuses of eight is made even: the element that counts least changes
  // its sign.
  template <bool kEven>
  void split(const vf* from, const vf* weights) {
    for (int k = 0; k < kSize / 8; ++k) {
      vi bits = {};
      for (int i = 0; i < 8; ++i) {
        const vf v = from[8 * k + i];
        const vi minus = ~(v >= vf{});
        x[8 * k + i] = minus ? -v : v;
        bits |= minus & splat_int(1 << i);
      }
      if constexpr (kEven) {
        vi parity = bits ^ bits >> 4;
        parity ^= parity >> 2;
        const vi odd = ((parity ^ parity >> 1) & 1) == splat_int(1);
        vf least_cost = weights[8 * k] * from[8 * k] * from[8 * k];
        vi at = {};
        for (int i = 1; i < 8; ++i) {
          const vf cost = weights[8 * k + i] * from[8 * k + i] * from[8 * k + i];
          const vi less = cost < least_cost;
          least_cost = less ? cost : least_cost;
          at = less ? splat_int(i) : at;
        }
        for (int i = 0; i < 8; ++i) {
          const vi turned = odd & (at == splat_int(i));
          x[8 * k + i] = turned ? -x[8 * k + i] : x[8 * k + i];
          bits ^= turned & splat_int(1 << i);
        }
        bits &= 127;
      }
      signs[k] = bits;
    }
    high = x[0];
    for (int i = 1; i < kSize; ++i) high = high > x[i] ? high : x[i];
  }
};

// A group that a search has done with: its scale and the vectors and signs of its parts.
template <int kParts, int kSigns>
struct GridFit {
  vf scale;
  vi codes[kParts];
  vi signs[kSigns];
};

// Steps 0..15 (kTop) for scales, of d = their largest / steps; 0 where that is 0.
static inline vi scale_step(vf scale, vf d, int top) {
  const vf inverse = splat(1.0f) / d;
  return clamp(nearest_int(splat(0.5f) * (inverse * scale - splat(1.0f))), 0, top);
}

}  // namespace weft::WEFT_TARGET
