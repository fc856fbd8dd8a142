// Encoders of iq2_xxs, iq2_xs, iq2_s, iq3_xxs and iq3_s. Source: quantize_iq2_* and quantize_iq3_*
// in ggml-quants.c.
#include "kernels/encode/grid_search.h"
#include "kernels/encode/search.h"

namespace weft::WEFT_TARGET {

void register_encode_iq23(KernelTable& table);

namespace {

// How a type searches.
template <DType kOf>
struct Kind {
  static constexpr int kLen = kOf == DType::kIQ3_XXS || kOf == DType::kIQ3_S ? 4 : 8;
  static constexpr int kBits = kLen == 8 ? 2 : 3;
  static constexpr int kLevels = kLen == 8 ? 3 : 8;
  static constexpr int kSize = kOf == DType::kIQ2_XS || kOf == DType::kIQ2_S ? 16 : 32;
  static constexpr int kGroups = 256 / kSize;
  static constexpr int kParts = kSize / kLen;
  static constexpr int kTries = kOf == DType::kIQ2_XXS ? 6 : kOf == DType::kIQ3_XXS ? 15 : 9;
  static constexpr float kStep = kLen == 8 ? 0.1f : 0.2f;
  static constexpr bool kEven = kOf != DType::kIQ2_S && kOf != DType::kIQ3_S;
  // Which parts are coded anew with the scale that was found: all, or those whose nearest vector
  // the codebook lacks.
  static constexpr bool kAllAgain = kOf == DType::kIQ2_XXS || kOf == DType::kIQ3_S;
  static constexpr const LevelTable& levels() { return kLen == 8 ? kOddLevels2 : kOddLevels3; }
  using Search = GridSearch<kLen, kBits>;
  using Fit = GridFit<kParts, kSize / 8>;
};

template <DType kOf>
void fit_group(const typename Kind<kOf>::Search& search, const vf* from, const vf* weights,
               typename Kind<kOf>::Fit& fit) {
  using K = Kind<kOf>;
  constexpr float kHigh = 2 * K::kLevels - 1;
  vf roots[K::kSize];
  for (int i = 0; i < K::kSize; ++i) roots[i] = vsqrt(weights[i]);
  Signed<K::kSize> group;
  group.template split<K::kEven>(from, weights);
  const vf* x = group.x;
  const vf levels = load(K::levels().of);

  vi active;
  vf scale;
  vf high = group.high;
  if constexpr (kOf == DType::kIQ2_XXS) {
    vi codes[32];
    scale = fit_unsigned<32>(x, weights, K::kLevels + 1, codes);
    high = scale * splat(3.0f);
    active = ~(group.high < splat(kTinyGroup)) & ~(high <= vf{});
  } else {
    scale = high / splat(kHigh);
    if constexpr (kOf == DType::kIQ3_S) {
      active = high != vf{};
    } else {
      active = ~(high < splat(kOf == DType::kIQ2_XS ? kTinyGroup : 1e-8f));
    }
  }

  vf best = {};
  vi numbers[K::kParts] = {};
  vi off[K::kParts] = {};
  if constexpr (kOf == DType::kIQ3_S) {
    for (vi& o : off) o = splat_int(-1);
  }
  for (int t = -K::kTries; t <= K::kTries; ++t) {
    const vf inverse = splat(kHigh + static_cast<float>(t) * K::kStep) / high;
    const vf trial_scale = splat(1.0f) / inverse;
    vi trial[K::kParts];
    vi trial_off[K::kParts];
    LaneSums sums;
    for (int k = 0; k < K::kParts; ++k) {
      const vf* part = x + K::kLen * k;
      trial[k] = nearest_vector<K::kLen, K::kBits>(inverse, part, K::kLevels - 1);
      trial[k] = search.find(trial[k], part, roots + K::kLen * k, trial_scale, K::levels(), active,
                             trial_off[k]);
      sums.template add<K::kLen, K::kBits>(part, weights + K::kLen * k, trial[k], levels);
    }
    const vi better = (sums.q2 > vf{}) & (sums.qx * sums.qx > best * sums.q2);
    scale = better ? sums.qx / sums.q2 : scale;
    best = better ? scale * sums.qx : best;
    for (int k = 0; k < K::kParts; ++k) {
      numbers[k] = better ? trial[k] : numbers[k];
      off[k] = better ? trial_off[k] : off[k];
    }
  }

  vi again = splat_int(-1);
  if constexpr (kOf != DType::kIQ2_XXS) {
    again = vi{};
    for (int k = 0; k < K::kParts; ++k) again |= off[k];
  }
  again &= active & (scale > vf{});
  if (any(again)) {
    const vf inverse = splat(1.0f) / scale;
    LaneSums sums;
    for (int k = 0; k < K::kParts; ++k) {
      const vf* part = x + K::kLen * k;
      const vi coded = K::kAllAgain ? again : again & off[k];
      vi number = nearest_vector<K::kLen, K::kBits>(inverse, part, K::kLevels - 1);
      number = search.find(number, part, roots + K::kLen * k, scale, K::levels(), coded);
      numbers[k] = coded ? number : numbers[k];
      sums.template add<K::kLen, K::kBits>(part, weights + K::kLen * k, numbers[k], levels);
    }
    scale = (again & (sums.q2 > vf{})) ? sums.qx / sums.q2 : scale;
  }

  const vi negative = scale < vf{};
  fit.scale = active ? (negative ? -scale : scale) : vf{};
  for (int k = 0; k < K::kParts; ++k) fit.codes[k] = active & search.codes(numbers[k]);
  constexpr int kSignBits = K::kEven ? 127 : 255;
  for (int k = 0; k < K::kSize / 8; ++k) {
    const vi signs = negative ? ~group.signs[k] & kSignBits : group.signs[k];
    fit.signs[k] = active & signs;
  }
}

// The fits of the groups of kLanes blocks, and the steps of their scales.
template <DType kOf>
struct Coded {
  using K = Kind<kOf>;
  typename K::Fit fits[K::kGroups];
  vi steps[K::kGroups];
  vf d;     // of a step
  vi zero;  // all scales are 0

