// The two products of attention for a few rows of queries, over rows of a cache picked by index and
// read where they are: q k^T and weights v. Many rows: attention_tile.h.
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
  int64_t bytes;  // of a row
  int64_t ahead;  // rows from one that is read to one that will be read; 0: they are in the cache

  const char* row(int64_t i) const { return data + index[i] * stride; }
  // Asks for a later row: those of one head are too far apart for the processor to guess. Between
  // products, as a burst of requests would wait for the first ones.
  void prefetch(const char* row) const {
    if (ahead == 0) return;
    for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(row + ahead * stride + b, 0, 2);
  }
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

// kLanes bytes as integers. The compiler's own conversion takes them one by one.
static inline vi widen(const void* p) {
#if defined(__AVX512F__)
  __m128i bytes;
  std::memcpy(&bytes, p, sizeof bytes);
  return reinterpret_cast<vi>(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
  __m128i bytes = _mm_setzero_si128();
  std::memcpy(&bytes, p, kLanes);
  return reinterpret_cast<vi>(_mm256_cvtepi8_epi32(bytes));
#else
  vi out;
  for (int i = 0; i < kLanes; ++i) out[i] = static_cast<const int8_t*>(p)[i];
  return out;
#endif
}

static inline vf int_floats(vi x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x)));
#else
  return __builtin_convertvector(x, vf);
#endif
}

// Blocks of 32 numbers: a half-precision scale, then a byte or half a byte each (quants/blocks.h).
static inline vf block_scale(const char* block) {
  uint16_t h;
  std::memcpy(&h, block, sizeof h);
  return splat(half_to_float(h));
}
struct LoadQ80 {
  static vf at(const char* row, int64_t i) {
    const char* block = row + i / 32 * 34;
    return int_floats(widen(block + 2 + i % 32)) * block_scale(block);
  }
};
struct LoadQ40 {
  static vf at(const char* row, int64_t i) {
    const char* block = row + i / 32 * 18;
    // the low halves of the bytes are the first 16 numbers
    const vi bytes = widen(block + 2 + i % 16);
    const vi number = (i % 32 < 16 ? bytes : bytes >> 4) & 15;
    return int_floats(number - 8) * block_scale(block);
  }
};

// Whether few rows read a cache of this type where it is; other types are converted.
static inline bool reads_in_place(DType type, int64_t n_rows) {
  // blocks are decoded again for every four rows
  return is_float(type) ||
         (kLanes > 4 && n_rows <= 4 && (type == DType::kQ8_0 || type == DType::kQ4_0));
}

// Half of the lanes of `a` and half of `b`, each added to the lanes kStep away: a lane whose number
// has the bit kStep holds two lanes of `b`, another two of `a`.
template <int kStep>
static inline vf add_across(vf a, vf b) {
#if defined(__AVX512F__)
  constexpr auto kMask = static_cast<__mmask16>(
      kStep == 8 ? 0xff00 : (kStep == 4 ? 0xf0f0 : (kStep == 2 ? 0xcccc : 0xaaaa)));
  const auto x = reinterpret_cast<__m512>(a);
  const auto y = reinterpret_cast<__m512>(b);
  const __m512 kept = _mm512_mask_blend_ps(kMask, x, y);
  __m512 moved;
  if constexpr (kStep == 8) {
    moved = _mm512_shuffle_f32x4(x, y, 0x4e);
  } else if constexpr (kStep == 4) {
    moved = _mm512_permutex2var_ps(
        x, _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27), y);
  } else if constexpr (kStep == 2) {
    moved = _mm512_shuffle_ps(x, y, 0x4e);
  } else {
    moved = _mm512_permutex2var_ps(
        x, _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30), y);
  }
  return reinterpret_cast<vf>(_mm512_add_ps(kept, moved));
#else
  vf out;
  for (int i = 0; i < kLanes; ++i) {
    const int other = i ^ kStep;
    out[i] = (i & kStep) != 0 ? b[i] + b[other] : a[i] + a[other];
  }
  return out;
#endif
}

// Lane i is the sum of the lanes of v[i]. Everything is unrolled, so that `v` stays in registers.
static inline __attribute__((always_inline)) vf sums(vf (&v)[kLanes]) {
  if constexpr (kLanes >= 16) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) v[i] = add_across<8>(v[i], v[(i + 8) % kLanes]);
  }
  if constexpr (kLanes >= 8) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = add_across<4>(v[i], v[(i + 4) % kLanes]);
  }
  v[0] = add_across<2>(v[0], v[2]);
  v[1] = add_across<2>(v[1], v[3]);
  return add_across<1>(v[0], v[1]);
}

