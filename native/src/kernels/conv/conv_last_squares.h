// CONV_2D_LAST of 3 x 3 taps and stride 1 in squares of 2 x 2 outputs: Winograd's F(2 x 2, 3 x 3).
//
// The 4 x 4 inputs of a square, and the taps, become 16 numbers each, whose products are summed up
// over the channels and become the outputs: 16 multiplications for 36. What becomes of the inputs
// are their sums and differences, of the taps their sums and halves of them, so that little more is
// rounded than without. Weights are made to 16 matrices once a run (`prepare`); a block of squares
// is an item, for a part of the output channels.
#pragma once

#include "kernels/conv/conv_last_tile.h"

namespace weft::WEFT_TARGET {

constexpr int64_t kSide = 2;           // outputs of a square along an axis
constexpr int64_t kReach = kSide + 2;  // inputs
constexpr int64_t kMatrices = kReach * kReach;
constexpr int64_t kApart =
    16;  // floats between matrices, which would share places in the caches without them

struct Squares {
  const LastPlan& p;
  int64_t across, down, number;  // squares of a row, of a column, of all images
  int64_t panels, parts, panels_of_part;
  int64_t vectors, wide;        // of output channels of a panel, and these channels
  int64_t room, block, blocks;  // squares that a block may have, and has
  int64_t row, v_step, m_step;  // floats of a square's row, and between matrices

  Squares(const LastPlan& plan, int n_threads) : p(plan) {
    across = (p.x.out + kSide - 1) / kSide;
    down = (p.y.out + kSide - 1) / kSide;
    number = across * down * p.batches;
    const int64_t all = (p.out_channels + kLanes - 1) / kLanes;
    panels = (all + kPanel - 1) / kPanel;
    vectors = (all + panels - 1) / max64(1, panels);
    wide = vectors * kLanes;
    row = round_up(p.channels, kLanes);
    // what is made of the inputs stays in the second cache
    room = max64(2, min64(8, kNearInputs / (kMatrices * row * kTileRows))) * kTileRows;
    const int64_t wanted = 4 * int64_t{n_threads};
    int64_t most = room;
    while (most > 2 * kTileRows && (number + most - 1) / most * panels < wanted) most /= 2;
    blocks = (number + most - 1) / most;
    const int64_t cuts = blocks >= wanted ? 1 : (wanted + blocks - 1) / max64(1, blocks);
    panels_of_part = max64(1, panels / min64(max64(1, panels), cuts));
    parts = (panels + panels_of_part - 1) / panels_of_part;
    block = blocks == 0 ? 0 : (number + blocks - 1) / blocks;
    v_step = room * row + kApart;
    m_step = room * wide + kApart;
  }

  // Whether that pays. Images must be large enough for the time that weights take, channels enough
  // for that of what becomes of inputs. It must not depend on the number of images, which have the
  // same bits in any batch; and not end for larger images, since memory is planned for those.
  bool pay() const {
    const bool plain = !p.depthwise && !p.merged && p.x.taps == 3 && p.y.taps == 3 &&
                       p.x.stride == 1 && p.y.stride == 1 && p.x.dilation == 1 && p.y.dilation == 1;
    return plain && p.channels >= 32 && p.out_channels >= 32 &&
           panels * wide * 4 <= p.out_channels * 5 && across >= 4 && down >= 4 &&
           across * down >= kLeast;
  }
  int64_t items() const { return blocks * parts; }
  // Floats from one matrix of a panel's weights to the next.
  int64_t u_step() const { return p.channels * wide + kApart; }

