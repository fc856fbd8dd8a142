// Encoders of iq1_s and iq1_m. Source: quantize_iq1_s and quantize_iq1_m in ggml-quants.c.
//
// The levels are -1, 0 and 1, shifted by an eighth up or down: for a group of 32 in iq1_s, for each
// half of a group of 16 in iq1_m. With the elements sorted, two bounds cut a group into the three
// levels, so all cuts can be tried.
#include "kernels/encode/grid_search.h"

namespace weft::WEFT_TARGET {

void register_encode_iq1(KernelTable& table);

namespace {

inline constexpr float kUp[3] = {-0.875f, 0.125f, 1.125f};
inline constexpr float kDown[3] = {-1.125f, -0.125f, 0.875f};
inline constexpr LevelTable kUpLevels = {{-0.875f, 0.125f, 1.125f, 0, -0.875f, 0.125f, 1.125f, 0,
                                          -0.875f, 0.125f, 1.125f, 0, -0.875f, 0.125f, 1.125f, 0}};
inline constexpr LevelTable kDownLevels = {{-1.125f, -0.125f, 0.875f, 0, -1.125f, -0.125f, 0.875f,
                                            0, -1.125f, -0.125f, 0.875f, 0, -1.125f, -0.125f,
                                            0.875f, 0}};

using Search = GridSearch<8, 2>;

// The place of each element among n sorted ones; equal ones keep their order.
template <int n>
void rank(const vf* x, vi* ranks) {
  for (int i = 0; i < n; ++i) ranks[i] = vi{};
  for (int i = 0; i < n; ++i) {
    for (int j = i + 1; j < n; ++j) {
      const vi behind = x[j] < x[i];  // -1: j stands before i
      ranks[i] -= behind;
      ranks[j] += behind + 1;
    }
  }
}

// values[i] of each lane goes to place ranks[i].
template <int n>
void sort_by(const vi* ranks, const vf* values, vf* sorted) {
  auto* out = reinterpret_cast<float*>(sorted);
  for (int i = 0; i < n; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) out[ranks[i][lane] * kLanes + lane] = values[i][lane];
  }
}

// The best cut so far.
struct Cut {
  vf scale;
  vf best = splat(-3.402823466e+38f);
  vi first = splat_int(-1);   // elements below have level -1,
  vi second = splat_int(-1);  // those from here on 1
  vi shift = {};

  void offer(vf qx, vf q2, int i1, int i2, int kind) {
    const vi better = (q2 > vf{}) & (qx * qx > best * q2);
    if (!any(better)) return;
    scale = better ? qx / q2 : scale;
    best = better ? scale * qx : best;
    first = better ? splat_int(i1) : first;
    second = better ? splat_int(i2) : second;
    shift = better ? splat_int(kind) : shift;
  }