// Dot products of kRows rows of `q` with kLanes / kRows rows of `k`, `width` floats long.
template <typename Load, int kRows>
static inline void dot_rows(const float* q, int64_t q_stride, const Picked& k, int64_t cell,
                            int64_t width, float* out, int64_t out_stride) {
  constexpr int kCols = kLanes / kRows;
  vf s[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) s[i] = vf{};
  const char* row[kCols];
  for (int c = 0; c < kCols; ++c) {
    row[c] = k.row(cell + c);
    k.prefetch(row[c]);
  }
  for (int64_t d = 0; d < width; d += kLanes) {
    vf query[kRows];
    for (int r = 0; r < kRows; ++r) query[r] = load(q + r * q_stride + d);
#pragma GCC unroll 16
    for (int c = 0; c < kCols; ++c) {
      const vf key = Load::at(row[c], d);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) s[r * kCols + c] = fma(query[r], key, s[r * kCols + c]);
    }
  }
  const vf all = sums(s);
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    std::memcpy(out + r * out_stride, reinterpret_cast<const float*>(&all) + r * kCols,
                kCols * sizeof(float));
  }
}

template <typename Load, int kRows>
static inline void dot_all(const float* q, int64_t q_stride, const Picked& k, int64_t width,
                           float* out, int64_t out_stride) {
  for (int64_t cell = 0; cell < k.n; cell += kLanes / kRows) {
    dot_rows<Load, kRows>(q, q_stride, k, cell, width, out + cell, out_stride);
  }
}

template <typename Load>
static inline void scores_of(const Matrix& q, const Picked& k, int64_t width, float* out,
                             int64_t out_stride) {
  int64_t r = 0;
  for (; r + 4 <= q.rows; r += 4) {
    dot_all<Load, 4>(q.data + r * q.stride, q.stride, k, width, out + r * out_stride, out_stride);
  }
  for (; r + 2 <= q.rows; r += 2) {
    dot_all<Load, 2>(q.data + r * q.stride, q.stride, k, width, out + r * out_stride, out_stride);
  }
  if (r < q.rows) {
    dot_all<Load, 1>(q.data + r * q.stride, q.stride, k, width, out + r * out_stride, out_stride);
  }
}

// out[r][i] = q[r] . k[i]. `width`, in floats, is whole vectors; indices and `out` have room for a
// multiple of kLanes rows of `k`.
static inline void scores(DType type, const Matrix& q, const Picked& k, int64_t width, float* out,
                          int64_t out_stride) {
  if (type == DType::kF32) return scores_of<LoadF32>(q, k, width, out, out_stride);
  if (type == DType::kF16) return scores_of<LoadF16>(q, k, width, out, out_stride);
  if (type == DType::kQ8_0) return scores_of<LoadQ80>(q, k, width, out, out_stride);
  if (type == DType::kQ4_0) return scores_of<LoadQ40>(q, k, width, out, out_stride);
  scores_of<LoadBf16>(q, k, width, out, out_stride);
}

// out[r][d..] = fade[r] out[r][d..] + sum over i of w[r][i] v[i][d..], for kRows rows and kWide
// vectors.
template <typename Load, int kRows, int kWide>
static inline void add_part(const float* w, int64_t w_stride, const Picked& v, int64_t d,
                            const float* fade, float* out, int64_t out_stride) {
  vf s[kRows][kWide];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWide; ++c) s[r][c] = load(out + r * out_stride + d + c * kLanes) * fade[r];
  }
  for (int64_t i = 0; i < v.n; ++i) {
    const char* row = v.row(i);
    if (d == 0) v.prefetch(row);
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
                            const float* fade, float* out, int64_t out_stride) {
  constexpr int kWide = kRows == 1 || kLanes == 16 ? 4 : 2;
  int64_t d = 0;
  for (; d + kWide * kLanes <= width; d += kWide * kLanes) {
    add_part<Load, kRows, kWide>(w, w_stride, v, d, fade, out, out_stride);
  }
  for (; d < width; d += kLanes) {
    add_part<Load, kRows, 1>(w, w_stride, v, d, fade, out, out_stride);
  }
}

template <typename Load>
static inline void add_all(const Matrix& w, const Picked& v, int64_t width, const float* fade,
                           float* out, int64_t out_stride) {
  int64_t r = 0;
  for (; r + 4 <= w.rows; r += 4) {
    add_rows<Load, 4>(w.data + r * w.stride, w.stride, v, width, fade + r, out + r * out_stride,
                      out_stride);
  }
  for (; r + 2 <= w.rows; r += 2) {
    add_rows<Load, 2>(w.data + r * w.stride, w.stride, v, width, fade + r, out + r * out_stride,
                      out_stride);
  }
  if (r < w.rows) {
    add_rows<Load, 1>(w.data + r * w.stride, w.stride, v, width, fade + r, out + r * out_stride,
                      out_stride);
  }
}

// out[r] = fade[r] out[r] + sum over i of w[r][i] v[i]. `width`, in floats, is whole vectors.
static inline void add_weighted(DType type, const Matrix& w, const Picked& v, int64_t width,
                                const float* fade, float* out, int64_t out_stride) {
  if (type == DType::kF32) return add_all<LoadF32>(w, v, width, fade, out, out_stride);
  if (type == DType::kF16) return add_all<LoadF16>(w, v, width, fade, out, out_stride);
  if (type == DType::kQ8_0) return add_all<LoadQ80>(w, v, width, fade, out, out_stride);
  if (type == DType::kQ4_0) return add_all<LoadQ40>(w, v, width, fade, out, out_stride);
  add_all<LoadBf16>(w, v, width, fade, out, out_stride);
}

}  // namespace weft::WEFT_TARGET
