// Encoders of iq4_nl and iq4_xs for files. Source: quantize_row_iq4_nl_impl in ggml-quants.c.
#include "kernels/encode/lanes.h"
#include "kernels/encode/search.h"

namespace weft::WEFT_TARGET {

void register_encode_iq4(KernelTable& table);

namespace {

struct Levels4 {
  float value[16];
  float middle[16];  // between a level and the next; the last one is beyond all numbers
};
constexpr Levels4 make_levels() {
  Levels4 levels = {};
  for (int i = 0; i < 16; ++i) levels.value[i] = kIQ4Levels[i];
  for (int i = 0; i < 15; ++i) {
    levels.middle[i] =
        0.5f * (static_cast<float>(kIQ4Levels[i]) + static_cast<float>(kIQ4Levels[i + 1]));
  }
  levels.middle[15] = __builtin_inff();
  return levels;
}
inline constexpr Levels4 kLevels4 = make_levels();

// The code of the nearest level, the upper one of two.
vi nearest_level(vf x) {
  vi code = x >= splat(kLevels4.middle[7]) ? splat_int(8) : vi{};
  for (int half = 4; half > 0; half /= 2) {
    const vf middle = lookup16(kLevels4.middle, code + (half - 1));
    code += (x >= middle) & half;
  }
  return code;
}

struct Sums4 {
  vf qx = {};
  vf q2 = {};
};

Sums4 sums_of(const vf* x, const vf* weights, vf inverse) {
  Sums4 sums;
  for (int i = 0; i < 32; ++i) {
    const vf q = lookup16(kLevels4.value, nearest_level(inverse * x[i]));
    const vf wq = weights[i] * q;
    sums.qx += wq * x[i];
    sums.q2 += wq * q;
  }
  return sums;
}

// The best scale for 32 values, out of a first fit and 15 trials.
vf search_scale(const vf* x, const vf* weights) {
  const LanePeak peak = find_peak(x, 32);
  const vf end = splat(kLevels4.value[0]);
  Sums4 sums = sums_of(x, weights, splat(1.0f) / (-peak.value / end));
  vf d = sums.q2 > vf{} ? sums.qx / sums.q2 : vf{};
  vf best = d * sums.qx;
  for (int t = -7; t <= 7; ++t) {
    sums = sums_of(x, weights, (splat(static_cast<float>(t)) + end) / peak.value);
    const vi better = (sums.q2 > vf{}) & (sums.qx * sums.qx > best * sums.q2);
    d = better ? sums.qx / sums.q2 : d;
    best = better ? d * sums.qx : best;
  }
  return peak.magnitude < splat(kTinyGroup) ? vf{} : d;
}

void weights_of(const vf* x, const vf* importance, vf sigma2, int n, vf* weights) {
  if (importance != nullptr) {
    weigh(x, importance, sigma2, n, weights);
  } else {
    for (int i = 0; i < n; ++i) weights[i] = x[i] * x[i];
  }
}

// Codes of 32 elements of one block.
void code_32(const float* x, float inverse, uint8_t* qs) {
  typedef uint8_t vb __attribute__((vector_size(kLanes)));
  uint8_t codes[32];
  for (int i = 0; i < 32; i += kLanes) {
    const vb bytes = __builtin_convertvector(nearest_level(splat(inverse) * load(x + i)), vb);
    std::memcpy(codes + i, &bytes, sizeof bytes);
  }
  for (int i = 0; i < 16; ++i) qs[i] = low8(codes[i] | codes[i + 16] << 4);
}

void encode_iq4_nl(const Group<BlockIQ4_NL, 32>& g) {
  Tile<32> x;
  Tile<32> importance;
  x.fill(g.x);
  if (g.weighted) importance.fill(g.weights);
  const vf sigma2 = sum_of_squares(x.at, 32) * splat(2.0f / 32.0f);
  vf weights[32];
  weights_of(x.at, g.weighted ? importance.at : nullptr, sigma2, 32, weights);
  const vf scale = search_scale(x.at, weights);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ4_NL& b = g.out[lane];
    b.d = float_to_half(scale[lane]);
    code_32(g.x[lane], reciprocal(scale[lane]), b.qs);
  }
}

void encode_iq4_xs(const Group<BlockIQ4_XS, 256>& g) {
  Tile<256> x;
  Tile<256> importance;
  x.fill(g.x);
  if (g.weighted) importance.fill(g.weights);
  const vf sigma2 = sum_of_squares(x.at, 256) * splat(2.0f / 256.0f);
  vf scales[8];
  for (int i = 0; i < 8; ++i) {
    vf weights[32];
    weights_of(x.at + 32 * i, g.weighted ? importance.at + 32 * i : nullptr, sigma2, 32, weights);
    scales[i] = search_scale(x.at + 32 * i, weights);
  }
  const vf d = -find_peak(scales, 8).value / splat(32.0f);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ4_XS& b = g.out[lane];
    const float inverse = reciprocal(d[lane]);
    b.d = float_to_half(d[lane]);
    std::memset(b.scales_l, 0, sizeof b.scales_l);
    uint32_t high = 0;
    for (int i = 0; i < 8; ++i) {
      const int32_t step = clamp(nearest_int(inverse * scales[i][lane]), -32, 31);
      code_32(g.x[lane] + 32 * i, reciprocal(d[lane] * static_cast<float>(step)), b.qs + 16 * i);
      const int32_t stored = step + 32;
      b.scales_l[i / 2] = low8(b.scales_l[i / 2] | (stored & 15) << i % 2 * 4);
      high |= static_cast<uint32_t>(stored >> 4) << 2 * i;
    }
    b.scales_h = static_cast<uint16_t>(high);
  }
}

}  // namespace

void register_encode_iq4(KernelTable& table) {
  table.type(DType::kIQ4_NL).encode = [](const EncodeRows& rows) {
    by_groups<BlockIQ4_NL, 32>(rows, encode_iq4_nl);
  };
  table.type(DType::kIQ4_XS).encode = [](const EncodeRows& rows) {
    by_groups<BlockIQ4_XS, 256>(rows, encode_iq4_xs);
  };
}

}  // namespace weft::WEFT_TARGET