  template <typename Block>
  explicit Coded(const Group<Block, 256>& g) {
    Tile<256> tile;
    Tile<256> importance;
    tile.fill(g.x);
    if (g.weighted) importance.fill(g.weights);
    const vf* x = tile.at;
    vf sigma2 = sum_of_squares(x, 256);
    if (kOf != DType::kIQ2_XXS && kOf != DType::kIQ2_XS) sigma2 *= splat(2.0f);
    sigma2 /= splat(256.0f);
    const typename K::Search search(kOf);
    vf high = {};
    for (int i = 0; i < K::kGroups; ++i) {
      const vf* group = x + K::kSize * i;
      vf weights[K::kSize];
      if (g.weighted) {
        weigh(group, importance.at + K::kSize * i, sigma2, K::kSize, weights);
      } else {
        const vf part = kOf == DType::kIQ2_S ? splat(0.25f) * sigma2 : vf{};
        for (int j = 0; j < K::kSize; ++j) {
          weights[j] = kOf == DType::kIQ2_S ? part + group[j] * group[j] : group[j] * group[j];
        }
      }
      fit_group<kOf>(search, group, weights, fits[i]);
      high = high > fits[i].scale ? high : fits[i].scale;
    }
    zero = high == vf{};
    d = high / splat(31.0f);
    for (int i = 0; i < K::kGroups; ++i) steps[i] = scale_step(fits[i].scale, d, 15);
  }

  uint32_t code(int group, int part, int lane) const {
    return static_cast<uint32_t>(fits[group].codes[part][lane]);
  }
  uint32_t signs(int group, int part, int lane) const {
    return static_cast<uint32_t>(fits[group].signs[part][lane]);
  }
  uint32_t step(int group, int lane) const { return static_cast<uint32_t>(steps[group][lane]); }
  // Two steps a byte.
  void pack_steps(int lane, uint8_t* to) const {
    for (int i = 0; i < K::kGroups; i += 2) {
      to[i / 2] = static_cast<uint8_t>(step(i, lane) | step(i + 1, lane) << 4);
    }
  }
  // Four indices of signs and a step.
  uint32_t signs_and_step(int group, int lane) const {
    uint32_t word = step(group, lane) << 28;
    for (int k = 0; k < 4; ++k) word |= signs(group, k, lane) << 7 * k;
    return word;
  }
};

void encode_iq2_xxs(const Group<BlockIQ2_XXS, 256>& g) {
  const Coded<DType::kIQ2_XXS> coded(g);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ2_XXS& b = g.out[lane];
    std::memset(&b, 0, sizeof b);
    if (coded.zero[lane]) continue;
    b.d = float_to_half(coded.d[lane]);
    for (int i = 0; i < 8; ++i) {
      uint32_t words[2] = {0, coded.signs_and_step(i, lane)};
      for (int k = 0; k < 4; ++k) words[0] |= coded.code(i, k, lane) << 8 * k;
      std::memcpy(reinterpret_cast<char*>(&b) + offsetof(BlockIQ2_XXS, qs) + 8 * i, words, 8);
    }
  }
}

void encode_iq2_xs(const Group<BlockIQ2_XS, 256>& g) {
  const Coded<DType::kIQ2_XS> coded(g);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ2_XS& b = g.out[lane];
    std::memset(&b, 0, sizeof b);
    if (coded.zero[lane]) continue;
    b.d = float_to_half(coded.d[lane]);
    for (int i = 0; i < 32; ++i) {
      const uint32_t code = coded.code(i / 2, i % 2, lane);
      b.qs[i] = static_cast<uint16_t>(code | coded.signs(i / 2, i % 2, lane) << 9);
    }
    coded.pack_steps(lane, b.scales);
  }
}

