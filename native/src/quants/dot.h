// Products of quantized rows with quantized activations, written once over quants/formats.h.
//
// Two shapes of the same sum:
// - `dot`: some rows times one activation row, reading both as they are stored (decoding);
// - `pack` and `tile`: kPanelRows rows are unpacked into a panel whose vector lanes are rows, which
//   is then multiplied with tiles of kTileColumns activation rows (prompts).
#pragma once

#include "quants/formats.h"
#include "quants/pairs.h"

namespace weft::WEFT_TARGET {

inline constexpr int kPanelRows = kLanes;

#if defined(__AVX512VNNI__)
inline constexpr int kTileColumns = 16;
#else
inline constexpr int kTileColumns = 4;
#endif
inline constexpr int kTileVariants = 3;  // tiles of kTileColumns, a half, a quarter

// 32 elements of kTileColumns activation rows.
struct ActivationTile {
  int8_t q[kTileColumns][32];
  float d[kTileColumns];
  // per group of the format (one or two): -kZero * sum(q), or d * sum(q) when there are minima
  union {
    int32_t correction[2][kTileColumns];
    float d_sum[2][kTileColumns];
  };
};

// kPanelRows rows, chunk by chunk.
struct Panel {
  uint8_t* q;    // [chunk][8][kPanelRows][4]: four neighbouring codes of each row
  float* scale;  // [chunk][groups of a chunk][kPanelRows]
  float* min;    // as scale; only when the format has minima
};

struct QuantKernels {
  DType activation = DType::kF32;
  int groups = 1;  // of a chunk
  int zero = 0;    // what ActivationTile.correction multiplies
  bool has_min = false;
  // out[r] = scale * row r . x, for rows `stride` bytes apart
  void (*dot)(const char* w, int64_t stride, int64_t rows, const void* x, int64_t n, float scale,
              float* out) = nullptr;
  // Rows beyond `rows` repeat the last one. `next`: distance in bytes from each row to what will be
  // packed after it. nullptr: this target has no panels.
  void (*pack)(const char* w, int64_t stride, int64_t rows, int64_t first_chunk, int64_t n_chunks,
               float scale, int64_t next, const Panel& out) = nullptr;
  // out[column][row], for kTileColumns >> variant columns
  void (*tile[kTileVariants])(const Panel& w, const ActivationTile* x, int64_t n_chunks,
                              float* out) = {};
};

// The kernels of a weight type; `dot` is nullptr for types without.
QuantKernels& quant_kernels(DType type);

template <typename F>
inline constexpr int kGroupsPerChunk = F::kGroups / F::kChunks;

// ---- rows times one activation row

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

// Asks for block `b` of the rows after these, which the hardware does not foresee: it follows each
// row to its end and then starts anew.
template <int kRows, typename Block>
static inline void prefetch_next(const Block* const* rows, int64_t b, int64_t stride) {
  for (int r = 0; r < kRows; ++r) {
    const char* p = reinterpret_cast<const char*>(rows[r] + b) + kRows * stride;
    for (size_t line = 0; line < sizeof(Block); line += 64) __builtin_prefetch(p + line, 0, 2);
  }
}

template <typename F, int kRows>
void dot_some_rows(const char* w, int64_t stride, const typename F::Activation* x, int64_t n_blocks,
                   float scale, float* out) {
  constexpr bool kOneScale = sizeof(typename F::Activation) == sizeof(BlockQ8_K);
  constexpr int kPer = kGroupsPerChunk<F>;
  f32x8 acc[kRows] = {};
  f32x8 acc_min[kRows] = {};
  const typename F::Block* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = reinterpret_cast<const typename F::Block*>(w + r * stride);
  }
  for (int64_t b = 0; b < n_blocks; ++b) {
    prefetch_next<kRows>(rows, b, stride);
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
  vf acc[kRows] = {};
  f32x8 acc_min[kRows] = {};
  const typename F::Block* rows[kRows];
  for (int r = 0; r < kRows; ++r) {
    rows[r] = reinterpret_cast<const typename F::Block*>(w + r * stride);
  }
  vi groups;
  for (int l = 0; l < 16; ++l) groups[l] = l / kLanesPerGroup;
  for (int64_t b = 0; b < n_blocks; ++b) {
    prefetch_next<kRows>(rows, b, stride);
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
    prefetch_next<kRows>(rows, p * 2 / F::kChunks, stride);
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

// ---- panels

#if defined(__AVX2__)

template <typename F>
void pack_panel(const char* w, int64_t stride, int64_t rows, int64_t first_chunk, int64_t n_chunks,
                float scale, int64_t next, const Panel& out) {
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
      float scales[F::kGroups];
      float mins[F::kGroups];
      block_scales<F>(row[r][b], scales, mins);
      for (int g = 0; g < F::kGroups; ++g) {
        const int64_t at = (b * F::kGroups + g) * kPanelRows + r;
        out.scale[at] = scales[g] * scale;
        if constexpr (F::kHasMin) out.min[at] = mins[g] * scale;
      }
    }
    static_assert(F::kGroups == F::kChunks * kPer);
#pragma GCC unroll 8
    for (int c = 0; c < F::kChunks; ++c) {
      uint8_t* q = out.q + (b * F::kChunks + c) * 32 * kPanelRows;
      for (int half = 0; half < kPanelRows; half += 8) {
        __m256i v[8];
        for (int r = 0; r < 8; ++r) {
          u8x32 codes = F::codes(row[half + r][b], c);
#if !defined(__AVX512VNNI__)
          if constexpr (F::kTop > 127) codes ^= splat8(128);
#endif
          v[r] = reinterpret_cast<__m256i>(codes);
        }
        transpose8(v);
        for (int j = 0; j < 8; ++j) {
          std::memcpy(q + (j * kPanelRows + half) * 4, &v[j], sizeof v[j]);
        }
      }
    }
  }
}

#if defined(__AVX512VNNI__)

static inline vi dot_words(vi acc, vi w, const int8_t* x) {
  int32_t four;
  std::memcpy(&four, x, 4);
  return reinterpret_cast<vi>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(w), _mm512_set1_epi32(four)));
}