  static constexpr int64_t kNearInputs = 122880;  // floats
  static constexpr int64_t kLeast = 36;
};

static inline size_t squares_weights(const Squares& s) {
  return static_cast<size_t>(s.panels * kMatrices * s.u_step()) * sizeof(float);
}

// One dimension of what becomes of the taps.
static inline void reach_of_taps(vf a, vf b, vf c, vf* out) {
  const vf ends = a + c, half = splat(0.5F);
  out[0] = a;
  out[1] = (ends + b) * half;
  out[2] = (ends - b) * half;
  out[3] = c;
}

// Weights of a vector of output channels for an input channel to the 16 matrices.
static inline void enter_taps(const Squares& s, const float* from, int64_t n, float* to) {
  const int64_t tap = s.p.channels * s.p.out_channels, step = s.u_step();
  vf columns[3][kReach];
#pragma GCC unroll 3
  for (int x = 0; x < 3; ++x) {
    vf w[3];
#pragma GCC unroll 3
    for (int y = 0; y < 3; ++y) {
      const float* there = from + (y * 3 + x) * tap;
      w[y] = n >= kLanes ? load(there) : load_part(there, n);
    }
    reach_of_taps(w[0], w[1], w[2], columns[x]);
  }
#pragma GCC unroll 4
  for (int y = 0; y < kReach; ++y) {
    vf out[kReach];
    reach_of_taps(columns[0][y], columns[1][y], columns[2][y], out);
#pragma GCC unroll 4
    for (int x = 0; x < kReach; ++x) store(to + (y * kReach + x) * step, out[x]);
  }
}

// Weights of input channels `begin` to `end`: [panel][matrix][channel][wide].
static inline void prepare_squares(const Call& call, int64_t begin, int64_t end) {
  const LastPlan p(call);
  const Squares s(p, call.n_threads);
  const auto* weights = reinterpret_cast<const float*>(call.src[1]->data);
  auto* all = reinterpret_cast<float*>(call.shared);
  const int64_t filled = s.panels * s.wide;
  for (int64_t c = begin; c < end; ++c) {
    for (int64_t at = 0; at < filled; at += kLanes) {
      const int64_t panel = at / s.wide;
      float* to = all + panel * kMatrices * s.u_step() + c * s.wide + (at - panel * s.wide);
      enter_taps(s, weights + c * p.out_channels + at, max64(0, p.out_channels - at), to);
    }
  }
}

// One dimension of what becomes of the inputs.
static inline void reach_of_inputs(const vf* d, int step, vf* out) {
  out[0] = d[0] - d[2 * step];
  out[1] = d[step] + d[2 * step];
  out[2] = d[2 * step] - d[step];
  out[3] = d[step] - d[3 * step];
}

// The inputs of a square to its row in the 16 matrices.
static inline void enter_square(const LastPlan& p, const float* const* seen, float* to,
                                int64_t v_step) {
  for (int64_t c = 0; c < p.channels; c += kLanes) {
    const int64_t n = p.channels - c;
    vf d[kMatrices];
#pragma GCC unroll 16
    for (int i = 0; i < kMatrices; ++i) {
      d[i] = n >= kLanes ? load(seen[i] + c) : load_part(seen[i] + c, n);
    }
    vf columns[kReach][kReach];
#pragma GCC unroll 4
    for (int x = 0; x < kReach; ++x) reach_of_inputs(d + x, kReach, columns[x]);
#pragma GCC unroll 4
    for (int y = 0; y < kReach; ++y) {
      const vf line[kReach] = {columns[0][y], columns[1][y], columns[2][y], columns[3][y]};
      vf out[kReach];
      reach_of_inputs(line, 1, out);
#pragma GCC unroll 4
      for (int x = 0; x < kReach; ++x) store(to + (y * kReach + x) * v_step + c, out[x]);
    }
  }
}

// kR squares times a panel of one matrix.
template <int kR, int kV>
static void square_tile(const float* v, int64_t row, const float* u, int64_t channels, float* m) {
  constexpr int64_t kStep = kV * kLanes;
  vf sum[kR][kV] = {};
  for (int64_t c = 0; c < channels; ++c, u += kStep) {
    vf w[kV];
#pragma GCC unroll 8
    for (int i = 0; i < kV; ++i) w[i] = load(u + i * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kR; ++r) {
      const vf value = splat(v[r * row + c]);
#pragma GCC unroll 8
      for (int i = 0; i < kV; ++i) sum[r][i] = fma(value, w[i], sum[r][i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kR; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kV; ++i) store(m + r * kStep + i * kLanes, sum[r][i]);
  }
}

using SquareTile = void (*)(const float*, int64_t, const float*, int64_t, float*);

// By the number of squares.
template <int kV>
constexpr SquareTile kSquareTiles[kTileRows] = {square_tile<1, kV>, square_tile<2, kV>,
                                                square_tile<3, kV>, square_tile<4, kV>,
                                                square_tile<5, kV>, square_tile<6, kV>};

static inline const SquareTile* square_tiles_of(int64_t vectors) {
  constexpr int kThree = kPanel >= 3 ? 3 : kPanel;
  switch (vectors) {
    case 1:
      return kSquareTiles<1>;
    case 2:
      return kSquareTiles<2>;
    case 3:
      return kSquareTiles<kThree>;
    default:
      return kSquareTiles<kPanel>;
  }
}

struct SquareScratch {
  float* v;  // [matrix][square][channel]
  float* m;  // [matrix][square][wide]
  float* zeros;
  size_t used;

  SquareScratch(const Squares& s, char* memory) {
    Pieces pieces(memory);
    v = pieces.take<float>(kMatrices * s.v_step);
    m = pieces.take<float>(kMatrices * s.m_step);
    zeros = pieces.take<float>(s.row);
    used = static_cast<size_t>(pieces.next - memory) + 64;
  }
};

// Where a square lies.
struct SquarePlace {
  int64_t x, y, batch;

  SquarePlace(const Squares& s, int64_t number) {
    const int64_t line = number / s.across;
    batch = line / s.down;
    y = (line - batch * s.down) * kSide;
    x = (number - line * s.across) * kSide;
  }
};

static inline void enter_squares(const Squares& s, const SquareScratch& scratch, int64_t first,
                                 int64_t n) {
  const LastPlan& p = s.p;
  for (int64_t i = 0; i < n; ++i) {
    const SquarePlace at(s, first + i);
    const float* seen[kMatrices];
    for (int64_t k = 0; k < kMatrices; ++k) {
      const int64_t iy = at.y - p.y.padding + k / kReach, ix = at.x - p.x.padding + k % kReach;
      const bool inside = iy >= 0 && iy < p.y.in && ix >= 0 && ix < p.x.in;
      seen[k] = inside ? p.at(at.batch, iy, ix) : scratch.zeros;
    }
    enter_square(p, seen, scratch.v + i * s.row, s.v_step);
  }
}

// Turns the 16 matrices of products into the outputs of squares, for the panel from `channel` on.
static inline void leave_squares(const Call& call, const Squares& s, const SquareScratch& scratch,
                                 int64_t first, int64_t n, int64_t channel) {
  const LastPlan& p = s.p;
  const Tensor *bias = call.src[2], *residual = call.src[3];
  const vf low = splat(p.low), high = splat(p.high);
  const int64_t width = min64(s.wide, p.out_channels - channel);
  for (int64_t i = 0; i < n; ++i) {
    const SquarePlace at(s, first + i);
    for (int64_t c = 0; c < width; c += kLanes) {
      const int64_t lanes = min64(kLanes, width - c);
      const bool whole = lanes == kLanes;
      const float* m = scratch.m + i * s.wide + c;
      vf lines[kSide][kReach];
#pragma GCC unroll 4
      for (int x = 0; x < kReach; ++x) {
        vf t[kReach];
#pragma GCC unroll 4
        for (int y = 0; y < kReach; ++y) t[y] = load(m + (y * kReach + x) * s.m_step);
        lines[0][x] = t[0] + t[1] + t[2];
        lines[1][x] = t[1] - t[2] - t[3];
      }
      vf start = {};
      if (bias != nullptr) {
        const auto* b = reinterpret_cast<const float*>(bias->data) + channel + c;
        start = whole ? load(b) : load_part(b, lanes);
      }
#pragma GCC unroll 2
      for (int y = 0; y < kSide; ++y) {
        const vf* t = lines[y];
        const vf out[kSide] = {start + (t[0] + t[1] + t[2]), start + (t[1] - t[2] - t[3])};
#pragma GCC unroll 2
        for (int x = 0; x < kSide; ++x) {
          if (at.y + y >= p.y.out || at.x + x >= p.x.out) continue;
          const Index place = {at.x + x, at.y + y, at.batch};
          vf value = out[x];
          if (residual != nullptr) {
            const auto* r =
                reinterpret_cast<const float*>(row_data(*residual, place)) + channel + c;
            value += whole ? load(r) : load_part(r, lanes);
          }
          value = clamped(value, low, high);
          float* to = reinterpret_cast<float*>(row_data(call.dst, place)) + channel + c;
          if (whole) {
            store(to, value);
          } else {
            store_part(to, value, lanes);
          }
        }
      }
    }
    if (p.function == nullptr) continue;
    float* rows[kSide * kSide];
    int64_t there = 0;
    for (int64_t y = at.y; y < min64(at.y + kSide, p.y.out); ++y) {
      for (int64_t x = at.x; x < min64(at.x + kSide, p.x.out); ++x) {
        rows[there++] = reinterpret_cast<float*>(row_data(call.dst, Index{x, y, at.batch}));
      }
    }
    p.function(rows, there, channel, width);
  }
}

static inline void run_squares(const Call& call, const Squares& s, int64_t begin, int64_t end,
                               char* memory) {
  const LastPlan& p = s.p;
  const SquareScratch scratch(s, memory);
  fill_zeros(scratch.zeros, s.row);
  const auto* weights = reinterpret_cast<const float*>(call.shared);
  const SquareTile* tile_of = square_tiles_of(s.vectors);
  int64_t of_block = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t part = item % s.parts, block = item / s.parts;
    const int64_t first = block * s.block, n = min64(s.block, s.number - first);
    if (n <= 0) continue;
    if (block != of_block) enter_squares(s, scratch, first, n);
    of_block = block;
    const int64_t from = part * s.panels_of_part;
    const int64_t to = min64(from + s.panels_of_part, s.panels);
    const int64_t count = (n + kTileRows - 1) / kTileRows;
    for (int64_t panel = from; panel < to; ++panel) {
      for (int64_t k = 0; k < kMatrices; ++k) {
        const float* u = weights + (panel * kMatrices + k) * s.u_step();
        for (Shares tiles(n, count); tiles.more(); tiles.next()) {
          tile_of[tiles.size() - 1](scratch.v + k * s.v_step + tiles.begin * s.row, s.row, u,
                                    p.channels, scratch.m + k * s.m_step + tiles.begin * s.wide);
        }
      }
      leave_squares(call, s, scratch, first, n, panel * s.wide);
    }
  }
}

}  // namespace weft::WEFT_TARGET
