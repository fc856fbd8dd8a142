// Vectors of 32 bytes for the dot products of quantized rows. They have the same width on every
// target, and are written with the compiler's vector extension plus a few intrinsics for what it
// lacks.
#pragma once

#include <type_traits>

#include "kernels/simd/dot_step.h"
#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

typedef uint8_t u8x16 __attribute__((vector_size(16)));
typedef uint8_t u8x32 __attribute__((vector_size(32)));
typedef int8_t s8x32 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef int32_t i32x8 __attribute__((vector_size(32)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef float f32x8 __attribute__((vector_size(32)));

template <typename V>
static inline V load_as(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <typename V>
static inline void store_as(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

static inline u8x32 splat8(int x) { return u8x32{} + static_cast<uint8_t>(x); }
static inline f32x8 splat8f(float x) { return x - f32x8{}; }

static inline u8x32 join(u8x16 low, u8x16 high) {
#if defined(__AVX2__)
  return reinterpret_cast<u8x32>(
      _mm256_set_m128i(reinterpret_cast<__m128i>(high), reinterpret_cast<__m128i>(low)));
#else
  u8x32 v;
  std::memcpy(&v, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&v) + sizeof low, &high, sizeof high);
  return v;
#endif
}

static inline u8x16 low_half(u8x32 v) { return load_as<u8x16>(&v); }
static inline u8x16 high_half(u8x32 v) {
  return load_as<u8x16>(reinterpret_cast<const char*>(&v) + sizeof(u8x16));
}

// Shifts every byte right, then masks it, which removes the bits that came from its neighbour.
static inline u8x32 field(u8x32 v, int shift, int mask) {
  return reinterpret_cast<u8x32>(reinterpret_cast<u16x16>(v) >> static_cast<uint16_t>(shift)) &
         splat8(mask);
}
// Masks every byte, then shifts it left; no set bit may leave its byte.
static inline u8x32 field_up(u8x32 v, int mask, int shift) {
  return reinterpret_cast<u8x32>(reinterpret_cast<u16x16>(v & splat8(mask))
                                 << static_cast<uint16_t>(shift));
}

// The low halves of 16 bytes, then their high halves.
static inline u8x32 nibbles(const uint8_t* p) {
#if defined(__AVX2__)
  const __m256i both = _mm256_broadcastsi128_si256(load_as<__m128i>(p));
  const __m256i v = _mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4));
  return reinterpret_cast<u8x32>(_mm256_and_si256(v, _mm256_set1_epi8(15)));
#else
  typedef uint16_t u16x8 __attribute__((vector_size(16)));
  const auto v = load_as<u8x16>(p);
  const auto mask = u8x16{} + uint8_t{15};
  return join(v & mask, reinterpret_cast<u8x16>(reinterpret_cast<u16x8>(v) >> uint16_t{4}) & mask);
#endif
}

// Each of the eight bytes as four codes of two bits, the lowest bits first.
static inline u8x32 quarter_bytes(const uint8_t* p) {
  u8x32 v;
#if defined(__AVX2__)
  int64_t eight;
  std::memcpy(&eight, p, 8);
  const __m256i order = _mm256_setr_epi32(0x00000000, 0x01010101, 0x02020202, 0x03030303,
                                          0x04040404, 0x05050505, 0x06060606, 0x07070707);
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), order);
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xc0300c03u));
  const __m256i fields = _mm256_and_si256(bytes, mask);
  // Two table look-ups, one per half of a byte, shift each field down to 0..3.
  const __m256i low_table = _mm256_setr_epi8(0, 1, 2, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 1,
                                             2, 3, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0);
  const __m256i high = _mm256_and_si256(_mm256_srli_epi16(fields, 4), _mm256_set1_epi8(15));
  const __m256i low = _mm256_and_si256(fields, _mm256_set1_epi8(15));
  v = reinterpret_cast<u8x32>(
      _mm256_or_si256(_mm256_shuffle_epi8(low_table, low), _mm256_shuffle_epi8(low_table, high)));