template <typename F, int kSteps>
static inline vi dot_group(const vi* w, const int8_t* x, vi acc) {
#pragma GCC unroll 8
  for (int j = 0; j < kSteps; ++j) acc = dot_words(acc, w[j], x + 4 * j);
  return acc;
}

#else

// 16-bit pair sums are added up while they cannot overflow, then widened.
template <typename F, int kSteps>
static inline vi dot_group(const vi* w, const int8_t* x, vi acc) {
  constexpr int kRun = F::kTop > 127                 ? 1
                       : 32767 / (F::kTop * 254) < 8 ? 32767 / (F::kTop * 254)
                                                     : 8;
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int j = 0; j < kSteps; ++j) {
    int32_t four;
    std::memcpy(&four, x + 4 * j, 4);
    __m256i codes = reinterpret_cast<__m256i>(w[j]);
    __m256i values = _mm256_set1_epi32(four);
    if constexpr (F::kTop > 127) {
      values = _mm256_sign_epi8(values, codes);
      codes = _mm256_abs_epi8(codes);
    }
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes, values));
    if (j % kRun == kRun - 1 || j == kSteps - 1) {
      acc += reinterpret_cast<vi>(_mm256_madd_epi16(sum, ones));
      sum = _mm256_setzero_si256();
    }
  }
  return acc;
}

#endif

template <typename F, int kColumns>
void multiply_tile(const Panel& panel, const ActivationTile* x, int64_t n_chunks, float* out) {
  constexpr int kPer = kGroupsPerChunk<F>;
#if defined(__AVX512VNNI__)
  constexpr bool kCorrect = F::kZero != 0;
#else
  constexpr bool kCorrect = F::kZero != 0 && F::kTop <= 127;
#endif
  vf acc[kColumns] = {};
  const uint8_t* q = panel.q;
  const float* scale = panel.scale;
  const float* min = panel.min;
  for (int64_t chunk = 0; chunk < n_chunks; ++chunk, ++x) {
    vi w[8];
    vf s[kPer];
    vf m[kPer];
    for (int j = 0; j < 8; ++j) std::memcpy(&w[j], q + j * 4 * kPanelRows, sizeof w[j]);
    q += 32 * kPanelRows;
    for (int g = 0; g < kPer; ++g) {
      s[g] = load(scale + g * kPanelRows);
      if constexpr (F::kHasMin) m[g] = load(min + g * kPanelRows);
    }
    scale += kPer * kPanelRows;
    min += F::kHasMin ? kPer * kPanelRows : 0;
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c) {
      const vf d = splat(x->d[c]);
#pragma GCC unroll 2
      for (int g = 0; g < kPer; ++g) {
        const vi start = kCorrect ? vi{} + x->correction[g][c] : vi{};
        const vi sum = dot_group<F, 8 / kPer>(w + g * 8 / kPer, x->q[c] + g * 32 / kPer, start);
        acc[c] = fma(__builtin_convertvector(sum, vf), s[g] * d, acc[c]);
        if constexpr (F::kHasMin) acc[c] = fma(m[g], splat(x->d_sum[g][c]), acc[c]);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) store(out + c * kPanelRows, acc[c]);
}

#endif  // __AVX2__

template <typename F>
void register_format(KernelTable& table, DType type) {
  QuantKernels& k = quant_kernels(type);
  k.activation = ActivationType<typename F::Activation>::kType;
  k.groups = kGroupsPerChunk<F>;
  k.zero = F::kZero;
  k.has_min = F::kHasMin;
  k.dot = dot_rows<F>;
#if defined(__AVX2__)
  k.pack = pack_panel<F>;
  k.tile[0] = multiply_tile<F, kTileColumns>;
  k.tile[1] = multiply_tile<F, kTileColumns / 2>;
  k.tile[2] = multiply_tile<F, kTileColumns / 4>;
#endif
  table.type(type).to_float = decode_format<F>;
  table.type(type).vec_dot = dot_one<F>;
  table.type(type).vec_type = k.activation;
}

}  // namespace weft::WEFT_TARGET
