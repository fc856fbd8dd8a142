// Kernels of bf16 pairs. This file alone is compiled for their dot products (simd/bf16.h).
#include "kernels/matmul/matmul_bf16.h"

#include "kernels/simd/bf16.h"
#include "kernels/simd/lanes.h"
#include "kernels/simd/tiles.h"

namespace weft::WEFT_TARGET {

#if defined(WEFT_BF16_DOTS)

namespace {

struct MultiplyPairs {
  static inline vf add(vf acc, vf a, vf b) { return dot_bf16(acc, a, b); }
};

// A word is a pair, of panels as of columns.
struct PairWords {
  [[maybe_unused]] static constexpr int64_t kColumnWords = 1;
  static inline vf all(const float* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return reinterpret_cast<vf>(pair + vi{});
  }
  static inline vf add(vf acc, vf rows, vf x) { return dot_bf16(acc, rows, x); }
};

// The same of panels of f16, whose words are rounded.
struct RoundedWords : PairWords {
  static inline vf add(vf acc, vf rows, vf x) {
    return dot_bf16(acc, round_pairs(split_halves(rows)), x);
  }
};

#if defined(WEFT_TILES)

// Panels by tiles, for a single column, too: its sums are those that it has beside others. A sum is
// added to every 16 words of depth (simd/tiles.h), wherever the depth is divided.

// kFirst: tiles of columns and of both halves of a panel, words of depth from `k` on.
template <int kFirst>
void add_words(const PanelPart& part, int64_t k) {
  load_tile<kFirst>(part.x + k, part.stride * 4);
  load_tile<kFirst + 1>(part.w + k * kPanelRows, kPanelRows * 4);
  load_tile<kFirst + 2>(part.w + k * kPanelRows + kLanes, kPanelRows * 4);
  add_bf16_tiles<0, kFirst, kFirst + 1>();
  add_bf16_tiles<1, kFirst, kFirst + 2>();
}

// Up to 16 columns of a panel.
void multiply_tile_columns(const PanelPart& part, int64_t n, float* const* out, int64_t row) {
  static_assert(kPanelRows == 2 * kLanes);
  alignas(64) float sums[2][kMostTileRows][kLanes];
  if (part.begins) {
    zero_tile<0>();
    zero_tile<1>();
  } else {
    for (int64_t c = 0; c < n; ++c) {
      for (int v = 0; v < 2; ++v) store(sums[v][c], load(out[c] + row + v * kLanes));
    }
    load_tile<0>(sums[0], kTileRowBytes);
    load_tile<1>(sums[1], kTileRowBytes);
  }
  int64_t k = 0;
  for (; k + kLanes <= part.depth; k += kLanes) add_words<2>(part, k);
  if (k < part.depth) add_words<5>(part, k);
  store_tile<0>(sums[0], kTileRowBytes);
  store_tile<1>(sums[1], kTileRowBytes);
  for (int64_t c = 0; c < n; ++c) {
    for (int v = 0; v < 2; ++v) {
      const int64_t at = row + v * kLanes;
      store(out[c] + at, finished(part.finish, load(sums[v][c]), at));
    }
  }
}

void multiply_tile_panel(PanelPart part, int64_t n, float* const* out, int64_t row) {
  TileUse tiles;
  while (n > 0) {
    const int64_t columns = min64(n, kMostTileRows);
    tiles.shape_pairs(static_cast<int>(columns), static_cast<int>(part.depth % kLanes));
    multiply_tile_columns(part, columns, out, row);
    part.x += columns * part.stride;
    out += columns;
    n -= columns;
  }
}

template <int kPanels>
void multiply_tile_column(const float* w, const float* x, int64_t depth, const Finish& finish,
                          float* out, int64_t row) {
  for (int p = 0; p < kPanels; ++p) {
    const PanelPart part = {w + p * depth * kPanelRows, x, depth, depth, true, finish};
    multiply_tile_panel(part, 1, &out, row + p * kPanelRows);
  }
}

#endif

struct PairRow {
  static constexpr DType kColumns = DType::kBF16;
  static constexpr int64_t kElements = 2 * kLanes;
  static constexpr int64_t kSize = 2;
  static inline vf weights(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf column(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf add(vf acc, vf w, vf x) { return dot_bf16(acc, w, x); }
};

void stage_halves(const float* panel, int64_t words, float* to) {
  for (const float* end = panel + words * kPanelRows; panel < end; panel += kLanes, to += kLanes) {
    store(to, round_pairs(split_halves(load(panel))));
  }
}

#if defined(WEFT_TILES)
// A single column times panels of f16, which are rounded a part at a time.
template <int kPanels>
void multiply_rounded_column(const float* w, const float* x, int64_t depth, const Finish& finish,
                             float* out, int64_t row) {
  constexpr int64_t kWords = 64;  // of depth
  alignas(64) float staged[kWords * kPanelRows];
  for (int p = 0; p < kPanels; ++p, row += kPanelRows) {
    for (int64_t k = 0; k < depth; k += kWords) {
      const int64_t words = min64(kWords, depth - k);
      stage_halves(w + (p * depth + k) * kPanelRows, words, staged);
      const bool ends = k + words == depth;
      const PanelPart part = {staged, x + k, words, words, k == 0, ends ? finish : Finish{}};
      multiply_tile_panel(part, 1, &out, row);
    }
  }
}
#endif

// The kernels of panels of bf16, or of f16.
PanelKernels pair_panels(bool halves) {
#if defined(WEFT_TILES)
  if (!halves) {
    return {multiply_tile_panel, {multiply_tile_column<1>, multiply_tile_column<2>}};
  }
  return {multiply_tile_panel, {multiply_rounded_column<1>, multiply_rounded_column<2>}};
#else
  if (!halves) return panel_kernels<PairWords>();
  return panel_kernels<PairWords, RoundedWords>();
#endif
}

}  // namespace

const Bf16Kernels* bf16_kernels() {
  static const Bf16Kernels kernels = {dot_rows<PairRow>, tile_kernels<MultiplyPairs>(),
                                      pair_panels(false), pair_panels(true), stage_halves};
  return has_bf16_dots() ? &kernels : nullptr;
}

#else

const Bf16Kernels* bf16_kernels() { return nullptr; }

#endif

}  // namespace weft::WEFT_TARGET