  // The numbers of vectors 0..kSize/8-1; levels are turned around where the scale is negative.
  template <int kSize>
  void numbers(const vi* ranks, vi* out) const {
    const vi negative = scale < vf{};
    for (int k = 0; k < kSize / 8; ++k) {
      vi number = {};
      for (int i = 0; i < 8; ++i) {
        const vi r = ranks[8 * k + i];
        const vi level = -((r >= first) + (r >= second));
        number |= (negative ? 2 - level : level) << 2 * i;
      }
      out[k] = number;
    }
  }
};

// The result of the search for a group; `coded` is 0 for groups that it left out.
template <int kParts>
struct Fit1 {
  vf scale;
  vi coded;
  vi numbers[kParts];
  vi shift;  // iq1_s: 1 up, -1 down; iq1_m: bit 1 of the first half, bit 0 of the second: down
};

vf peak_of(const vf* x, int n) {
  vf high = magnitude(x[0]);
  for (int i = 1; i < n; ++i) {
    const vf m = magnitude(x[i]);
    high = high > m ? high : m;
  }
  return high;
}

// Finds the vectors that the codebook has; `up` says of each part which levels it has. Corrects the
// scale where one was missing.
template <int kParts>
void to_codebook(const Search& search, const vf* x, const vf* w, const vi* up, Fit1<kParts>& fit) {
  vi any_off = {};
  for (int k = 0; k < kParts; ++k) {
    const vf* xk = x + 8 * k;
    const vf* wk = w + 8 * k;
    vi off;
    vi found = search.find(fit.numbers[k], xk, wk, fit.scale, kUpLevels, fit.coded & up[k], off);
    any_off |= off;
    found = search.find(found, xk, wk, fit.scale, kDownLevels, fit.coded & ~up[k], off);
    any_off |= off;
    fit.numbers[k] = found;
  }
  if (!any(any_off)) return;
  vf qx = {};
  vf q2 = {};
  const vf ups = load(kUpLevels.of);
  const vf downs = load(kDownLevels.of);
  for (int k = 0; k < kParts; ++k) {
    for (int i = 0; i < 8; ++i) {
      const vi at = fit.numbers[k] >> 2 * i;
      const vf q = up[k] ? permute(ups, at) : permute(downs, at);
      qx += w[8 * k + i] * q * x[8 * k + i];
      q2 += w[8 * k + i] * q * q;
    }
  }
  fit.scale = (any_off & (qx > vf{}) & (q2 > vf{})) ? qx / q2 : fit.scale;
}

// The cuts of a group of 32 with one shift.
Cut cut_32(const vf* x, const vf* w, const vi* ranks) {
  vf products[32];
  for (int i = 0; i < 32; ++i) products[i] = w[i] * x[i];
  vf sorted_x[32];
  vf sorted_w[32];
  sort_by<32>(ranks, products, sorted_x);
  sort_by<32>(ranks, w, sorted_w);
  vf sx[33];
  vf sw[33];
  sx[0] = sw[0] = vf{};
  for (int i = 0; i < 32; ++i) {
    sx[i + 1] = sx[i] + sorted_x[i];
    sw[i + 1] = sw[i] + sorted_w[i];
  }
  // The parts of the sums beyond the second cut.
  vf x_up[33];
  vf x_down[33];
  vf w_up[33];
  vf w_down[33];
  for (int i = 0; i <= 32; ++i) {
    x_up[i] = (sx[32] - sx[i]) * splat(kUp[2]);
    x_down[i] = (sx[32] - sx[i]) * splat(kDown[2]);
    w_up[i] = (sw[32] - sw[i]) * splat(kUp[2]) * splat(kUp[2]);
    w_down[i] = (sw[32] - sw[i]) * splat(kDown[2]) * splat(kDown[2]);
  }
  Cut cut;
  cut.scale = peak_of(x, 32);
  for (int i1 = 0; i1 <= 32; ++i1) {
    const vf low_x_up = sx[i1] * splat(kUp[0]);
    const vf low_x_down = sx[i1] * splat(kDown[0]);
    const vf low_w_up = sw[i1] * splat(kUp[0]) * splat(kUp[0]);
    const vf low_w_down = sw[i1] * splat(kDown[0]) * splat(kDown[0]);
    for (int i2 = i1; i2 <= 32; ++i2) {
      const vf mid_x = (sx[i2] - sx[i1]) * splat(0.125f);
      const vf mid_w = (sw[i2] - sw[i1]) * splat(0.125f) * splat(0.125f);
      cut.offer(low_x_up + mid_x + x_up[i2], low_w_up + mid_w + w_up[i2], i1, i2, 1);
      cut.offer(low_x_down - mid_x + x_down[i2], low_w_down + mid_w + w_down[i2], i1, i2, -1);
    }
  }
  return cut;
}

// The cuts of a group of 16 whose halves have shifts of their own: 2 * (the first is down) + (the
// second is down).
Cut cut_16(const vf* x, const vf* w, const vi* ranks) {
  vf sums[2][17];  // of w * x, of the elements of a half up to a cut
  vf weights[2][17];
  for (int half = 0; half < 2; ++half) {
    vf products[16] = {};
    vf own[16] = {};
    for (int i = 8 * half; i < 8 * half + 8; ++i) {
      products[i] = w[i] * x[i];
      own[i] = w[i];
    }
    vf sorted_x[16];
    vf sorted_w[16];
    sort_by<16>(ranks, products, sorted_x);
    sort_by<16>(ranks, own, sorted_w);
    sums[half][0] = weights[half][0] = vf{};
    for (int i = 0; i < 16; ++i) {
      sums[half][i + 1] = sums[half][i] + sorted_x[i];
      weights[half][i + 1] = weights[half][i] + sorted_w[i];
    }
  }
  vf x_of[2][2];  // by half, and up or down: the sum if all had the highest level
  vf w_of[2][2];
  constexpr float kHighest[2] = {kUp[2], kDown[2]};
  for (int half = 0; half < 2; ++half) {
    for (int down = 0; down < 2; ++down) {
      const vf high = splat(kHighest[down]);
      x_of[half][down] = sums[half][16] * high;
      w_of[half][down] = weights[half][16] * high * high;
    }
  }
  constexpr float kFirst[2] = {kUp[0] * kUp[0] - kUp[1] * kUp[1],
                               kDown[0] * kDown[0] - kDown[1] * kDown[1]};
  constexpr float kSecond[2] = {kUp[1] * kUp[1] - kUp[2] * kUp[2],
                                kDown[1] * kDown[1] - kDown[2] * kDown[2]};
  Cut cut;
  cut.scale = peak_of(x, 16);
  for (int i1 = 0; i1 <= 16; ++i1) {
    for (int i2 = i1; i2 <= 16; ++i2) {
      vf qx[2][2];
      vf q2[2][2];
      for (int half = 0; half < 2; ++half) {
        const vf cut_off = sums[half][i1] + sums[half][i2];
        for (int down = 0; down < 2; ++down) {
          qx[half][down] = x_of[half][down] - cut_off;
          q2[half][down] = w_of[half][down] + weights[half][i1] * splat(kFirst[down]) +
                           weights[half][i2] * splat(kSecond[down]);
        }
      }
      for (int k = 0; k < 4; ++k) {
        cut.offer(qx[0][k / 2] + qx[1][k % 2], q2[0][k / 2] + q2[1][k % 2], i1, i2, k);
      }
    }
  }
  return cut;
}

template <typename Block>
struct Weighed {
  Tile<256> x;
  vf w[256];

