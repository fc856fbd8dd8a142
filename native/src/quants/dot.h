// Rows of a format times one activation row, both as they are stored.
#pragma once

#include "quants/formats.h"
#include "quants/pairs.h"

namespace weft::WEFT_TARGET {

// The activation's scale where it is one for a whole block of the format, else 1.
template <typename F>
static inline float block_scale(const typename F::Activation* x, int64_t block) {
  if constexpr (sizeof(typename F::Activation) == sizeof(BlockQ8_K)) return x[block].d;
  return 1.0f;
}

// sum(q) * d of groups 8*half..8*half+7 of block `b`: bsums are sums of 16.
template <typename F>
static inline f32x8 group_sums8(const BlockQ8_K* x, int64_t b, int half) {
  const auto* sums = reinterpret_cast<const char*>(x + b) + offsetof(BlockQ8_K, bsums);
  if constexpr (F::kGroups == 16) {
    typedef int16_t s16x8 __attribute__((vector_size(16)));
    const auto eight = load_as<s16x8>(sums + 16 * half);
    return to_floats(__builtin_convertvector(eight, i32x8)) * x[b].d;
  }
  const auto pairs = load_as<i32x8>(sums);
  return to_floats((pairs << 16 >> 16) + (pairs >> 16)) * x[b].d;
}

// p[lane] = (code - kZero) * x summed over four elements; `correction` is dot_zero's.
template <typename F>
static inline i32x8 dot_chunk(u8x32 codes, s8x32 x, i32x8 correction) {
  if constexpr (F::kTop > 127) {
    return dot_bytes_wide(codes, x, correction);
  } else {
    return dot_bytes(correction, codes, x);
  }
}

template <typename F>
static inline i32x8 dot_zero(s8x32 x) {
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
  // wide codes are then multiplied as signed ones
  if constexpr (F::kTop > 127) return i32x8{};
#endif
  if constexpr (F::kZero == 0) return i32x8{};
  return -dot_bytes(i32x8{}, splat8(F::kZero), x);
}

template <typename F, int kRows>
void dot_some_rows(const char* w, int64_t stride, const typename F::Activation* x, int64_t n_blocks,
                   float scale, float* out) {
  constexpr bool kOneScale = sizeof(typename F::Activation) == sizeof(BlockQ8_K);
  constexpr int kPer = kGroupsPerChunk<F>;
  constexpr int64_t kBytes = sizeof(typename F::Block);
  f32x8 acc[kRows] = {};
  f32x8 acc_min[kRows] = {};
  const typename F::Block* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = reinterpret_cast<const typename F::Block*>(w + r * stride);
  }
  for (int64_t b = 0; b < n_blocks; ++b) {
    prefetch_rows<kRows, kBytes>(w, stride, b * kBytes);
    float scales[kRows][F::kGroups];
    float mins[kRows][F::kGroups];
    const float xd = block_scale<F>(x, b);
    for (int r = 0; r < kRows; ++r) {
      block_scales<F>(rows[r][b], scales[r], mins[r]);
      if constexpr (kOneScale) {
        for (int g = 0; g < F::kGroups; ++g) scales[r][g] *= xd;
      }
      if constexpr (F::kHasMin && F::kGroups == 1) {
        acc_min[r][0] += mins[r][0] * half_to_float(x[b].s);
      } else if constexpr (F::kHasMin) {
        for (int half = 0; half < F::kGroups / 8; ++half) {
          const f32x8 m = load_as<f32x8>(mins[r] + 8 * half);
          acc_min[r] = fma8(m, group_sums8<F>(x, b, half), acc_min[r]);
        }
      }
    }
#pragma GCC unroll 8
    for (int c = 0; c < F::kChunks; ++c) {
      const int64_t chunk = b * F::kChunks + c;
      const s8x32 codes = activation_codes(x, chunk);
      const i32x8 correction = dot_zero<F>(codes);
      const float d = kOneScale ? 1.0f : activation_scale(x, chunk);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const f32x8 p = to_floats(dot_chunk<F>(F::codes(rows[r][b], c), codes, correction));
        if constexpr (kPer == 1) {
          acc[r] = fma8(p, splat8f(kOneScale ? scales[r][c] : scales[r][c] * d), acc[r]);
        } else {
          const float* s = scales[r] + 2 * c;
          const f32x8 pair = two_halves(s[0], s[1]);
          acc[r] = fma8(p, kOneScale ? pair : pair * d, acc[r]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) out[r] = scale * sum8(F::kHasMin ? acc[r] + acc_min[r] : acc[r]);
}

#if defined(__AVX512VNNI__)

// The same for blocks of 256 elements, 64 at a time.
template <typename F, int kRows>
void dot_wide_rows(const char* w, int64_t stride, const BlockQ8_K* x, int64_t n_blocks, float scale,
                   float* out) {
  static_assert(F::kChunks == 8 && (F::kGroups == 8 || F::kGroups == 16));
  // lane l of the product of 64 elements belongs to group l / kLanesPerGroup of them
  constexpr int kLanesPerGroup = F::kGroups == 16 ? 4 : 8;
  constexpr int kGroupsPerPair = 16 / kLanesPerGroup;
  constexpr int64_t kBytes = sizeof(typename F::Block);
  vf acc[kRows] = {};
  f32x8 acc_min[kRows] = {};
  const typename F::Block* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = reinterpret_cast<const typename F::Block*>(w + r * stride);
  }
  vi groups;
  for (int l = 0; l < 16; ++l) groups[l] = l / kLanesPerGroup;
  for (int64_t b = 0; b < n_blocks; ++b) {
    prefetch_rows<kRows, kBytes>(w, stride, b * kBytes);
    __m512 scales[kRows];
    for (int r = 0; r < kRows; ++r) {
      const auto low = reinterpret_cast<__m256>(F::scale8(rows[r][b], 0) * x[b].d);
      scales[r] = _mm512_castps256_ps512(low);
      if constexpr (F::kGroups == 16) {
        const auto high = reinterpret_cast<__m256>(F::scale8(rows[r][b], 1) * x[b].d);
        scales[r] = _mm512_insertf32x8(scales[r], high, 1);
      }
      if constexpr (F::kHasMin) {
        for (int half = 0; half < F::kGroups / 8; ++half) {
          acc_min[r] = fma8(F::min8(rows[r][b], half), group_sums8<F>(x, b, half), acc_min[r]);
        }
      }
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const auto codes = load_as<__m512i>(x[b].qs + 64 * pair);
      __m512i start = _mm512_setzero_si512();
      if constexpr (F::kZero != 0) {
        const __m512i zero = _mm512_set1_epi8(static_cast<char>(F::kZero));
        start = _mm512_sub_epi32(start, _mm512_dpbusd_epi32(start, zero, codes));
      }
      const vi at = groups + pair * kGroupsPerPair;
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const auto p = reinterpret_cast<vi>(
            _mm512_dpbusd_epi32(start, F::two_chunks(rows[r][b], pair), codes));
        const auto s =
            reinterpret_cast<vf>(_mm512_permutexvar_ps(reinterpret_cast<__m512i>(at), scales[r]));
        acc[r] = fma(__builtin_convertvector(p, vf), s, acc[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const float sum = hsum(acc[r]);
    out[r] = scale * (F::kHasMin ? sum + sum8(acc_min[r]) : sum);
  }
}

// The same for activations in blocks of 32 elements, two of them at a time.
template <typename F, int kRows>
void dot_pair_rows(const char* w, int64_t stride, const typename F::Activation* x, int64_t n_blocks,
                   float scale, float* out) {
  const int64_t n_pairs = n_blocks * F::kChunks / 2;
  constexpr int64_t kBytes = 2 * sizeof(typename F::Block) / F::kChunks;
  vf acc[kRows] = {};
  vf acc_min[kRows] = {};
  const typename F::Block* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = reinterpret_cast<const typename F::Block*>(w + r * stride);
  }
  for (int64_t p = 0; p < n_pairs; ++p) {
    const ActivationPair a = load_activations(x, p);
    __m512i start = _mm512_setzero_si512();
    if constexpr (F::kZero != 0) {
      const __m512i zero = _mm512_set1_epi8(static_cast<char>(F::kZero));
      start = _mm512_sub_epi32(start, _mm512_dpbusd_epi32(start, zero, a.codes));
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Pair pair = load_pair<F>(rows[r], p);
      const auto sums = reinterpret_cast<vi>(_mm512_dpbusd_epi32(start, pair.codes, a.codes));
      const vf s = reinterpret_cast<vf>(pair.scales) * reinterpret_cast<vf>(a.scales);
      acc[r] = fma(__builtin_convertvector(sums, vf), s, acc[r]);
      if constexpr (F::kHasMin) {
        acc_min[r] = fma(reinterpret_cast<vf>(pair.mins), reinterpret_cast<vf>(a.sums), acc_min[r]);
      }
    }
    prefetch_rows<kRows, kBytes>(w, stride, p * kBytes);
  }
  for (int r = 0; r < kRows; ++r) {
    out[r] = scale * hsum(F::kHasMin ? acc[r] + acc_min[r] : acc[r]);
  }
  if (F::kChunks == 1 && n_blocks % 2 != 0) {
    float last[kRows];
    const int64_t done = n_blocks - 1;
    const auto bytes = done * static_cast<int64_t>(sizeof(typename F::Block));
    dot_some_rows<F, kRows>(w + bytes, stride, x + done, 1, scale, last);
    for (int r = 0; r < kRows; ++r) out[r] += last[r];
  }
}

#endif

template <typename F, int kRows>
void dot_best_rows(const char* w, int64_t stride, const typename F::Activation* x, int64_t n_blocks,
                   float scale, float* out) {
#if defined(__AVX512VNNI__)
  if constexpr (F::kChunks == 8) {
    dot_wide_rows<F, kRows>(w, stride, x, n_blocks, scale, out);
  } else {
    dot_pair_rows<F, kRows>(w, stride, x, n_blocks, scale, out);
  }
#else
  dot_some_rows<F, kRows>(w, stride, x, n_blocks, scale, out);
#endif
}

template <typename F>
void dot_rows(const char* w, int64_t stride, int64_t rows, const void* x, int64_t n, float scale,
              float* out) {
  const auto* activation = static_cast<const typename F::Activation*>(x);
  const int64_t n_blocks = n / (32 * F::kChunks);
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    dot_best_rows<F, 4>(w + r * stride, stride, activation, n_blocks, scale, out + r);
  }
  for (; r < rows; ++r) {
    dot_best_rows<F, 1>(w + r * stride, stride, activation, n_blocks, scale, out + r);
  }
}

template <typename F>
float dot_one(const void* row, const void* x, int64_t n) {
  float out;
  dot_best_rows<F, 1>(static_cast<const char*>(row), 0,
                      static_cast<const typename F::Activation*>(x), n / (32 * F::kChunks), 1.0f,
                      &out);
  return out;
}

}  // namespace weft::WEFT_TARGET
