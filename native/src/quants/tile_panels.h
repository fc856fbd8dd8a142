// Panels times many columns by tiles (AMX): a tile of columns times the words of a group of a panel
// gives its sums, which are the same whole numbers as those of lane_dots.h. They become floats in
// the order of quant_kernels.h, so that results have the bits of the target below.
#pragma once

#include "kernels/simd/tiles.h"
#include "quants/lane_dots.h"

namespace weft::WEFT_TARGET {

// Whether so many columns are multiplied by tiles; with fewer most rows of a tile would be idle.
template <int kColumns>
inline constexpr bool kByTiles = kTiles && kColumns >= 8;

#if defined(WEFT_TILES)

// Chunks whose sums are in memory at a time: a block, or as many.
inline constexpr int kSummedChunks = 8;

// The sums of groups, one after the other.
template <typename F>
inline constexpr int kSummedGroups = kOneScale<F> ? 1 : kSummedChunks * kGroupsPerChunk<F>;
template <typename F, int kColumns>
using GroupSums = int32_t[kSummedGroups<F>][kTileVectors][kColumns][kLanes];

// The sums of a group: tiles kSum and kSum + 1 and kCodes are free, `words` and `codes` begin it.
template <int kSum, int kCodes, bool kBegins>
static inline void add_group(const uint8_t* words, const int8_t* codes) {
  static_assert(kTileVectors * kLanes == kPanelRows && !kMatrixDots);
  if (kBegins) {
    zero_tile<kSum>();
    zero_tile<kSum + 1>();
  }
  load_tile<kCodes>(codes, 32);
  load_tile<6>(words, kWordStep);
  load_tile<7>(words + kTileRowBytes, kWordStep);
  add_byte_tiles<kSum, kCodes, 6>();
  add_byte_tiles<kSum + 1, kCodes, 7>();
}
template <int kSum, int kColumns>
static inline void put_group(int32_t (&sums)[kTileVectors][kColumns][kLanes]) {
  store_tile<kSum>(sums[0], kTileRowBytes);
  store_tile<kSum + 1>(sums[1], kTileRowBytes);
}

// The sums of `n_chunks` chunks of the panel at `q`. Groups take turns in two sets of tiles, so
// that one is stored while the next is added up.
template <typename F, int kColumns>
static inline void sum_groups(const uint8_t* q, const ActivationTile<kColumns>* x, int64_t n_chunks,
                              GroupSums<F, kColumns>& sums) {
  constexpr int64_t kBytes = 8 * kWordStep;
  if constexpr (kOneScale<F>) {
    add_group<0, 4, true>(q, x->q[0]);
    for (int64_t i = 1; i < n_chunks; ++i) add_group<0, 4, false>(q + i * kBytes, x[i].q[0]);
    return put_group<0>(sums[0]);
  } else {
    constexpr int kPer = kGroupsPerChunk<F>;
    constexpr int kWords = 8 / kPer;
    const auto words = [&](int64_t g) { return q + g * kWords * kWordStep; };
    const auto codes = [&](int64_t g) { return x[g / kPer].q[0] + g % kPer * kWords * 4; };
    const int64_t n = n_chunks * kPer;
    for (int64_t g = 0; g + 1 < n; g += 2) {
      add_group<0, 4, true>(words(g), codes(g));
      add_group<2, 5, true>(words(g + 1), codes(g + 1));
      put_group<0>(sums[g]);
      put_group<2>(sums[g + 1]);
    }
    if (n % 2 != 0) {
      add_group<0, 4, true>(words(n - 1), codes(n - 1));
      put_group<0>(sums[n - 1]);
    }
  }
}

// Where a panel's scales and minima of some chunks are; with `add`, their results are added to
// those so far. `factor`: of the whole tensor.
struct SummedPart {
  const float* scale;
  const float* min;
  int64_t n_chunks;
  bool add;
  float factor;
};

// The results of kAtOnce columns from `first` on.
template <typename F, int kAtOnce, int kColumns>
static inline void put_columns(const GroupSums<F, kColumns>& sums, const SummedPart& part,
                               const ActivationTile<kColumns>* x, int first, float* const* out) {
  constexpr int kPer = kGroupsPerChunk<F>;
  vf acc[kAtOnce][kTileVectors] = {};
  const auto whole = [&](int64_t g, int v, int c, const ActivationTile<kColumns>& at, int group) {
    const vi sum = load_as<vi>(sums[g][v][c]) + start_sum<F>(at, group, c);
    return __builtin_convertvector(sum, vf);
  };
  if (!kBlockActivations<F> && part.add) {
    for (int i = 0; i < kAtOnce; ++i) {
      for (int v = 0; v < kTileVectors; ++v) acc[i][v] = load(out[first + i] + v * kLanes);
    }
  }
  if constexpr (kOneScale<F>) {
    for (int i = 0; i < kAtOnce; ++i) {
      for (int v = 0; v < kTileVectors; ++v) acc[i][v] = whole(0, v, first + i, *x, 0);
    }
  } else {
    for (int64_t chunk = 0; chunk < part.n_chunks; ++chunk) {
#pragma GCC unroll 2
      for (int group = 0; group < kPer; ++group) {
        const int64_t g = chunk * kPer + group;
#pragma GCC unroll 4
        for (int i = 0; i < kAtOnce; ++i) {
          const int c = first + i;
#pragma GCC unroll 2
          for (int v = 0; v < kTileVectors; ++v) {
            vf w = load(part.scale + g * kPanelRows + v * kLanes);
            if constexpr (!kBlockActivations<F>) w = w * splat(x[chunk].d[c]);
            acc[i][v] = fma(whole(g, v, c, x[chunk], group), w, acc[i][v]);
            if constexpr (F::kHasMin) {
              const vf m = load(part.min + g * kPanelRows + v * kLanes);
              acc[i][v] = fma(m, splat(x[chunk].sum[group][c]), acc[i][v]);
            }
          }
        }
      }
    }
  }
  for (int i = 0; i < kAtOnce; ++i) {
    for (int v = 0; v < kTileVectors; ++v) {
      float* to = out[first + i] + v * kLanes;
      if constexpr (kBlockActivations<F>) {
        vf factor = splat(x->d[first + i]);
        if constexpr (kOneScale<F>) factor = load(part.scale + v * kLanes) * factor;
        store(to, fma(acc[i][v], factor, part.add ? load(to) : vf{}));
      } else {
        store(to, acc[i][v] * splat(part.factor));
      }
    }
  }
}

// See QuantKernels::tile.
template <typename F, int kColumns>
static inline void multiply_by_tiles(const Panel& panel, const ActivationTile<kColumns>* x,
                                     int64_t n_chunks, bool add, float factor, float* const* out) {
  static_assert(!kWholeSums<F> && kWholeDots && !kSigned<F> && !kWideZero<F>);
  static_assert(!kOneScale<F> || kBlockActivations<F>);
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int kAtOnce = 4;  // columns whose results are in registers
  alignas(64) GroupSums<F, kColumns> sums;
  panel.tiles->shape_bytes(kColumns, kOneScale<F> ? 8 : 8 / kPer);
  for (int64_t b = 0; b < n_chunks; b += kSummedChunks) {
    const int64_t n = n_chunks - b < kSummedChunks ? n_chunks - b : kSummedChunks;
    const int64_t parts = (n_chunks + kSummedChunks - 1) / kSummedChunks;
    if (panel.ahead_bytes != 0) fetch_ahead(panel, b / kSummedChunks, parts);
    sum_groups<F>(panel.q + b * 8 * kWordStep, x + b, n, sums);
    const int64_t at = b * kPer * kPanelRows;
    const SummedPart part = {panel.scale + at, panel.min + at, n, add || b > 0,
                             b + n == n_chunks ? factor : 1.0f};
    for (int c = 0; c < kColumns; c += kAtOnce) {
      put_columns<F, kAtOnce>(sums, part, x + b, c, out);
    }
  }
}

#endif

}  // namespace weft::WEFT_TARGET
