// Activations as the tiles of quantized weights take them: runs of at most kTileColumns columns,
// each a row of ActivationTiles.
#pragma once

#include "kernels/matmul/matmul_engine.h"
#include "quants/formats.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

static inline int64_t run_columns(int64_t n) {
  return kTileSizes[tile_variant(min64(n, kTileColumns))];
}

static inline int64_t packed_columns(int64_t n) {
  const int64_t whole = n / kTileColumns * kTileColumns;
  return n > whole ? whole + run_columns(n - whole) : whole;
}

template <typename Activation>
static CodeSums activation_sums(const QuantKernels& kernels, const Activation* row, int64_t chunk) {
  if (!kernels.one_scale) return sum_codes(activation_codes(row, chunk));
  CodeSums block;
  if (chunk % 8 != 0) return block;
  for (int i = 0; i < 8; ++i) {
    const CodeSums sums = sum_codes(activation_codes(row, chunk + i));
    for (const PairSums& half : sums.half) block.half[0].add(half);
  }
  return block;
}

// What a minimum is multiplied with: the sum of the codes, times their scale where that is no
// block's. q8_1 blocks carry it.
template <typename Activation>
static float minimum_factor(const Activation* row, int64_t chunk, int32_t sum) {
  if constexpr (sizeof(Activation) == sizeof(BlockQ8_1)) return half_to_float(row[chunk].s);
  return static_cast<float>(sum);
}

// See ActivationTile.
static inline int32_t zero_correction(const QuantKernels& kernels, const PairSums& sums) {
  const int32_t zero = kernels.zero;
  if (!kPairedDots || kernels.wide_zero) return -zero * sums.all();
  const auto low = static_cast<uint16_t>(-zero * sums.of[0]);
  const auto high = static_cast<uint16_t>(-zero * sums.of[1]);
  return static_cast<int32_t>(uint32_t{high} << 16 | low);
}

// The sums of two groups: see ActivationTile.
template <typename Activation>
static int32_t pair_of_sums(const QuantKernels& kernels, const Activation* row, int64_t chunk,
                            const CodeSums& sums) {
  int32_t second = sums.half[1].all();
  if (kernels.groups == 1) {
    if (chunk % 2 != 0) return 0;
    const CodeSums next = sum_codes(activation_codes(row, chunk + 1));
    second = next.half[0].all() + next.half[1].all();
  }
  const auto low = static_cast<uint16_t>(sums.half[0].all());
  const auto high = static_cast<uint16_t>(second);
  return static_cast<int32_t>(uint32_t{high} << 16 | low);
}

// The same with kLaneDots: bytes of the sums of four groups.
static inline int32_t bytes_of_sums(const QuantKernels& kernels, const BlockQ8_K* row,
                                    int64_t chunk) {
  const BlockQ8_K& block = row[chunk / 8];
  const int64_t words = 2 * kernels.groups, word = chunk % 8;
  uint32_t four = 0;
  for (int64_t i = 0; i < 4 && word < 2 * words; ++i) {
    const int64_t g = word % words * 4 + i;
    const int sum =
        kernels.groups == 2 ? block.bsums[g] : block.bsums[2 * g] + block.bsums[2 * g + 1];
    const int part = word < words ? sum & 127 : sum >> 7;
    four |= static_cast<uint32_t>(static_cast<uint8_t>(part)) << 8 * i;
  }
  return static_cast<int32_t>(four);
}

// What multiplies a run: panels as they are stored, or unpacked ones.
enum class Use { kStored, kUnpacked };

// Where the codes of a column are in a tile: eight codes at `first`, the next eight `step` further.
struct Place {
  int64_t first, step;

  Place(int64_t width, int64_t lane, Use use) : first(lane * 32), step(8) {
    if (!kMatrixDots || use == Use::kStored || width % 2 != 0) return;
    first = lane * 8;
    step = width * 8;
  }

  void put(s8x32 q, char* tile) const {
    if constexpr (kMatrixDots) {
      typedef int64_t eights __attribute__((vector_size(32)));
      const auto codes = reinterpret_cast<eights>(q);
      for (int i = 0; i < 4; ++i) {
        const int64_t eight = codes[i];
        std::memcpy(tile + first + i * step, &eight, 8);
      }
    } else {
      std::memcpy(tile + first, &q, sizeof q);
    }
  }
};

// Column `lane` of a run of `width`: see ActivationTile.
template <typename Activation>
static void pack_column(const QuantKernels& kernels, const char* x, int64_t first, int64_t n_chunks,
                        int64_t width, int64_t lane, Use use, char* run) {
  const Place place(width, lane, use);
  const auto* row = reinterpret_cast<const Activation*>(x);
  for (int64_t i = 0; i < n_chunks; ++i, run += width * kTileBytes) {
    const s8x32 q = activation_codes(row, first + i);
    const float d = activation_scale(row, first + i);
    CodeSums sums = activation_sums(kernels, row, first + i);
    if (kernels.groups == 1) sums.half[0].add(sums.half[1]);
    place.put(q, run);
    std::memcpy(run + width * 32 + lane * 4, &d, 4);
    if constexpr (kLaneDots && sizeof(Activation) == sizeof(BlockQ8_K)) {
      if (kernels.whole_sums && kernels.has_min) {
        const int32_t four = bytes_of_sums(kernels, row, first + i);
        std::memcpy(run + width * 36 + lane * 4, &four, 4);
        continue;
      }
    }
    if (kernels.whole_sums && kernels.has_min) {
      const int32_t pair = pair_of_sums(kernels, row, first + i, sums);
      std::memcpy(run + width * 36 + lane * 4, &pair, 4);
      continue;
    }
    for (int g = 0; g < kernels.groups; ++g) {
      char* at = run + width * 36 + (g * width + lane) * 4;
      if (kernels.has_min) {
        const float value = minimum_factor(row, first + i, sums.half[g].all());
        std::memcpy(at, &value, 4);
      } else {
        const int32_t value = zero_correction(kernels, sums.half[g]);
        std::memcpy(at, &value, 4);
      }
    }
  }
}

// Columns left..right, chunks first..first+n_chunks. A run has room for `deep` chunks.
static inline void pack_columns(const QuantKernels& kernels, const Columns& columns, int64_t left,
                                int64_t right, int64_t first, int64_t n_chunks, int64_t deep,
                                Use use, char* tiles) {
  for (int64_t start = left; start < right; start += kTileColumns) {
    const int64_t n = min64(kTileColumns, right - start);
    const int64_t width = run_columns(n);
    char* run = tiles + (start - left) * deep * kTileBytes;
    if (n < width) std::memset(run, 0, static_cast<size_t>(width * n_chunks * kTileBytes));
    for (int64_t c = 0; c < n; ++c) {
      const char* x = columns.x[start + c];
      if (kernels.activation == DType::kQ8_0) {
        pack_column<BlockQ8_0>(kernels, x, first, n_chunks, width, c, use, run);
      } else if (kernels.activation == DType::kQ8_1) {
        pack_column<BlockQ8_1>(kernels, x, first, n_chunks, width, c, use, run);
      } else {
        pack_column<BlockQ8_K>(kernels, x, first, n_chunks, width, c, use, run);
      }
    }
  }
}

}  // namespace weft::WEFT_TARGET
