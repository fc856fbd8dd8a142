// The loops of peaks.h. They keep kSums independent sums: enough to hide the latency of each
// instruction, few enough to stay in registers.
#include "kernels/peaks.h"

#include "core/processor.h"
#include "kernels/simd/bytes.h"
#include "kernels/simd/vec.h"

namespace weft::WEFT_TARGET {

const PeakLoops& peak_loops();

namespace {

#if defined(__AVX512F__) || defined(WEFT_NEON)
constexpr int kSums = 16;
#else
constexpr int kSums = 10;
#endif

// Makes the compiler treat `v` as a new value, so that it neither hoists work out of a loop nor
// drops it.
template <class V>
inline void opaque(V& v) {
#if defined(__AVX512F__)
  asm volatile("" : "+v"(v));
#elif defined(__x86_64__)
  asm volatile("" : "+x"(v));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(v));
#else
  asm volatile("" : : "r"(&v) : "memory");
#endif
}

double f32(int64_t rounds) {
  vf sums[kSums];
  for (int i = 0; i < kSums; ++i) sums[i] = splat(static_cast<float>(i));
  vf a = splat(0.999F);
  const vf b = splat(0.001F);
  for (int64_t r = 0; r < rounds; ++r) {
    opaque(a);
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) sums[i] = fma(sums[i], a, b);
  }
  for (vf& sum : sums) opaque(sum);
  return 2.0 * kLanes * kSums * static_cast<double>(rounds);
}

// Does `rounds` rounds of kSums calls of Dot::step(sum, a, b), each of Dot::kProducts products.
template <class Dot>
double dot_loop(int64_t rounds) {
  typename Dot::Sum sums[kSums] = {};
  typename Dot::Left a{};
  typename Dot::Right b{};
  opaque(b);
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) opaque(sums[i]);  // else equal sums would be computed once
  for (int64_t r = 0; r < rounds; ++r) {
    opaque(a);
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      // A product that is not fused with its sum would be computed once for all sums.
      if constexpr (!Dot::kFused) opaque(a);
      sums[i] = Dot::step(sums[i], a, b);
      // Else the old and the new sums would be kept, in memory.
      if constexpr (!Dot::kFused) opaque(sums[i]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSums; ++i) opaque(sums[i]);
  return 2.0 * Dot::kProducts * kSums * static_cast<double>(rounds);
}

#if defined(__AVX512VNNI__)
struct DotBytes {
  using Sum = __m512i;
  using Left = __m512i;
  using Right = __m512i;
  static constexpr int kProducts = 64;
  static constexpr bool kFused = true;
  static inline Sum step(Sum sum, Left a, Right b) { return _mm512_dpbusd_epi32(sum, a, b); }
};
#elif defined(__AVXVNNI__)
struct DotBytes {
  using Sum = __m256i;
  using Left = __m256i;
  using Right = __m256i;
  static constexpr int kProducts = 32;
  static constexpr bool kFused = true;
  static inline Sum step(Sum sum, Left a, Right b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
};
#elif defined(__AVX2__)
struct DotBytes {
  using Sum = __m256i;
  using Left = __m256i;
  using Right = __m256i;
  static constexpr int kProducts = 32;
  static constexpr bool kFused = false;
  static inline Sum step(Sum sum, Left a, Right b) {
    // sums stay in 16 bits, as those of codes of up to seven bits do (quants/lane_dots.h)
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
  }
};
#elif defined(WEFT_NEON)
struct DotBytes {
  using Sum = int32x4_t;
  using Left = int8x16_t;
  using Right = int8x16_t;
#if defined(__ARM_FEATURE_MATMUL_INT8)
  static constexpr int kProducts = 32;
  static constexpr bool kFused = true;
  static inline Sum step(Sum sum, Left a, Right b) { return vmmlaq_s32(sum, a, b); }
#elif defined(__ARM_FEATURE_DOTPROD)
  static constexpr int kProducts = 16;
  static constexpr bool kFused = true;
  static inline Sum step(Sum sum, Left a, Right b) { return vdotq_s32(sum, a, b); }
#else
  static constexpr int kProducts = 16;
  static constexpr bool kFused = false;
  static inline Sum step(Sum sum, Left a, Right b) { return dot_signed(sum, a, b); }
#endif
};
#elif defined(__SSE2__)
// SSE2 has no dot product of bytes: kernels widen them to 16 bits and multiply those.
struct DotBytes {
  using Sum = __m128i;
  using Left = __m128i;
  using Right = __m128i;
  static constexpr int kProducts = 8;
  static constexpr bool kFused = false;
  static inline Sum step(Sum sum, Left a, Right b) {
    return _mm_add_epi32(sum, _mm_madd_epi16(a, b));
  }
};
#endif

#if !defined(__SSE2__) && !defined(WEFT_NEON)
double int8(int64_t rounds) {
  i32x8 sums[4] = {};
  u8x32 u = splat8(3);
  s8x32 x{};
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : : "r"(&u), "r"(&x) : "memory");
    for (auto& sum : sums) sum = dot_bytes(sum, u, x);
  }
  asm volatile("" : : "r"(&sums) : "memory");
  return 2.0 * 32 * 4 * static_cast<double>(rounds);
}
#endif

// The avx512 target is compiled without bf16 instructions; this function enables them for itself.
#if defined(__AVX512F__)
#define WEFT_PEAK_BF16 1
__attribute__((target("avx512bf16"))) double bf16(int64_t rounds) {
  __m512 sums[kSums] = {};
  __m512i a{};
  __m512i b{};
  opaque(b);
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(a));
#pragma GCC unroll 16
    for (int i = 0; i < kSums; ++i) {
      sums[i] =
          _mm512_dpbf16_ps(sums[i], reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
    }
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
  return 2.0 * 32 * kSums * static_cast<double>(rounds);
}
#endif

// Reads kStreams adjacent vectors per step into separate sums.
uint64_t read(const char* data, int64_t n) {
  constexpr int kStreams = 8;
  constexpr auto kStep = static_cast<int64_t>(sizeof(vi)) * kStreams;
  vi sums[kStreams] = {};
  for (int64_t at = 0; at < n; at += kStep) {
    for (int s = 0; s < kStreams; ++s) {
      sums[s] ^= load_as<vi>(data + at + s * static_cast<int64_t>(sizeof(vi)));
    }
  }
  for (int s = 1; s < kStreams; ++s) sums[0] ^= sums[s];
  uint64_t words[sizeof(vi) / 8];
  std::memcpy(words, &sums[0], sizeof words);
  uint64_t all = 0;
  for (uint64_t word : words) all ^= word;
  return all;
}

}  // namespace

const PeakLoops& peak_loops() {
  static const PeakLoops of_target = [] {
    PeakLoops loops;
#if defined(__SSE2__) || defined(WEFT_NEON)
    loops.int8 = dot_loop<DotBytes>;
#else
    loops.int8 = int8;
#endif
    loops.f32 = f32;
#if defined(WEFT_PEAK_BF16)
    if (processor().avx512bf16) loops.bf16 = bf16;
#endif
    loops.read = read;
    return loops;
  }();
  return of_target;
}

}  // namespace weft::WEFT_TARGET