#else
  for (int j = 0; j < 32; ++j) v[j] = p[j / 4] >> j % 4 * 2 & 3;
#endif
  return v;
}

// table[code] for codes 0..15.
static inline u8x32 look_up(const uint8_t* table, u8x32 codes) {
#if defined(__AVX2__)
  const __m256i both = _mm256_broadcastsi128_si256(load_as<__m128i>(table));
  return reinterpret_cast<u8x32>(_mm256_shuffle_epi8(both, reinterpret_cast<__m256i>(codes)));
#elif defined(WEFT_NEON)
  const uint8x16_t all = vld1q_u8(table);
  return join(vqtbl1q_u8(all, low_half(codes)), vqtbl1q_u8(all, high_half(codes)));
#else
  u8x32 v;
  for (int j = 0; j < 32; ++j) v[j] = table[codes[j]];
  return v;
#endif
}

// Byte i is `value` where bit i is set, else 0.
static inline u8x32 spread_bits(uint32_t bits, int value) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  return reinterpret_cast<u8x32>(
      _mm256_maskz_set1_epi8(static_cast<__mmask32>(bits), static_cast<char>(value)));
#elif defined(__AVX2__)
  const __m256i spread = _mm256_shuffle_epi8(
      _mm256_set1_epi32(static_cast<int>(bits)),
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i each = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, each), each);
  return reinterpret_cast<u8x32>(set) & splat8(value);
#elif defined(WEFT_NEON)
  const uint8x16_t all = vreinterpretq_u8_u32(vdupq_n_u32(bits));
  const uint8x16_t each = vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201u));
  const uint8x16_t low = vqtbl1q_u8(all, u8x16{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
  const uint8x16_t high = vqtbl1q_u8(all, u8x16{2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3});
  return join(vtstq_u8(low, each), vtstq_u8(high, each)) & splat8(value);
#else
  u8x32 v;
  for (int j = 0; j < 32; ++j) v[j] = static_cast<uint8_t>(bits >> j & 1 ? value : 0);
  return v;
#endif
}

#if defined(WEFT_NEON)
// Adds the products of signed bytes to acc: lane i sums the elements 4i..4i+3. Without an
// instruction for it, no two products in a row may be 128 * 128.
static inline int32x4_t dot_signed(int32x4_t acc, int8x16_t a, int8x16_t b) {
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(acc, a, b);
#else
  const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
  return vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(a, b)));
#endif
}
static inline i32x8 dot_signed(i32x8 acc, s8x32 a, s8x32 b) {
  const auto low = [](auto v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3); };
  const auto high = [](auto v) { return __builtin_shufflevector(v, v, 4, 5, 6, 7); };
  const auto x = reinterpret_cast<i32x8>(a), y = reinterpret_cast<i32x8>(b);
  const auto bytes = [](int32x4_t v) { return vreinterpretq_s8_s32(v); };
  const int32x4_t first = dot_signed(low(acc), bytes(low(x)), bytes(low(y)));
  const int32x4_t second = dot_signed(high(acc), bytes(high(x)), bytes(high(y)));
  return __builtin_shufflevector(first, second, 0, 1, 2, 3, 4, 5, 6, 7);
}
#endif