void encode_iq2_s(const Group<BlockIQ2_S, 256>& g) {
  const Coded<DType::kIQ2_S> coded(g);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ2_S& b = g.out[lane];
    std::memset(&b, 0, sizeof b);
    for (int i = 0; i < 32; ++i) {
      const uint32_t code = coded.code(i / 2, i % 2, lane);
      b.qs[i] = static_cast<uint8_t>(code);
      b.qh[i / 4] = static_cast<uint8_t>(b.qh[i / 4] | code >> 8 << 2 * (i % 4));
      b.signs[i] = static_cast<uint8_t>(coded.signs(i / 2, i % 2, lane));
    }
    if (coded.zero[lane]) continue;
    b.d = float_to_half(coded.d[lane] * 0.9875f);
    coded.pack_steps(lane, b.scales);
  }
}

void encode_iq3_xxs(const Group<BlockIQ3_XXS, 256>& g) {
  const Coded<DType::kIQ3_XXS> coded(g);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ3_XXS& b = g.out[lane];
    std::memset(&b, 0, sizeof b);
    if (coded.zero[lane]) continue;
    b.d = float_to_half(coded.d[lane] * 1.0125f);
    for (int i = 0; i < 8; ++i) {
      for (int k = 0; k < 8; ++k) b.qs[8 * i + k] = static_cast<uint8_t>(coded.code(i, k, lane));
      const uint32_t word = coded.signs_and_step(i, lane);
      std::memcpy(b.signs_scales + 4 * i, &word, 4);
    }
  }
}

// Where a group of 32 is zero, the reference writes the codes of the groups behind it one place too
// early, so that they are read as those of other groups; here they are in their places.
void encode_iq3_s(const Group<BlockIQ3_S, 256>& g) {
  const Coded<DType::kIQ3_S> coded(g);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ3_S& b = g.out[lane];
    std::memset(&b, 0, sizeof b);
    for (int i = 0; i < 8; ++i) {
      for (int k = 0; k < 8; ++k) {
        const uint32_t code = coded.code(i, k, lane);
        b.qs[8 * i + k] = static_cast<uint8_t>(code);
        b.qh[i] = static_cast<uint8_t>(b.qh[i] | code >> 8 << k);
      }
      for (int k = 0; k < 4; ++k) {
        b.signs[4 * i + k] = static_cast<uint8_t>(coded.signs(i, k, lane));
      }
    }
    if (coded.zero[lane]) continue;
    b.d = float_to_half(coded.d[lane] * 1.033f);
    coded.pack_steps(lane, b.scales);
  }
}

template <typename Block, void (*encode)(const Group<Block, 256>&)>
void rows_of(const EncodeRows& rows) {
  by_groups<Block, 256>(rows, encode);
}

}  // namespace

void register_encode_iq23(KernelTable& table) {
  table.type(DType::kIQ2_XXS).encode = rows_of<BlockIQ2_XXS, encode_iq2_xxs>;
  table.type(DType::kIQ2_XS).encode = rows_of<BlockIQ2_XS, encode_iq2_xs>;
  table.type(DType::kIQ2_S).encode = rows_of<BlockIQ2_S, encode_iq2_s>;
  table.type(DType::kIQ3_XXS).encode = rows_of<BlockIQ3_XXS, encode_iq3_xxs>;
  table.type(DType::kIQ3_S).encode = rows_of<BlockIQ3_S, encode_iq3_s>;
}

}  // namespace weft::WEFT_TARGET
