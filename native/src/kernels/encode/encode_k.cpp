// Encoders of the K-quants for files. Source: quantize_q*_K in ggml-quants.c.
#include "kernels/encode/requantize.h"
#include "kernels/encode/search.h"
#include "quants/k_quants.h"

namespace weft::WEFT_TARGET {

void register_encode_k(KernelTable& table);

namespace {

// Groups of a block as lanes: number `group` of every block.
template <int kGroups>
struct Fits {
  LaneFit of[kGroups];
  vf weight[kGroups];  // the sum of the weights of a group

  // Codes group `group` of block `lane` anew with the scale as it is stored: the nearest of 0..top
  // to (x + offset) / scale. Where that scale is zero, the codes of the search stay.
  void requantize(const float* x, int lane, int group, float scale, float offset, int top,
                  uint8_t* codes) const {
    constexpr int kSize = 256 / kGroups;
    if (scale != 0) {
      divide_codes<kSize>(x, scale, offset, 0, top, codes);
    } else if (of[group].zero[lane]) {
      std::memset(codes, 0, kSize);
    } else {
      multiply_codes<kSize>(x, of[group].inverse[lane], of[group].low[lane], 0, top, codes);
    }
  }
};

template <typename Block>
struct Tiles {
  Tile<256> x;
  Tile<256> w;

  explicit Tiles(const Group<Block, 256>& g) {
    x.fill(g.x);
    if (g.weighted) w.fill(g.weights);
  }
};

template <int kGroups>
void scales_of(const Fits<kGroups>& fits, vf* scales, vf* offsets) {
  for (int g = 0; g < kGroups; ++g) {
    scales[g] = fits.of[g].scale;
    offsets[g] = fits.of[g].offset;
  }
}

vf largest(const vf* v, int n) {
  vf top = {};
  for (int i = 0; i < n; ++i) top = v[i] > top ? v[i] : top;
  return top;
}

// The scales and minima of the groups of a block, and their own scales.
template <int kGroups>
struct Levels {
  vf d;
  vf dmin;
  vi scales[kGroups];
  vi mins[kGroups];

  // Without weights: the largest has the highest code. With kWrapped, codes are bytes before they
  // are limited.
  void divide(const Fits<kGroups>& fits, int top, bool wrapped) {
    vf scale[kGroups];
    vf offset[kGroups];
    scales_of(fits, scale, offset);
    d = one(scale, top, wrapped, scales);
    dmin = one(offset, top, wrapped, mins);
  }

  void search(const Fits<kGroups>& fits, int top) {
    vf scale[kGroups];
    vf offset[kGroups];
    scales_of(fits, scale, offset);
    d = fit_unsigned<kGroups>(scale, fits.weight, top, scales);
    dmin = fit_unsigned<kGroups>(offset, fits.weight, top, mins);
  }