// Adds the products of the unsigned u and the signed x to acc. Lane i sums the elements 4i..4i+3.
// On NEON, and on AVX2 without VNNI, u must be below 128.
static inline i32x8 dot_bytes(i32x8 acc, u8x32 u, s8x32 x) {
#if defined(WEFT_VNNI)
  return reinterpret_cast<i32x8>(dot_step(
      reinterpret_cast<__m256i>(acc), reinterpret_cast<__m256i>(u), reinterpret_cast<__m256i>(x)));
#elif defined(__AVX2__)
  const __m256i pairs =
      _mm256_maddubs_epi16(reinterpret_cast<__m256i>(u), reinterpret_cast<__m256i>(x));
  return acc + reinterpret_cast<i32x8>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(WEFT_NEON)
  return dot_signed(acc, reinterpret_cast<s8x32>(u), x);
#elif defined(__SSE2__)
  i32x8 sum = acc;
  for (int half = 0; half < 2; ++half) {
    const __m128i zero = _mm_setzero_si128();
    const auto a = load_as<__m128i>(reinterpret_cast<const char*>(&u) + 16 * half);
    const auto b = load_as<__m128i>(reinterpret_cast<const char*>(&x) + 16 * half);
    // Bytes become words: the unsigned ones with zeros, the signed ones by an arithmetic shift.
    const __m128i low =
        _mm_madd_epi16(_mm_unpacklo_epi8(a, zero), _mm_srai_epi16(_mm_unpacklo_epi8(b, b), 8));
    const __m128i high =
        _mm_madd_epi16(_mm_unpackhi_epi8(a, zero), _mm_srai_epi16(_mm_unpackhi_epi8(b, b), 8));
    int32_t lanes[4];
    const __m128i both = _mm_add_epi32(low, high);
    std::memcpy(lanes, &both, sizeof lanes);
    for (int j = 0; j < 4; ++j) sum[4 * half + j] += lanes[j];
  }
  return sum;
#else
  for (int j = 0; j < 32; ++j) acc[j / 4] += u[j] * x[j];
  return acc;
#endif
}

// The sums of (u - 128) * x, for any u. `minus_128_sums` holds the sums of -128 * x, which some
// targets start from.
static inline i32x8 dot_bytes_wide(u8x32 u, s8x32 x, [[maybe_unused]] i32x8 minus_128_sums) {
#if defined(__AVX2__) && !defined(WEFT_VNNI)
  const __m256i w = reinterpret_cast<__m256i>(u ^ splat8(128));
  const __m256i signed_x = _mm256_sign_epi8(reinterpret_cast<__m256i>(x), w);
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), signed_x);
  return reinterpret_cast<i32x8>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(WEFT_NEON)
  return dot_signed(i32x8{}, reinterpret_cast<s8x32>(u ^ splat8(128)), x);
#else
  return dot_bytes(minus_128_sums, u, x);
#endif
}

// Widens the eight bytes of an integer, lowest first.
static inline i32x8 widen_unsigned(uint64_t bytes) {
#if defined(__AVX2__)
  return reinterpret_cast<i32x8>(
      _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes))));
#elif defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  const __m128i words = _mm_unpacklo_epi8(_mm_cvtsi64_si128(static_cast<int64_t>(bytes)), zero);
  const __m128i both[2] = {_mm_unpacklo_epi16(words, zero), _mm_unpackhi_epi16(words, zero)};
  return load_as<i32x8>(both);
#elif defined(WEFT_NEON)
  const uint16x8_t words = vmovl_u8(vcreate_u8(bytes));
  return reinterpret_cast<i32x8>(join(reinterpret_cast<u8x16>(vmovl_u16(vget_low_u16(words))),
                                      reinterpret_cast<u8x16>(vmovl_high_u16(words))));
#else
  i32x8 v;
  for (int j = 0; j < 8; ++j) v[j] = static_cast<uint8_t>(bytes >> 8 * j);
  return v;
#endif
}
static inline i32x8 widen_signed(uint64_t bytes) {
#if defined(__AVX2__)
  return reinterpret_cast<i32x8>(
      _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(bytes))));
#elif defined(__SSE2__)
  const __m128i v = _mm_cvtsi64_si128(static_cast<int64_t>(bytes));
  const __m128i words = _mm_srai_epi16(_mm_unpacklo_epi8(v, v), 8);
  const __m128i both[2] = {_mm_srai_epi32(_mm_unpacklo_epi16(words, words), 16),
                           _mm_srai_epi32(_mm_unpackhi_epi16(words, words), 16)};
  return load_as<i32x8>(both);
#elif defined(WEFT_NEON)
  const int16x8_t words = vmovl_s8(vcreate_s8(bytes));
  return reinterpret_cast<i32x8>(join(reinterpret_cast<u8x16>(vmovl_s16(vget_low_s16(words))),
                                      reinterpret_cast<u8x16>(vmovl_high_s16(words))));