  explicit Weighed(const Group<Block, 256>& g) {
    x.fill(g.x);
    if (!g.weighted) {
      for (int i = 0; i < 256; ++i) w[i] = x.at[i] * x.at[i];
      return;
    }
    Tile<256> importance;
    importance.fill(g.weights);
    const vf sigma2 = splat(2.0f) * sum_of_squares(x.at, 256) / splat(256.0f);
    weigh(x.at, importance.at, sigma2, 256, w);
  }
};

void encode_iq1_s(const Group<BlockIQ1_S, 256>& g) {
  const Weighed<BlockIQ1_S> in(g);
  const Search search(DType::kIQ1_S);
  Fit1<4> fits[8];
  vi codes[8][4];
  vf high = {};
  for (int i = 0; i < 8; ++i) {
    const vf* x = in.x.at + 32 * i;
    const vf* w = in.w + 32 * i;
    vi ranks[32];
    rank<32>(x, ranks);
    Cut cut = cut_32(x, w, ranks);
    Fit1<4>& fit = fits[i];
    fit.coded = ~(peak_of(x, 32) < splat(1e-12f)) & (cut.first >= vi{});
    cut.numbers<32>(ranks, fit.numbers);
    const vi negative = cut.scale < vf{};
    fit.scale = negative ? -cut.scale : cut.scale;
    fit.shift = negative ? -cut.shift : cut.shift;
    const vi up = fit.shift == splat_int(1);
    const vi ups[4] = {up, up, up, up};
    to_codebook<4>(search, x, w, ups, fit);
    fit.scale = fit.coded ? fit.scale : vf{};
    for (int k = 0; k < 4; ++k) codes[i][k] = fit.coded & search.codes(fit.numbers[k]);
    high = high > fit.scale ? high : fit.scale;
  }
  const vf d = high / splat(15.0f);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ1_S& b = g.out[lane];
    std::memset(&b, 0, sizeof b);
    const bool zero = high[lane] == 0;
    if (!zero) b.d = float_to_half(d[lane] * 1.125f);
    for (int i = 0; i < 8; ++i) {
      int32_t word = 0;
      for (int k = 0; k < 4; ++k) {
        b.qs[4 * i + k] = low8(codes[i][k][lane]);
        word |= codes[i][k][lane] >> 8 << 3 * k;
      }
      if (!zero) {
        const float inverse = 1.0f / d[lane];
        const float step = 0.5f * (inverse * fits[i].scale[lane] - 1);
        word |= clamp(nearest_int(step), 0, 7) << 12;
        if (fits[i].coded[lane] && fits[i].shift[lane] == -1) word |= 8 << 12;
      }
      b.qh[i] = static_cast<uint16_t>(word);
    }
  }
}