 private:
  static vf one(const vf* values, int top, bool wrapped, vi* codes) {
    const vf high = largest(values, kGroups);
    const vf most_codes = splat(static_cast<float>(top));
    const vf inverse = high > vf{} ? most_codes / high : vf{};
    for (int g = 0; g < kGroups; ++g) {
      const vi code = nearest_int(inverse * values[g]);
      codes[g] = wrapped ? least(code & 255, splat_int(top)) : code;
    }
    return high / most_codes;
  }
};

void encode_q2_K(const Group<BlockQ2_K, 256>& g) {
  const Tiles<BlockQ2_K> tiles(g);
  const vf* x = tiles.x.at;
  const vf sigma2 = sum_of_squares(x, 256) / splat(256.0f);
  Fits<16> fits;
  for (int i = 0; i < 16; ++i) {
    vf weights[16];
    if (g.weighted) {
      weigh(x + 16 * i, tiles.w.at + 16 * i, sigma2, 16, weights);
      fits.of[i] = fit_lanes<16, false>(x + 16 * i, weights, {3, -0.9f, 0.05f, 36});
    } else {
      for (int j = 0; j < 16; ++j) weights[j] = magnitude(x[16 * i + j]);
      fits.of[i] = fit_lanes<16, true>(x + 16 * i, weights, {3, -0.5f, 0.1f, 15});
    }
    fits.weight[i] = vf{};
    for (int j = 0; j < 16; ++j) fits.weight[i] += weights[j];
  }
  Levels<16> levels;
  if (g.weighted) {
    levels.search(fits, 15);
  } else {
    levels.divide(fits, 15, false);
  }
  for (int lane = 0; lane < g.n; ++lane) {
    BlockQ2_K& b = g.out[lane];
    uint8_t codes[256];
    b.d = float_to_half(levels.d[lane]);
    b.dmin = float_to_half(levels.dmin[lane]);
    const float d = half_to_float(b.d);
    const float dmin = half_to_float(b.dmin);
    for (int i = 0; i < 16; ++i) {
      b.scales[i] = low8(levels.scales[i][lane] | levels.mins[i][lane] << 4);
      fits.requantize(g.x[lane] + 16 * i, lane, i, d * static_cast<float>(b.scales[i] & 15),
                      dmin * static_cast<float>(b.scales[i] >> 4), 3, codes + 16 * i);
    }
    pack_two_bits(codes, b.qs);
  }
}

// Packs the scales (0..63) and codes (0..7) of a block of q3_K.
void finish_q3_K(const float* x, float d_block, const uint8_t* stored, uint8_t* codes,
                 BlockQ3_K& b) {
  b.d = float_to_half(d_block);
  pack_sixteen(stored, b.scales);
  const float d = half_to_float(b.d);
  for (int i = 0; i < 16; ++i) {
    const float scale = d * static_cast<float>(stored[i] - 32);
    if (scale != 0) divide_codes<16>(x + 16 * i, scale, 0, -4, 3, codes + 16 * i);
  }
  pack_planes(codes, 2, b.hmask);
  pack_two_bits(codes, b.qs);
}

void encode_q3_K_weighted(const Group<BlockQ3_K, 256>& g) {
  const Tiles<BlockQ3_K> tiles(g);
  const vf* x = tiles.x.at;
  const vf sigma2 = splat(2.0f) * sum_of_squares(x, 256) / splat(256.0f);
  LaneFit fits[16];
  vf scales[16];
  vf sums[16];
  for (int i = 0; i < 16; ++i) {
    vf weights[16];
    weigh(x + 16 * i, tiles.w.at + 16 * i, sigma2, 16, weights);
    sums[i] = vf{};
    for (int j = 0; j < 16; ++j) sums[i] += weights[j];
    fits[i] = fit_signed<16>(x + 16 * i, weights, 4);
    scales[i] = fits[i].scale;
  }
  const LaneFit block = fit_signed<16>(scales, sums, 32);
  for (int lane = 0; lane < g.n; ++lane) {
    uint8_t codes[256];
    uint8_t stored[16];
    for (int i = 0; i < 16; ++i) {
      const int32_t step = nearest_int(block.inverse[lane] * scales[i][lane]);
      stored[i] = block.zero[lane] ? 0 : low8(clamp(step, -32, 31) + 32);
      if (fits[i].zero[lane]) {
        std::memset(codes + 16 * i, 0, 16);
      } else {
        multiply_codes<16>(g.x[lane] + 16 * i, fits[i].inverse[lane], 0, -4, 3, codes + 16 * i);
      }
    }
    finish_q3_K(g.x[lane], block.scale[lane], stored, codes, g.out[lane]);
  }
}

void encode_q3_K(const Group<BlockQ3_K, 256>& g) {
  if (g.weighted) {
    encode_q3_K_weighted(g);
    return;
  }
  Tile<256> x;
  x.fill(g.x);
  vi found[256];
  vf scales[16];
  for (int i = 0; i < 16; ++i) scales[i] = fit_by_element<4>(x.at + 16 * i, found + 16 * i);
  const LanePeak peak = find_peak(scales, 16);
  for (int lane = 0; lane < g.n; ++lane) {
    uint8_t codes[256];
    uint8_t stored[16] = {};
    float d = 0;
    for (int i = 0; i < 256; ++i) codes[i] = low8(found[i][lane]);
    if (peak.value[lane] != 0) {
      const float inverse = -32.0f / peak.value[lane];
      for (int i = 0; i < 16; ++i) {
        // As in the reference, it is narrowed to a byte before it is clamped.
        const int8_t code = narrow8(nearest_int(inverse * scales[i][lane]));
        stored[i] = low8(clamp(code, -32, 31) + 32);
      }
      d = 1.0f / inverse;
    }
    finish_q3_K(g.x[lane], d, stored, codes, g.out[lane]);
  }
}

// q4_K and q5_K, which differ in the width of codes.
template <typename Block, int kTop>
void encode_pairs(const Group<Block, 256>& g) {
  const Tiles<Block> tiles(g);
  const vf* x = tiles.x.at;
  const vf sigma2 = splat(2.0f) * sum_of_squares(x, 256) / splat(256.0f);
  Fits<8> fits;
  for (int i = 0; i < 8; ++i) {
    vf weights[32];
    if (g.weighted) {
      weigh(x + 32 * i, tiles.w.at + 32 * i, sigma2, 32, weights);
      fits.of[i] = fit_lanes<32, false>(x + 32 * i, weights, {kTop, -0.9f, 0.05f, 36});
    } else {
      const vf rms = vsqrt(sum_of_squares(x + 32 * i, 32) / splat(32.0f));
      for (int j = 0; j < 32; ++j) weights[j] = rms + magnitude(x[32 * i + j]);
      constexpr LaneRange kRange =
          kTop == 15 ? LaneRange{15, -1.0f, 0.1f, 20} : LaneRange{31, -0.5f, 0.1f, 15};
      fits.of[i] = fit_lanes<32, false>(x + 32 * i, weights, kRange);
    }
    fits.weight[i] = vf{};
    for (int j = 0; j < 32; ++j) fits.weight[i] += weights[j];
  }
  Levels<8> levels;
  if (g.weighted) {
    levels.search(fits, 63);
  } else {
    levels.divide(fits, 63, true);
  }
  for (int lane = 0; lane < g.n; ++lane) {
    Block& b = g.out[lane];
    uint8_t scales[8];
    uint8_t mins[8];
    for (int i = 0; i < 8; ++i) {
      scales[i] = low8(levels.scales[i][lane]);
      mins[i] = low8(levels.mins[i][lane]);
      if (kTop == 31) {
        scales[i] = scales[i] < 63 ? scales[i] : 63;
        mins[i] = mins[i] < 63 ? mins[i] : 63;
      }
    }
    b.d = float_to_half(levels.d[lane]);
    b.dmin = float_to_half(levels.dmin[lane]);
    pack_pairs(scales, mins, b.scales);
    const uint64_t packed_scales = pair_scales(b.scales);
    const uint64_t packed_mins = pair_mins(b.scales);
    const float d = half_to_float(b.d);
    const float dmin = half_to_float(b.dmin);
    uint8_t codes[256];
    for (int i = 0; i < 8; ++i) {
      fits.requantize(g.x[lane] + 32 * i, lane, i,
                      d * static_cast<float>(packed_scales >> 8 * i & 63),
                      dmin * static_cast<float>(packed_mins >> 8 * i & 63), kTop, codes + 32 * i);
    }
    if constexpr (kTop == 31) pack_planes(codes, 4, b.qh);
    pack_four_bits(codes, b.qs);
  }
}

void encode_q6_K(const Group<BlockQ6_K, 256>& g) {
  const Tiles<BlockQ6_K> tiles(g);
  const vf* x = tiles.x.at;
  LaneFit fits[16];
  vf scales[16];
  for (int i = 0; i < 16; ++i) {
    vf squares[16];
    for (int j = 0; j < 16; ++j) squares[j] = x[16 * i + j] * x[16 * i + j];
    fits[i] = fit_signed<16>(x + 16 * i, g.weighted ? tiles.w.at + 16 * i : squares, 32);
    scales[i] = fits[i].scale;
  }
  const LanePeak peak = find_peak(scales, 16);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockQ6_K& b = g.out[lane];
    if (peak.magnitude[lane] < kTinyGroup) {
      std::memset(&b, 0, sizeof b);
      continue;
    }
    const float inverse = -128.0f / peak.value[lane];
    b.d = float_to_half(1.0f / inverse);
    const float d = half_to_float(b.d);
    uint8_t codes[256];
    for (int i = 0; i < 16; ++i) {
      const int32_t step = nearest_int(inverse * scales[i][lane]);
      b.scales[i] = narrow8(step < 127 ? step : 127);
      const float scale = d * static_cast<float>(b.scales[i]);
      const float* group = g.x[lane] + 16 * i;
      if (scale != 0) {
        divide_codes<16>(group, scale, 0, -32, 31, codes + 16 * i);
      } else if (fits[i].zero[lane]) {
        std::memset(codes + 16 * i, 0, 16);
      } else {
        multiply_codes<16>(group, fits[i].inverse[lane], 0, -32, 31, codes + 16 * i);
      }
    }
    for (int half = 0; half < 2; ++half) {
      const uint8_t* q = codes + 128 * half;
      uint8_t* low = b.ql + 64 * half;
      uint8_t* high = b.qh + 32 * half;
      for (int j = 0; j < 64; ++j) low[j] = low8((q[j] & 15) | (q[j + 64] & 15) << 4);
      for (int j = 0; j < 32; ++j) {
        high[j] = low8(q[j] >> 4 | q[j + 32] >> 4 << 2 | q[j + 64] >> 4 << 4 | q[j + 96] >> 4 << 6);
      }
    }
  }
}

template <typename Block, void (*encode)(const Group<Block, 256>&)>
void rows_of(const EncodeRows& rows) {
  by_groups<Block, 256>(rows, encode);
}

}  // namespace

void register_encode_k(KernelTable& table) {
  table.type(DType::kQ2_K).encode = rows_of<BlockQ2_K, encode_q2_K>;
  table.type(DType::kQ3_K).encode = rows_of<BlockQ3_K, encode_q3_K>;
  table.type(DType::kQ4_K).encode = rows_of<BlockQ4_K, encode_pairs<BlockQ4_K, 15>>;
  table.type(DType::kQ5_K).encode = rows_of<BlockQ5_K, encode_pairs<BlockQ5_K, 31>>;
  table.type(DType::kQ6_K).encode = rows_of<BlockQ6_K, encode_q6_K>;
}

}  // namespace weft::WEFT_TARGET
