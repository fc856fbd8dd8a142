// Vectors for the encoders of files: a lane is a block, so that kLanes blocks are encoded at once
// and each of them by the operations of the reference in its order, which its bytes depend on.
//
// A comparison gives a mask, -1 where it holds.
#pragma once

#include "kernels/encode/encode.h"
#include "kernels/simd/vec.h"
#include "quants/codec.h"

namespace weft::WEFT_TARGET {

static inline vi splat_int(int32_t x) { return vi{} + x; }
static inline vf as_float(vi x) { return __builtin_convertvector(x, vf); }
static inline vi least(vi a, vi b) { return a < b ? a : b; }
static inline vi most(vi a, vi b) { return a > b ? a : b; }
static inline vi clamp(vi x, int32_t low, int32_t high) {
  return most(least(x, splat_int(high)), splat_int(low));
}

// nearest_int of codec.h.
static inline vi nearest_int(vf x) {
  return (reinterpret_cast<vi>(x + splat(12582912.0f)) & 0x007fffff) - 0x00400000;
}

static inline vf square_root(vf x) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(_mm512_sqrt_ps(reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<vf>(_mm256_sqrt_ps(reinterpret_cast<__m256>(x)));
#elif defined(WEFT_NEON)
  return vsqrtq_f32(x);
#else
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// A bit for each lane of a mask.
static inline uint32_t lane_bits(vi mask) {
#if defined(__AVX512F__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#elif defined(WEFT_NEON)
  return vaddvq_u32(vandq_u32(vreinterpretq_u32_s32(mask), uint32x4_t{1, 2, 4, 8}));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(mask[i] & 1) << i;
  return bits;
#endif
}
static inline bool any(vi mask) { return lane_bits(mask) != 0; }

// table[index] for a table of 16.
static inline vf lookup16(const float* table, vi index) {
#if defined(__AVX512F__)
  return reinterpret_cast<vf>(
      _mm512_permutexvar_ps(reinterpret_cast<__m512i>(index), _mm512_loadu_ps(table)));
#elif defined(__AVX2__)
  const auto at = reinterpret_cast<__m256i>(index);
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), at);
  const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), at);
  return reinterpret_cast<vf>(
      _mm256_blendv_ps(low, high, reinterpret_cast<__m256>(_mm256_slli_epi32(at, 28))));
#elif defined(WEFT_NEON)
  const uint8x16x4_t all = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(table));
  const uint8x16_t places = vreinterpretq_u8_s32(index * 0x04040404 + 0x03020100);
  return vreinterpretq_f32_u8(vqtbl4q_u8(all, places));
#else
  vf out;
  for (int i = 0; i < kLanes; ++i) out[i] = table[index[i]];
  return out;
#endif
}

// table[index] for a table of any size.
static inline vi gather(const int32_t* table, vi index) {
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_i32gather_epi32(reinterpret_cast<__m512i>(index), table, 4));
#elif defined(__AVX2__)
  return reinterpret_cast<vi>(_mm256_i32gather_epi32(table, reinterpret_cast<__m256i>(index), 4));
#else
  vi out;
  for (int i = 0; i < kLanes; ++i) out[i] = table[index[i]];
  return out;
#endif
}

// kLanes blocks of n elements beside each other: element i of all of them is at[i].
template <int n>
struct Tile {
  vf at[n];

  // From blocks that begin at `blocks[lane]`.
  void fill(const float* const* blocks) {
    auto* to = reinterpret_cast<float*>(at);
    for (int lane = 0; lane < kLanes; ++lane) {
      const float* x = blocks[lane];
      for (int i = 0; i < n; ++i) to[i * kLanes + lane] = x[i];
    }
  }
};

// The sum of the squares of n elements, in their order.
static inline vf sum_of_squares(const vf* x, int n) {
  vf sum = {};
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  return sum;
}

// The importance of elements: w * sqrt(sigma2 + x * x).
static inline void weigh(const vf* x, const vf* w, vf sigma2, int n, vf* out) {
  for (int i = 0; i < n; ++i) out[i] = w[i] * square_root(sigma2 + x[i] * x[i]);
}

// Calls encode(group) for kLanes blocks at a time, where a group knows where they are. Lanes beyond
// the last block repeat it, and are not stored.
template <typename Block, int kSize>
struct Group {
  const float* x[kLanes];
  const float* weights[kLanes];  // where there are weights
  Block* out;
  int n;  // blocks that are stored
  bool weighted;
};

template <typename Block, int kSize, typename Encode>
static inline void by_groups(const EncodeRows& rows, const Encode& encode) {
  const int64_t per_row = rows.ne0 / kSize;
  const int64_t n = rows.n_rows * per_row;
  auto* out = static_cast<Block*>(rows.dst);
  Group<Block, kSize> group = {};
  group.weighted = rows.weights != nullptr;
  for (int64_t first = 0; first < n; first += kLanes) {
    group.n = static_cast<int>(n - first < kLanes ? n - first : kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t block = first + (lane < group.n ? lane : group.n - 1);
      group.x[lane] = rows.src + block * kSize;
      if (group.weighted) group.weights[lane] = rows.weights + block % per_row * kSize;
    }
    group.out = out + first;
    encode(group);
  }
}

}  // namespace weft::WEFT_TARGET
