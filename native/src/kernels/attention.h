// The two products of attention, over rows of a cache picked by index: q k^T and weights v.
#pragma once

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

// A matrix of floats: `rows` rows, `stride` floats apart.
struct Matrix {
  const float* data;
  int64_t stride;
  int64_t rows;
};

// Rows of a cache: number i is at data + index[i] * stride (bytes).
struct Picked {
  const char* data;
  int64_t stride;
  const int64_t* index;
  int64_t n;

  const char* row(int64_t i) const { return data + index[i] * stride; }
};

struct LoadF32 {
  static vf at(const char* row, int64_t i) { return load(reinterpret_cast<const float*>(row) + i); }
};
struct LoadF16 {
  static vf at(const char* row, int64_t i) {
    return load_half(reinterpret_cast<const uint16_t*>(row) + i);
  }
};
struct LoadBf16 {
  static vf at(const char* row, int64_t i) {
    return load_bf16(reinterpret_cast<const uint16_t*>(row) + i);
  }
};

typedef float v4 __attribute__((vector_size(16)));

// A vector's lanes added up to four.
static inline v4 fold(vf x) {
#if defined(__AVX512F__)
  const __m512 v = reinterpret_cast<__m512>(x);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return reinterpret_cast<v4>(
      _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
#elif defined(__AVX2__)
  const __m256 v = reinterpret_cast<__m256>(x);
  return reinterpret_cast<v4>(_mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
#else
  return x;
#endif
}

// The sums of four vectors.
static inline v4 sums(vf a, vf b, vf c, vf d) {
  const v4 w = fold(a);
  const v4 x = fold(b);
  const v4 y = fold(c);
  const v4 z = fold(d);
  const v4 wx =
      __builtin_shufflevector(w, x, 0, 4, 1, 5) + __builtin_shufflevector(w, x, 2, 6, 3, 7);
  const v4 yz =
      __builtin_shufflevector(y, z, 0, 4, 1, 5) + __builtin_shufflevector(y, z, 2, 6, 3, 7);
  return __builtin_shufflevector(wx, yz, 0, 1, 4, 5) + __builtin_shufflevector(wx, yz, 2, 3, 6, 7);
}

// Rows of queries at a time: as many as the registers hold beside four cells.
inline constexpr int kQueryRows = kLanes == 16 ? 4 : 2;

// Dot products of kRows rows of `q` with four rows of `k`, `width` floats long.
template <typename Load, int kRows>
static inline void scores_of_four(const float* q, int64_t q_stride, const Picked& k, int64_t cell,
                                  int64_t width, float* out, int64_t out_stride) {
  vf s[kRows][4] = {};
  const char* row[4];
  for (int c = 0; c < 4; ++c) row[c] = k.row(cell + c);
  for (int64_t d = 0; d < width; d += kLanes) {
    vf key[4];
    for (int c = 0; c < 4; ++c) key[c] = Load::at(row[c], d);
    for (int r = 0; r < kRows; ++r) {
      const vf query = load(q + r * q_stride + d);
      for (int c = 0; c < 4; ++c) s[r][c] = fma(query, key[c], s[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    const v4 four = sums(s[r][0], s[r][1], s[r][2], s[r][3]);
    std::memcpy(out + r * out_stride, &four, sizeof four);
  }
}

template <typename Load>
static inline void scores_of(const Matrix& q, const Picked& k, int64_t width, float* out,
                             int64_t out_stride) {
  for (int64_t cell = 0; cell < k.n; cell += 4) {
    int64_t r = 0;
    for (; r + kQueryRows <= q.rows; r += kQueryRows) {
      scores_of_four<Load, kQueryRows>(q.data + r * q.stride, q.stride, k, cell, width,
                                       out + r * out_stride + cell, out_stride);
    }
    for (; r < q.rows; ++r) {
      scores_of_four<Load, 1>(q.data + r * q.stride, q.stride, k, cell, width,
                              out + r * out_stride + cell, out_stride);
    }
  }
}

// out[r][i] = q[r] . k[i]. `width`, in floats, is whole vectors; indices and `out` have room for a
// multiple of four rows of `k`.
static inline void scores(DType type, const Matrix& q, const Picked& k, int64_t width, float* out,
                          int64_t out_stride) {
  if (type == DType::kF32) return scores_of<LoadF32>(q, k, width, out, out_stride);
  if (type == DType::kF16) return scores_of<LoadF16>(q, k, width, out, out_stride);
  scores_of<LoadBf16>(q, k, width, out, out_stride);
}

// out[r][d..] += sum over i of w[r][i] v[i][d..], for kRows rows and kWide vectors.
template <typename Load, int kRows, int kWide>
static inline void add_part(const float* w, int64_t w_stride, const Picked& v, int64_t d,
                            float* out, int64_t out_stride) {
  vf s[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWide; ++c) s[r][c] = load(out + r * out_stride + d + c * kLanes);
  }
  for (int64_t i = 0; i < v.n; ++i) {
    const char* row = v.row(i);
    vf value[kWide];
    for (int c = 0; c < kWide; ++c) value[c] = Load::at(row, d + c * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const vf weight = splat(w[r * w_stride + i]);
      for (int c = 0; c < kWide; ++c) s[r][c] = fma(weight, value[c], s[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWide; ++c) store(out + r * out_stride + d + c * kLanes, s[r][c]);
  }
}

template <typename Load, int kRows>
static inline void add_rows(const float* w, int64_t w_stride, const Picked& v, int64_t width,
                            float* out, int64_t out_stride) {
  constexpr int kWide = kRows == 1 || kLanes == 16 ? 4 : 2;
  int64_t d = 0;
  for (; d + kWide * kLanes <= width; d += kWide * kLanes) {
    add_part<Load, kRows, kWide>(w, w_stride, v, d, out, out_stride);
  }
  for (; d < width; d += kLanes) add_part<Load, kRows, 1>(w, w_stride, v, d, out, out_stride);
}

template <typename Load>
static inline void add_all(const Matrix& w, const Picked& v, int64_t width, float* out,
                           int64_t out_stride) {
  int64_t r = 0;
  for (; r + 4 <= w.rows; r += 4) {
    add_rows<Load, 4>(w.data + r * w.stride, w.stride, v, width, out + r * out_stride, out_stride);
  }
  for (; r < w.rows; ++r) {
    add_rows<Load, 1>(w.data + r * w.stride, w.stride, v, width, out + r * out_stride, out_stride);
  }
}

// out[r] += sum over i of w[r][i] v[i]. `width`, in floats, is whole vectors.
static inline void add_weighted(DType type, const Matrix& w, const Picked& v, int64_t width,
                                float* out, int64_t out_stride) {
  if (type == DType::kF32) return add_all<LoadF32>(w, v, width, out, out_stride);
  if (type == DType::kF16) return add_all<LoadF16>(w, v, width, out, out_stride);
  add_all<LoadBf16>(w, v, width, out, out_stride);
}

}  // namespace weft::WEFT_TARGET
