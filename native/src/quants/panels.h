// Panels of weight rows, and their product with tiles of activation rows (AVX2 and up, NEON).
//
// Two vectors of rows at a time, so that each load of activations feeds two products and each load
// of weights one a column. With AVX-512 and six columns, 12 integer and 12 float sums stay in
// registers.
#pragma once

#include "quants/pack_panel.h"
#include "quants/panel_sums.h"
#include "quants/tile_panels.h"

namespace weft::WEFT_TARGET {

template <int kVectors, int kColumns>
static inline void load_sums(vf (&acc)[kVectors][kColumns], int first, float* const* out) {
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) acc[v][c] = load(out[c] + first + v * kLanes);
  }
}

template <int kVectors, int kColumns>
static inline void put_sums(const vf (&acc)[kVectors][kColumns], int first, float factor,
                            float* const* out) {
  if constexpr (kLaneDots) {
    float* to[kColumns];  // all before the first store, which might change them
    for (int c = 0; c < kColumns; ++c) to[c] = out[c] + first;
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) store(to[c] + v * kLanes, acc[v][c] * splat(factor));
    }
  } else {
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) {
        store(out[c] + first + v * kLanes, acc[v][c] * splat(factor));
      }
    }
  }
}

// Adds the sums of a block, times the activations' scale (and the scale of the weights, if they
// have one).
template <typename F, int kVectors, int kColumns>
static inline void put_block(const vf (&acc)[kVectors][kColumns], const float* scale,
                             const float* d, int first, bool add, float* const* out) {
#pragma GCC unroll 16
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) {
      float* at = out[c] + first + v * kLanes;
      vf factor = splat(d[c]);
      if constexpr (kOneScale<F>) factor = load(scale + v * kLanes) * factor;
      store(at, fma(acc[v][c], factor, add ? load(at) : vf{}));
    }
  }
}

template <typename F, int kVectors, int kColumns>
static inline void multiply_vectors(const Panel& panel, const ActivationTile<kColumns>* x,
                                    const TileCodes<F, kColumns>& codes, int64_t n_chunks,
                                    int first, bool add, float factor, float* const* out) {
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int64_t kBytes = kPanelWords<F> * 4 * kPanelRows;  // of a chunk
  constexpr int64_t kParts = kPanelRows / kLanes / kVectors;
  const int64_t part = first / kLanes / kVectors;  // of the panel
  const uint8_t* q = panel.q + panel_place(first);
  const float* scale = panel.scale + first;
  const float* min = panel.min + first;
  if constexpr (!kBlockActivations<F>) {
    vf acc[kVectors][kColumns] = {};
    if (add) load_sums(acc, first, out);
    for (int64_t i = 0; i < n_chunks; ++i) {
      if (panel.ahead_bytes != 0) fetch_ahead(panel, part * n_chunks + i, kParts * n_chunks);
      add_chunk<F>(q + i * kBytes, scale + i * kPer * kPanelRows, min + i * kPer * kPanelRows,
                   codes.chunk(x, i), x[i], acc);
    }
    put_sums(acc, first, factor, out);
  } else {
    for (int64_t b = 0; b < n_chunks; b += 8) {
      if constexpr (kWholeSums<F>) {
        vi whole[kVectors][kColumns] = {};
        for (int64_t i = b; i < b + 8; ++i) {
          if (panel.ahead_bytes != 0) fetch_ahead(panel, part * n_chunks + i, kParts * n_chunks);
          add_chunk_steps<F>(q + i * kBytes, scale + i * kPer * kPanelRows, codes.chunk(x, i), x[i],
                             whole);
        }
        put_steps<F>(whole, panel, b / 8, x + b, first, add || b > 0, out);
        continue;
      }
      vf acc[kVectors][kColumns] = {};
      if constexpr (kOneScale<F>) {
        if (panel.ahead_bytes != 0) {
          fetch_ahead(panel, (part * n_chunks + b) / 8, kParts * n_chunks / 8);
        }
        sum_block<F>(q + b * kBytes, x + b, codes, b, acc);
      } else {
        for (int64_t i = b; i < b + 8; ++i) {
          if (panel.ahead_bytes != 0) fetch_ahead(panel, part * n_chunks + i, kParts * n_chunks);
          add_chunk<F>(q + i * kBytes, scale + i * kPer * kPanelRows, min + i * kPer * kPanelRows,
                       codes.chunk(x, i), x[i], acc);
        }
      }
      put_block<F>(acc, scale + b * kPanelRows, x[b].d, first, add || b > 0, out);
    }
  }
}

template <typename F, int kColumns>
void multiply_tile(const Panel& panel, const void* x, int64_t n_chunks, bool add, float scale,
                   float* const* out) {
  const auto* tiles = static_cast<const ActivationTile<kColumns>*>(x);
#if defined(WEFT_TILES)
  if constexpr (kByTiles<kColumns>) {
    return multiply_by_tiles<F>(panel, tiles, n_chunks, add, scale, out);
  }
#endif
  const TileCodes<F, kColumns> codes(tiles, n_chunks);
  for (int first = 0; first < kPanelRows; first += kTileVectors * kLanes) {
    multiply_vectors<F, kTileVectors>(panel, tiles, codes, n_chunks, first, add, scale, out);
  }
}

}  // namespace weft::WEFT_TARGET