#else
  i32x8 v;
  for (int j = 0; j < 8; ++j) v[j] = static_cast<int8_t>(bytes >> 8 * j);
  return v;
#endif
}

// The larger number of each lane, signed and unsigned.
static inline i32x8 larger(i32x8 a, i32x8 b) { return a > b ? a : b; }
static inline u32x8 larger(u32x8 a, u32x8 b) { return a > b ? a : b; }

// The largest number of a vector of either kind.
template <typename V>
static inline auto largest_lane(V v) {
#if defined(__AVX2__)
  const auto lanes = [](V x, __m256i y) { return larger(x, reinterpret_cast<V>(y)); };
  const auto raw = [](V x) { return reinterpret_cast<__m256i>(x); };
  v = lanes(v, _mm256_permute4x64_epi64(raw(v), 0x4e));
  v = lanes(v, _mm256_shuffle_epi32(raw(v), 0x4e));
  v = lanes(v, _mm256_shuffle_epi32(raw(v), 0xb1));
  return v[0];
#elif defined(WEFT_NEON)
  decltype(v[0] + v[0]) most;
  const auto halves = larger(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  const auto four = __builtin_shufflevector(halves, halves, 0, 1, 2, 3);
  if constexpr (std::is_signed_v<decltype(most)>) {
    most = vmaxvq_s32(four);
  } else {
    most = vmaxvq_u32(four);
  }
  return most;
#else
  auto most = v[0];
  for (int i = 1; i < 8; ++i) most = v[i] > most ? v[i] : most;
  return most;
#endif
}

// Sums of the codes at places 0 1, 4 5, 8 9, ... and of those at places 2 3, 6 7, ...
struct PairSums {
  int32_t of[2] = {};

  int32_t all() const { return of[0] + of[1]; }
  void add(const PairSums& other) {
    of[0] += other.of[0];
    of[1] += other.of[1];
  }
};

// The sums of each half of 32 codes.
struct CodeSums {
  PairSums half[2];
};

static inline CodeSums sum_codes(s8x32 q) {
  CodeSums sums;
#if defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), reinterpret_cast<__m256i>(q));
  const __m256i two = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
  const __m256i four = _mm256_add_epi16(two, _mm256_shuffle_epi32(two, 0xb1));
  for (int i = 0; i < 2; ++i) {
    const int32_t both = i == 0 ? _mm256_cvtsi256_si32(four) : _mm256_extract_epi32(four, 4);
    sums.half[i] = {{static_cast<int16_t>(both), both >> 16}};
  }
#elif defined(WEFT_NEON)
  // places do not matter here
  int8x16_t half[2];
  std::memcpy(half, &q, sizeof half);
  for (int i = 0; i < 2; ++i) sums.half[i] = {{vaddlvq_s8(half[i]), 0}};
#else
  for (int j = 0; j < 32; ++j) sums.half[j / 16].of[j / 2 % 2] += q[j];
#endif
  return sums;
}

static inline f32x8 to_floats(i32x8 v) { return __builtin_convertvector(v, f32x8); }

// Rounds to the nearest integer, halves to even; the values must fit.
static inline i32x8 round_to_ints(f32x8 v) {
#if defined(__AVX2__)
  return reinterpret_cast<i32x8>(_mm256_cvtps_epi32(reinterpret_cast<__m256>(v)));
#else
  // 1.5 * 2^23 leaves the integer in the mantissa
  return reinterpret_cast<i32x8>(v + 12582912.0f) - 0x4b400000;
#endif
}

// Narrows 32 integers to bytes; the values must fit.
static inline s8x32 narrow_ints(const i32x8 v[4]) {
#if defined(__AVX2__)
  const auto at = [&](int i) { return reinterpret_cast<__m256i>(v[i]); };
  const __m256i packed =
      _mm256_packs_epi16(_mm256_packs_epi32(at(0), at(1)), _mm256_packs_epi32(at(2), at(3)));
  // The packing instructions work on halves of 16 bytes, so the words come out of order.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return reinterpret_cast<s8x32>(_mm256_permutevar8x32_epi32(packed, order));
#elif defined(WEFT_NEON)
  int16x8_t words[4];
  for (int i = 0; i < 4; ++i) {
    int32x4_t part[2];
    std::memcpy(part, &v[i], sizeof part);
    words[i] = vcombine_s16(vmovn_s32(part[0]), vmovn_s32(part[1]));
  }
  return reinterpret_cast<s8x32>(
      join(reinterpret_cast<u8x16>(vcombine_s8(vmovn_s16(words[0]), vmovn_s16(words[1]))),
           reinterpret_cast<u8x16>(vcombine_s8(vmovn_s16(words[2]), vmovn_s16(words[3])))));
#else
  s8x32 bytes;
  for (int j = 0; j < 32; ++j) bytes[j] = static_cast<int8_t>(v[j / 8][j % 8]);
  return bytes;
#endif
}

// a * b + c, fused where the target can.
static inline f32x8 fma8(f32x8 a, f32x8 b, f32x8 c) {
#if defined(__FMA__)
  return reinterpret_cast<f32x8>(_mm256_fmadd_ps(
      reinterpret_cast<__m256>(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
#elif defined(WEFT_NEON)
  float32x4_t x[2], y[2], z[2];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  std::memcpy(z, &c, sizeof z);
  for (int i = 0; i < 2; ++i) z[i] = vfmaq_f32(z[i], x[i], y[i]);
  return load_as<f32x8>(z);
#else
  return a * b + c;
#endif
}

#if defined(__AVX2__)
// Transposes an 8 x 8 matrix of 32-bit words.
static inline void transpose8(i32x8 (&words)[8]) {
  __m256i v[8], a[8];
  for (int i = 0; i < 8; ++i) v[i] = reinterpret_cast<__m256i>(words[i]);
  for (int i = 0; i < 4; ++i) {
    a[2 * i] = _mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    a[2 * i + 1] = _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
  __m256i b[8];
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    words[i] = reinterpret_cast<i32x8>(_mm256_permute2x128_si256(b[i], b[i + 4], 0x20));
    words[i + 4] = reinterpret_cast<i32x8>(_mm256_permute2x128_si256(b[i], b[i + 4], 0x31));
  }
}
#elif defined(WEFT_NEON)
// Transposes a 4 x 4 matrix of 32-bit words.
static inline void transpose4(const int32x4_t (&v)[4], int32x4_t (&out)[4]) {
  const auto pairs = [](int32x4_t a) { return vreinterpretq_s64_s32(a); };
  const auto words = [](int64x2_t a) { return vreinterpretq_s32_s64(a); };
  const int64x2_t a = pairs(vtrn1q_s32(v[0], v[1])), b = pairs(vtrn2q_s32(v[0], v[1]));
  const int64x2_t c = pairs(vtrn1q_s32(v[2], v[3])), d = pairs(vtrn2q_s32(v[2], v[3]));
  out[0] = words(vtrn1q_s64(a, c));
  out[1] = words(vtrn1q_s64(b, d));
  out[2] = words(vtrn2q_s64(a, c));
  out[3] = words(vtrn2q_s64(b, d));
}
// Transposes an 8 x 8 matrix of 32-bit words.
static inline void transpose8(i32x8 (&words)[8]) {
  int32x4_t in[2][2][4], out[2][2][4];  // [half of the rows][half of the words]
  for (int r = 0; r < 8; ++r) {
    int32x4_t halves[2];
    std::memcpy(halves, &words[r], sizeof halves);
    for (int h = 0; h < 2; ++h) in[r / 4][h][r % 4] = halves[h];
  }
  for (int i = 0; i < 2; ++i) {
    for (int h = 0; h < 2; ++h) transpose4(in[i][h], out[h][i]);
  }
  for (int w = 0; w < 8; ++w) {
    const int32x4_t both[2] = {out[w / 4][0][w % 4], out[w / 4][1][w % 4]};
    words[w] = load_as<i32x8>(both);
  }
}
#endif

}  // namespace weft::WEFT_TARGET