// The scale of a block, by least squares over all groups with their steps.
vf refit(const vf* x, const vf* w, const Fit1<2>* fits, const vi* steps, vf d) {
  const vf ups = load(kUpLevels.of);
  const vf downs = load(kDownLevels.of);
  vf qx = {};
  vf q2 = {};
  for (int i = 0; i < 16; ++i) {
    const vf times = int_floats(2 * steps[i] + 1);
    for (int k = 0; k < 2; ++k) {
      const vi up = (fits[i].shift & (k == 0 ? 2 : 1)) == vi{};
      for (int j = 0; j < 8; ++j) {
        const int at = 16 * i + 8 * k + j;
        const vi level = fits[i].numbers[k] >> 2 * j;
        const vf q = (up ? permute(ups, level) : permute(downs, level)) * times;
        qx += w[at] * q * x[at];
        q2 += w[at] * q * q;
      }
    }
  }
  return q2 > vf{} ? qx / q2 : d;
}

void encode_iq1_m(const Group<BlockIQ1_M, 256>& g) {
  const Weighed<BlockIQ1_M> in(g);
  const Search search(DType::kIQ1_S);
  Fit1<2> fits[16];
  vi codes[16][2];
  vi steps[16];
  vf high = {};
  for (int i = 0; i < 16; ++i) {
    const vf* x = in.x.at + 16 * i;
    const vf* w = in.w + 16 * i;
    vi ranks[16];
    rank<16>(x, ranks);
    Cut cut = cut_16(x, w, ranks);
    Fit1<2>& fit = fits[i];
    fit.coded = ~(peak_of(x, 16) < splat(1e-7f)) & (cut.first >= vi{});
    cut.numbers<16>(ranks, fit.numbers);
    const vi negative = cut.scale < vf{};
    fit.scale = negative ? -cut.scale : cut.scale;
    fit.shift = fit.coded & (negative ? 3 - cut.shift : cut.shift);
    const vi ups[2] = {(fit.shift & 2) == vi{}, (fit.shift & 1) == vi{}};
    to_codebook<2>(search, x, w, ups, fit);
    fit.scale = fit.coded ? fit.scale : vf{};
    for (int k = 0; k < 2; ++k) {
      fit.numbers[k] = fit.coded ? fit.numbers[k] : splat_int(search.first_vector());
      codes[i][k] = fit.coded & search.codes(fit.numbers[k]);
    }
    high = high > fit.scale ? high : fit.scale;
  }
  vf d = high / splat(15.0f);
  for (int i = 0; i < 16; ++i) steps[i] = scale_step(fits[i].scale, d, 7);
  d = refit(in.x.at, in.w, fits, steps, d);
  for (int lane = 0; lane < g.n; ++lane) {
    BlockIQ1_M& b = g.out[lane];
    std::memset(&b, 0, sizeof b);
    const bool zero = high[lane] == 0;
    uint32_t scales[4] = {};
    for (int i = 0; i < 16; ++i) {
      const int32_t first = codes[i][0][lane];
      const int32_t second = codes[i][1][lane];
      b.qs[2 * i] = low8(first);
      b.qs[2 * i + 1] = low8(second);
      int32_t high_bits = first >> 8 | second >> 8 << 4;
      if (!zero) {
        const int32_t shift = fits[i].shift[lane];
        high_bits |= (shift & 2) << 2 | (shift & 1) << 7;
        scales[i / 4] |= static_cast<uint32_t>(steps[i][lane]) << 3 * (i % 4);
      }
      b.qh[i] = low8(high_bits);
    }
    if (zero) continue;
    const uint32_t half = float_to_half(d[lane] * 1.1125f);
    for (int i = 0; i < 4; ++i) {
      b.scales[i] = static_cast<uint16_t>(scales[i] | (half >> 4 * i & 15) << 12);
    }
  }
}

template <typename Block, void (*encode)(const Group<Block, 256>&)>
void rows_of(const EncodeRows& rows) {
  by_groups<Block, 256>(rows, encode);
}

}  // namespace

void register_encode_iq1(KernelTable& table) {
  table.type(DType::kIQ1_S).encode = rows_of<BlockIQ1_S, encode_iq1_s>;
  table.type(DType::kIQ1_M).encode = rows_of<BlockIQ1_M, encode_iq1_m>;
}

}  // namespace weft::WEFT_TARGET
