// Rows of quantized weights, unpacked into a panel (AVX2 and up, NEON).
#pragma once

#include "quants/lane_dots.h"

namespace weft::WEFT_TARGET {

// Eight words of a chunk to a panel at `q`, for some of its rows, from `row` on; signed where they
// are wide.
template <typename F, typename V>
static inline void put_words(const V (&words)[8], uint8_t* q, int row) {
  q += panel_place(row);
  if constexpr (kPanelWords<F> == 8) return put_bytes(words, q);
  constexpr int kGroup = 8 / kGroupsPerChunk<F>;  // words
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const int even = j + j / kGroup * kGroup;
    store_as(q + even * kWordStep, even_codes(words[j]));
    store_as(q + (even + kGroup) * kWordStep, odd_codes(words[j]));
  }
}

// A number as a panel has it, which sums are multiplied with: twice, where those are pairs.
template <typename F>
static inline int32_t panel_step(int32_t step) {
  if (kWholeDots || kSigned<F>) return step;
  return static_cast<int32_t>(static_cast<uint32_t>(step) << 16) | (step & 0xffff);
}

// The scales of row `r` of block `b` of a panel, as whole numbers.
template <typename F>
static inline void pack_steps(const typename F::Block& block, int64_t b, int r, const Panel& out) {
  out.d[b * kPanelRows + r] = F::d(block);
  if constexpr (F::kHasMin) out.low_d[b * kPanelRows + r] = F::low_d(block);
  for (int half = 0; half < F::kGroups / 8; ++half) {
    const i32x8 steps = F::step8(block, half);
    for (int g = 0; g < 8; ++g) {
      const int32_t step = panel_step<F>(steps[g]);
      std::memcpy(out.scale + (b * F::kGroups + 8 * half + g) * kPanelRows + r, &step, 4);
    }
    if constexpr (F::kHasMin) {
      const i32x8 lows = F::low8(block, half);
      if constexpr (kLaneDots) {
        for (int g = 0; g < 8; g += 4) {
          const int32_t four = lows[g + 3] << 24 | lows[g + 2] << 16 | lows[g + 1] << 8 | lows[g];
          std::memcpy(out.min + (b * F::kGroups + 8 * half + g) / 4 * kPanelRows + r, &four, 4);
        }
      } else {
        for (int g = 0; g < 8; g += 2) {
          const int32_t two = lows[g + 1] << 16 | lows[g];
          std::memcpy(out.min + (b * F::kGroups + 8 * half + g) / 2 * kPanelRows + r, &two, 4);
        }
      }
    }
  }
}

template <typename F>
void pack_panel(const char* w, int64_t stride, int64_t rows, int64_t first_chunk, int64_t n_chunks,
                int64_t next, const Panel& out) {
  constexpr int kPer = kGroupsPerChunk<F>;
  const int64_t first = first_chunk / F::kChunks;
  const int64_t n_blocks = n_chunks / F::kChunks;
  const typename F::Block* row[kPanelRows];
  for (int r = 0; r < kPanelRows; ++r) {
    const int64_t clamped = r < rows ? r : rows - 1;
    row[r] = reinterpret_cast<const typename F::Block*>(w + clamped * stride) + first;
  }
  for (int64_t b = 0; b < n_blocks; ++b) {
    for (int r = 0; r < kPanelRows; ++r) {
      const char* ahead = reinterpret_cast<const char*>(row[r] + b) + next;
      for (size_t line = 0; line < sizeof(typename F::Block); line += 64) {
        __builtin_prefetch(ahead + line, 0, 2);
      }
      if constexpr (kWholeSums<F>) {
        pack_steps<F>(row[r][b], b, r, out);
        continue;
      }
      float scales[F::kGroups];
      float mins[F::kGroups];
      block_scales<F>(row[r][b], scales, mins);
      for (int g = 0; g < F::kGroups; ++g) {
        const int64_t at = (b * F::kGroups + g) * kPanelRows + r;
        out.scale[at] = scales[g];
        if constexpr (F::kHasMin) out.min[at] = mins[g];
      }
    }
    static_assert(F::kGroups == F::kChunks * kPer);
#pragma GCC unroll 8
    for (int c = 0; c < F::kChunks; ++c) {
      uint8_t* q = out.q + (b * F::kChunks + c) * kPanelWords<F> * 4 * kPanelRows;
      for (int part = 0; part < kPanelRows; part += 8) {
        i32x8 v[8];
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) {
          u8x32 codes = F::codes(row[part + r][b], c);
          if constexpr (kSigned<F>) codes ^= splat8(128);
          v[r] = reinterpret_cast<i32x8>(codes);
        }
        transpose8(v);
        put_words<F>(v, q, part);
      }
    }
  }
}

}  // namespace weft::WEFT_TARGET
