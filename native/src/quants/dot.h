// Dot products of rows of a format with one activation row, both read in place.
//
// Eight rows are multiplied at a time. Their integer sums are gathered in a vector, one row per
// lane, so that the float sums follow in the order of quant_kernels.h, as for panels.
#pragma once

#include "kernels/simd/stream.h"
#include "quants/formats.h"

namespace weft::WEFT_TARGET {

// Each lane is the sum of (code - kZero) * x over four elements; `correction` is dot_zero<F>(x).
template <typename F>
static inline i32x8 dot_chunk(u8x32 codes, s8x32 x, i32x8 correction) {
  if constexpr (F::kTop > 127) {
    return dot_bytes_wide(codes, x, correction);
  } else {
    return dot_bytes(correction, codes, x);
  }
}

// Each lane is the sum of -kZero * x over four elements; 0 where dot_chunk does not need it.
template <typename F>
static inline i32x8 dot_zero(s8x32 x) {
  // Here dot_bytes_wide multiplies codes above 127 as signed numbers, less 128.
  if constexpr ((kLaneDots || kPairedDots) && F::kTop > 127) return i32x8{};
  if constexpr (F::kZero == 0) return i32x8{};
  return -dot_bytes(i32x8{}, splat8(F::kZero), x);
}

// Adds up the lanes 0-3 of each of eight vectors, and its lanes 4-7: lane r of sums[0], and of
// sums[1], is the sum of p[r].
static inline void add_halves(const i32x8 (&p)[8], i32x8 (&sums)[2]) {
  i32x8 pairs[4];
  i32x8 fours[2];
  for (int i = 0; i < 4; ++i) {
    const i32x8 a = p[2 * i];
    const i32x8 b = p[2 * i + 1];
    pairs[i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
               __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  }
  for (int i = 0; i < 2; ++i) {
    const i32x8 a = pairs[2 * i];
    const i32x8 b = pairs[2 * i + 1];
    fours[i] = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
               __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  sums[0] = __builtin_shufflevector(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11);
  sums[1] = __builtin_shufflevector(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

static inline i32x8 add_all(const i32x8 (&p)[8]) {
  i32x8 sums[2];
  add_halves(p, sums);
  return sums[0] + sums[1];
}

// The scales of block `b` of eight rows, and their minima where the format has them, by group.
template <typename F>
static inline void row_scales(const typename F::Block* const (&rows)[8], int64_t b,
                              float (&scales)[F::kGroups][8],
                              [[maybe_unused]] float (&mins)[F::kGroups][8]) {
  for (int r = 0; r < 8; ++r) {
    float scale[F::kGroups];
    float min[F::kGroups];
    block_scales<F>(rows[r][b], scale, min);
    for (int g = 0; g < F::kGroups; ++g) {
      scales[g][r] = scale[g];
      if constexpr (F::kHasMin) mins[g][r] = min[g];
    }
  }
}

// The sum of the codes of group g of chunk c. (They are not aligned, so there is no pointer.)
template <typename F>
static inline int32_t block_sum(const BlockQ8_K& x, int c, int g) {
  const int first = 2 * c;
  return kGroupsPerChunk<F> == 2 ? x.bsums[first + g] : x.bsums[first] + x.bsums[first + 1];
}

// The factor of the minimum of group g of chunk c: ActivationTile::sum.
template <typename F>
static inline float minimum_sum(const typename F::Activation* x, int64_t b, int c, int g) {
  if constexpr (!kBlockActivations<F>) {
    return half_to_float(x[b * F::kChunks + c].s);
  } else {
    return static_cast<float>(block_sum<F>(x[b], c, g));
  }
}

// Adds the products of block `b` of eight rows to `acc`, group by group.
template <typename F>
static inline void dot_groups(const typename F::Block* const (&rows)[8],
                              const typename F::Activation* x, int64_t b, f32x8& acc) {
  constexpr int kPer = kGroupsPerChunk<F>;
  float scales[F::kGroups][8];
  float mins[F::kGroups][8];
  row_scales<F>(rows, b, scales, mins);
#pragma GCC unroll 8
  for (int c = 0; c < F::kChunks; ++c) {
    const int64_t chunk = b * F::kChunks + c;
    const s8x32 codes = activation_codes(x, chunk);
    const i32x8 correction = dot_zero<F>(codes);
    i32x8 p[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) p[r] = dot_chunk<F>(F::codes(rows[r][b], c), codes, correction);
    i32x8 sums[2];
    add_halves(p, sums);
    if constexpr (kPer == 1) sums[0] += sums[1];
    for (int g = 0; g < kPer; ++g) {
      f32x8 factor = load_as<f32x8>(scales[c * kPer + g]);
      if constexpr (!kBlockActivations<F>) factor = factor * splat8f(activation_scale(x, chunk));
      acc = fma8(to_floats(sums[g]), factor, acc);
      if constexpr (F::kHasMin) {
        const f32x8 min = load_as<f32x8>(mins[c * kPer + g]);
        acc = fma8(min, splat8f(minimum_sum<F>(x, b, c, g)), acc);
      }
    }
  }
}

// The same for a format whose blocks are added up as whole numbers.
template <typename F>
static inline void dot_steps(const typename F::Block* const (&rows)[8], const BlockQ8_K* x,
                             int64_t b, f32x8& acc) {
  constexpr int kPer = kGroupsPerChunk<F>;
  int32_t steps[F::kGroups][8];
  int32_t lows[F::kGroups][8];
  f32x8 d, low_d;
  for (int r = 0; r < 8; ++r) {
    const typename F::Block& block = rows[r][b];
    d[r] = F::d(block);
    if constexpr (F::kHasMin) low_d[r] = F::low_d(block);
    for (int half = 0; half < F::kGroups / 8; ++half) {
      const i32x8 step = F::step8(block, half);
      for (int g = 0; g < 8; ++g) steps[8 * half + g][r] = step[g];
      if constexpr (F::kHasMin) {
        const i32x8 low = F::low8(block, half);
        for (int g = 0; g < 8; ++g) lows[8 * half + g][r] = low[g];
      }
    }
  }
  i32x8 whole = {}, low = {};
#pragma GCC unroll 8
  for (int c = 0; c < F::kChunks; ++c) {
    const s8x32 codes = activation_codes(x, b * 8 + c);
    const i32x8 correction = dot_zero<F>(codes);
    i32x8 p[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) p[r] = dot_chunk<F>(F::codes(rows[r][b], c), codes, correction);
    i32x8 sums[2];
    add_halves(p, sums);
    if constexpr (kPer == 1) sums[0] += sums[1];
    for (int g = 0; g < kPer; ++g) {
      whole += sums[g] * load_as<i32x8>(steps[c * kPer + g]);
      if constexpr (F::kHasMin) {
        low += load_as<i32x8>(lows[c * kPer + g]) * block_sum<F>(x[b], c, g);
      }
    }
  }
  acc = fma8(to_floats(whole), d * splat8f(x[b].d), acc);
  if constexpr (F::kHasMin) acc = fma8(to_floats(low), low_d * splat8f(x[b].d), acc);
}

// The same for a format whose blocks have one scale.
template <typename F>
static inline void dot_block(const typename F::Block* const (&rows)[8], const BlockQ8_K* x,
                             int64_t b, f32x8& acc) {
  i32x8 p[8] = {};
#pragma GCC unroll 8
  for (int c = 0; c < 8; ++c) {
    const s8x32 codes = activation_codes(x, b * 8 + c);
    const i32x8 correction = dot_zero<F>(codes);
#pragma GCC unroll 8
    for (int r = 0; r < 8; ++r) {
      p[r] += dot_chunk<F>(F::codes(rows[r][b], c), codes, correction);
    }
  }
  f32x8 scale;
  for (int r = 0; r < 8; ++r) scale[r] = F::scale8(rows[r][b], 0)[0];
  acc = fma8(to_floats(add_all(p)), scale * splat8f(x[b].d), acc);
}

// QuantKernels::dot.
template <typename F>
void dot_rows(const char* w, int64_t stride, int64_t n_rows, const void* activations, int64_t n,
              float scale, float* out) {
  const auto* x = static_cast<const typename F::Activation*>(activations);
  constexpr int64_t kBytes = sizeof(typename F::Block);
  for (int64_t first = 0; first < n_rows; first += 8, w += 8 * stride) {
    const typename F::Block* rows[8];
    const int64_t last = n_rows - first - 1;  // vectors beyond it repeat it
    for (int64_t r = 0; r < 8; ++r) {
      rows[r] = reinterpret_cast<const typename F::Block*>(w + (r < last ? r : last) * stride);
    }
    f32x8 acc = {};
    for (int64_t b = 0; b < n / (32 * F::kChunks); ++b) {
      prefetch_rows<8, kBytes>(w, stride, b * kBytes);
      if constexpr (kWholeSums<F>) {
        dot_steps<F>(rows, x, b, acc);
      } else if constexpr (kOneScale<F>) {
        dot_block<F>(rows, x, b, acc);
      } else if constexpr (kBlockActivations<F>) {
        f32x8 block = {};
        dot_groups<F>(rows, x, b, block);
        acc = fma8(block, splat8f(x[b].d), acc);
      } else {
        dot_groups<F>(rows, x, b, acc);
      }
    }
    acc = acc * scale;
    std::memcpy(out + first, &acc, static_cast<size_t>(last < 7 ? last + 1 : 8) * sizeof(float));
  }
}

}  // namespace weft::WEFT_TARGET
