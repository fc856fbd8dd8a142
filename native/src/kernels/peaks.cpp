// The loops of peaks.h. They keep kSums independent sums: enough to hide the latency of each
// instruction, few enough to stay in registers.
#include "kernels/peaks.h"

#include "core/processor.h"
#include "kernels/simd/byte_dots.h"
#include "kernels/simd/tiles.h"

namespace weft::WEFT_TARGET {

const PeakLoops& peak_loops();

namespace {

constexpr int kSums = kRegisters == 32 ? 16 : 10;

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
  vi sums[kSums] = {};
  vi a{};
  vi b{};
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

#if defined(WEFT_TILES)
// Products of whole tiles, of bytes or of bf16, in four sums.
template <bool kBytes>
double tile_loop(int64_t rounds) {
  TileUse tiles;
  tiles.shape_bytes(kMostTileRows, kTileRowBytes / 4);
  for (int64_t r = 0; r < rounds; ++r) {
    if constexpr (kBytes) {
      add_byte_tiles<0, 4, 6>();
      add_byte_tiles<1, 4, 7>();
      add_byte_tiles<2, 5, 6>();
      add_byte_tiles<3, 5, 7>();
    } else {
      add_bf16_tiles<0, 4, 6>();
      add_bf16_tiles<1, 4, 7>();
      add_bf16_tiles<2, 5, 6>();
      add_bf16_tiles<3, 5, 7>();
    }
  }
  return 2.0 * 4 * 16 * 16 * (kBytes ? 64 : 32) * static_cast<double>(rounds);
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
    loops.int8 = dot_loop<PeakDot>;
    loops.f32 = f32;
#if defined(WEFT_PEAK_BF16)
    if (processor().avx512bf16) loops.bf16 = bf16;
#endif
#if defined(WEFT_TILES)
    loops.int8 = tile_loop<true>;
    loops.bf16 = tile_loop<false>;
#endif
    loops.read = read;
    return loops;
  }();
  return of_target;
}

}  // namespace weft::WEFT_TARGET
