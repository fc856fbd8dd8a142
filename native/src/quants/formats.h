// The integer view of each format: unsigned byte codes, 32 at a time, and float scales. Decoders,
// dot products and matrix kernels are written once over this view:
//
//   value = scale[group] * (code - kZero) + min[group]
//
// A format F has
//
//   Block, Activation   the block of weights, and the block of activations it is multiplied with
//   kChunks             chunks of 32 elements per block
//   kGroups             groups per block, each with a scale: one or two per chunk
//   kZero, kTop         the code of the value 0 (without the minimum), and the largest code
//   kHasMin             whether groups have minima; then kZero is 0
//   kOneScale           whether all groups of a block have the same scale
//   scales              all scales and minima of a block; blocks of 256 elements have scale8
//                       instead, for the groups 8 * half .. 8 * half + 7
//   step8, low8, d, low_d  instead of scale8, where scales are whole numbers times one factor: the
//                       scale is step8 * d and the minimum low8 * low_d
//   codes               the 32 codes of a chunk
//
// Source: dequantize_row_* in ggml-quants.c; layouts in quants/blocks.h.
#pragma once

#include "kernels/simd/bytes.h"
#include "quants/fp4.h"
#include "quants/k_quants.h"

namespace weft::WEFT_TARGET {

struct FormatQ4_0 {
  using Block = BlockQ4_0;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 8, kTop = 15;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) { *scale = half_to_float(b.d); }
  static u8x32 codes(const Block& b, int) { return nibbles(b.qs); }
};

struct FormatQ4_1 {
  using Block = BlockQ4_1;
  using Activation = BlockQ8_1;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 0, kTop = 15;
  static constexpr bool kHasMin = true, kOneScale = false;
  static void scales(const Block& b, float* scale, float* min) {
    *scale = half_to_float(b.d);
    *min = half_to_float(b.m);
  }
  static u8x32 codes(const Block& b, int) { return nibbles(b.qs); }
};

struct FormatQ5_0 {
  using Block = BlockQ5_0;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 16, kTop = 31;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) { *scale = half_to_float(b.d); }
  static u8x32 codes(const Block& b, int) { return nibbles(b.qs) | spread_bits(read32(b.qh), 16); }
};

struct FormatQ5_1 {
  using Block = BlockQ5_1;
  using Activation = BlockQ8_1;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 0, kTop = 31;
  static constexpr bool kHasMin = true, kOneScale = false;
  static void scales(const Block& b, float* scale, float* min) {
    *scale = half_to_float(b.d);
    *min = half_to_float(b.m);
  }
  static u8x32 codes(const Block& b, int) { return nibbles(b.qs) | spread_bits(read32(b.qh), 16); }
};

struct FormatQ8_0 {
  using Block = BlockQ8_0;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 128, kTop = 255;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) { *scale = half_to_float(b.d); }
  static u8x32 codes(const Block& b, int) { return load_as<u8x32>(b.qs) ^ splat8(128); }
};

struct FormatQ2_K {
  using Block = BlockQ2_K;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 16, kZero = 0, kTop = 3;
  static constexpr bool kHasMin = true, kOneScale = false;
  static float d(const Block& b) { return half_to_float(b.d); }
  static float low_d(const Block& b) { return -half_to_float(b.dmin); }
  static i32x8 step8(const Block& b, int half) {
    return widen_unsigned(load_as<uint64_t>(b.scales + 8 * half) & 0x0f0f0f0f0f0f0f0fu);
  }
  static i32x8 low8(const Block& b, int half) {
    return widen_unsigned(load_as<uint64_t>(b.scales + 8 * half) >> 4 & 0x0f0f0f0f0f0f0f0fu);
  }
  static u8x32 codes(const Block& b, int chunk) {
    return field(load_as<u8x32>(b.qs + 32 * (chunk / 4)), chunk % 4 * 2, 3);
  }
};

struct FormatQ3_K {
  using Block = BlockQ3_K;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 16, kZero = 4, kTop = 7;
  static constexpr bool kHasMin = false, kOneScale = false;
  static float d(const Block& b) { return half_to_float(b.d); }
  static i32x8 step8(const Block& b, int half) {
    return widen_unsigned(sixteen_scales(b.scales, half)) - 32;
  }
  static u8x32 codes(const Block& b, int chunk) {
    const u8x32 high = field(load_as<u8x32>(b.hmask), chunk, 1);
    return field(load_as<u8x32>(b.qs + 32 * (chunk / 4)), chunk % 4 * 2, 3) | field_up(high, 1, 2);
  }
};

struct FormatQ4_K {
  using Block = BlockQ4_K;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 0, kTop = 15;
  static constexpr bool kHasMin = true, kOneScale = false;
  static float d(const Block& b) { return half_to_float(b.d); }
  static float low_d(const Block& b) { return -half_to_float(b.dmin); }
  static i32x8 step8(const Block& b, int) { return widen_unsigned(pair_scales(b.scales)); }
  static i32x8 low8(const Block& b, int) { return widen_unsigned(pair_mins(b.scales)); }
  static u8x32 codes(const Block& b, int chunk) {
    return field(load_as<u8x32>(b.qs + 32 * (chunk / 2)), chunk % 2 * 4, 15);
  }
};

struct FormatQ5_K {
  using Block = BlockQ5_K;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 0, kTop = 31;
  static constexpr bool kHasMin = true, kOneScale = false;
  static float d(const Block& b) { return half_to_float(b.d); }
  static float low_d(const Block& b) { return -half_to_float(b.dmin); }
  static i32x8 step8(const Block& b, int) { return widen_unsigned(pair_scales(b.scales)); }
  static i32x8 low8(const Block& b, int) { return widen_unsigned(pair_mins(b.scales)); }
  static u8x32 codes(const Block& b, int chunk) {
    const u8x32 high = field(load_as<u8x32>(b.qh), chunk, 1);
    return field(load_as<u8x32>(b.qs + 32 * (chunk / 2)), chunk % 2 * 4, 15) | field_up(high, 1, 4);
  }
};

struct FormatQ6_K {
  using Block = BlockQ6_K;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 16, kZero = 32, kTop = 63;
  static constexpr bool kHasMin = false, kOneScale = false;
  static float d(const Block& b) { return half_to_float(b.d); }
  static i32x8 step8(const Block& b, int half) {
    return widen_signed(load_as<uint64_t>(b.scales + 8 * half));
  }
  static u8x32 codes(const Block& b, int chunk) {
    const u8x32 low = load_as<u8x32>(b.ql + 64 * (chunk / 4) + 32 * (chunk % 2));
    const u8x32 high = load_as<u8x32>(b.qh + 32 * (chunk / 4));
    return field(low, chunk / 2 % 2 * 4, 15) | field_up(field(high, chunk % 4 * 2, 3), 3, 4);
  }
};

// kIQ4Levels + 128.
inline constexpr uint8_t kIQ4Codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                          129, 141, 153, 166, 181, 197, 217, 241};

struct FormatIQ4_NL {
  using Block = BlockIQ4_NL;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 128, kTop = 241;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) { *scale = half_to_float(b.d); }
  static u8x32 codes(const Block& b, int) { return look_up(kIQ4Codes, nibbles(b.qs)); }
};

struct FormatIQ4_XS {
  using Block = BlockIQ4_XS;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 128, kTop = 241;
  static constexpr bool kHasMin = false, kOneScale = false;
  static float d(const Block& b) { return half_to_float(b.d); }
  static i32x8 step8(const Block& b, int) {
    // A scale has 4 bits in `low` and 2 bits in `high`; both are spread to one scale per byte.
    uint64_t low = read32(b.scales_l);
    low = (low | low << 16) & 0x0000ffff0000ffffu;
    low = (low | low << 8) & 0x00ff00ff00ff00ffu;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0fu;
    uint64_t high = b.scales_h;
    high = (high | high << 24) & 0x000000ff000000ffu;
    high = (high | high << 12) & 0x000f000f000f000fu;
    high = (high | high << 6) & 0x0303030303030303u;
    return widen_unsigned(low | high << 4) - 32;
  }
  static u8x32 codes(const Block& b, int chunk) {
    return look_up(kIQ4Codes, nibbles(b.qs + 16 * chunk));
  }
};

// kE2M1Doubled + 12.
inline constexpr uint8_t kE2M1Codes[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                           12, 11, 10, 9,  8,  6,  4,  0};

struct FormatMXFP4 {
  using Block = BlockMXFP4;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 1, kGroups = 1, kZero = 12, kTop = 24;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) { *scale = halved_e8m0(b.e); }
  static u8x32 codes(const Block& b, int) { return look_up(kE2M1Codes, nibbles(b.qs)); }
};

struct FormatNVFP4 {
  using Block = BlockNVFP4;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 2, kGroups = 4, kZero = 12, kTop = 24;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) {
    for (int g = 0; g < 4; ++g) scale[g] = halved_ue4m3(b.d[g]);
  }
  static u8x32 codes(const Block& b, int chunk) {
    // In v, the halves of the two groups of 16 elements are in the order low 0, low 1, high 0,
    // high 1, eight bytes each; the shuffle puts each group together.
    const u8x32 v = nibbles(b.qs + 16 * chunk);
    typedef uint64_t u64x4 __attribute__((vector_size(32)));
    const u64x4 quarters = reinterpret_cast<u64x4>(v);
    return look_up(kE2M1Codes, reinterpret_cast<u8x32>(
                                   __builtin_shufflevector(quarters, quarters, 0, 2, 1, 3)));
  }
};

struct FormatTQ1_0 {
  using Block = BlockTQ1_0;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 1, kTop = 2;
  static constexpr bool kHasMin = false, kOneScale = true;
  static f32x8 scale8(const Block& b, int) { return splat8f(half_to_float(b.d)); }
  // Digit k of a byte is the integer part of 3 * (byte * 3^k mod 256) / 256, which is the number of
  // thirds of 256 that the product has passed.
  static u8x32 digits(u8x32 bytes, u8x32 powers) {
    const u8x32 v = bytes * powers;
    return (reinterpret_cast<u8x32>(v > splat8(85)) & splat8(1)) +
           (reinterpret_cast<u8x32>(v > splat8(170)) & splat8(1));
  }
  static u8x32 codes(const Block& b, int chunk) {
    static constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
    if (chunk < 5) return digits(load_as<u8x32>(b.qs), splat8(kPowers[chunk]));
    const auto half = load_as<u8x16>(b.qs + 32);
    if (chunk < 7) {
      const int k = 2 * (chunk - 5);
      return digits(join(half, half), join(u8x16{} + kPowers[k], u8x16{} + kPowers[k + 1]));
    }
    // The fifth digit of 16 bytes of qs, then the four digits of the four bytes of qh.
    typedef uint32_t u32x4 __attribute__((vector_size(16)));
    const auto four = reinterpret_cast<u8x16>(u32x4{} + read32(b.qh));
    constexpr u8x16 kRising = {1, 1, 1, 1, 3, 3, 3, 3, 9, 9, 9, 9, 27, 27, 27, 27};
    return digits(join(half, four), join(u8x16{} + kPowers[4], kRising));
  }
};

struct FormatTQ2_0 {
  using Block = BlockTQ2_0;
  using Activation = BlockQ8_K;
  static constexpr int kChunks = 8, kGroups = 8, kZero = 1, kTop = 3;
  static constexpr bool kHasMin = false, kOneScale = true;
  static f32x8 scale8(const Block& b, int) { return splat8f(half_to_float(b.d)); }
  static u8x32 codes(const Block& b, int chunk) {
    return field(load_as<u8x32>(b.qs + 32 * (chunk / 4)), chunk % 4 * 2, 3);
  }
};

// bitnet.cpp's i2_s: the fields of byte j, most significant first, are the elements j, 32 + j,
// 64 + j and 96 + j. The codes 0, 1, 2 mean -1, 0, +1, and 3 means 0. The whole tensor has one
// scale, which matmul applies. Source: quantize_i2_s in microsoft/BitNet's ggml-bitnet-mad.cpp.
inline constexpr uint8_t kI2SCodes[16] = {0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1};

struct BlockI2_S {
  uint8_t qs[32];
};

struct FormatI2_S {
  using Block = BlockI2_S;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 4, kGroups = 4, kZero = 1, kTop = 2;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block&, float* scale, float*) {
    for (int g = 0; g < 4; ++g) scale[g] = 1.0f;
  }
  static u8x32 codes(const Block& b, int chunk) {
    return look_up(kI2SCodes, field(load_as<u8x32>(b.qs), 6 - 2 * chunk, 3));
  }
};

struct FormatQ1_0 {
  using Block = BlockQ1_0;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 4, kGroups = 4, kZero = 1, kTop = 2;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) {
    for (int g = 0; g < 4; ++g) scale[g] = half_to_float(b.d);
  }
  static u8x32 codes(const Block& b, int chunk) { return spread_bits(read32(b.qs + 4 * chunk), 2); }
};

struct FormatQ2_0 {
  using Block = BlockQ2_0;
  using Activation = BlockQ8_0;
  static constexpr int kChunks = 2, kGroups = 2, kZero = 1, kTop = 3;
  static constexpr bool kHasMin = false, kOneScale = false;
  static void scales(const Block& b, float* scale, float*) {
    scale[0] = scale[1] = half_to_float(b.d);
  }
  static u8x32 codes(const Block& b, int chunk) { return quarter_bytes(b.qs + 8 * chunk); }
};

template <typename F>
inline constexpr int kGroupsPerChunk = F::kGroups / F::kChunks;

// The format whose products of unpacked panels serve F too: F itself, or what it names.
template <typename F>
struct PanelsOf {
  using Format = F;
};
template <typename F>
  requires requires { typename F::Panels; }
struct PanelsOf<F> {
  using Format = typename F::Panels;
};

// Whether a block of activations has eight chunks with one scale (q8_K).
template <typename F>
inline constexpr bool kBlockActivations = sizeof(typename F::Activation) == sizeof(BlockQ8_K);

// Whether the weights of such a block have one scale too, so that the sum of the block is an
// integer.
template <typename F>
inline constexpr bool kOneScale = kBlockActivations<F> && F::kOneScale;

// Whether scales are whole numbers times one factor for the block.
template <typename F>
inline constexpr bool kHasSteps = requires { &F::step8; };

// Whether blocks of such a format are added up as whole numbers: see quant_kernels.h.
template <typename F>
inline constexpr bool kWholeSums = (kLaneDots || kLanes == 8) && kHasSteps<F>;

// All scales of a block, and its minima where the format has them.
template <typename F>
static inline void block_scales(const typename F::Block& b, float* scale,
                                [[maybe_unused]] float* min) {
  if constexpr (F::kChunks == 8) {
    for (int half = 0; half < F::kGroups / 8; ++half) {
      f32x8 s;
      if constexpr (kHasSteps<F>) {
        s = to_floats(F::step8(b, half)) * F::d(b);
      } else {
        s = F::scale8(b, half);
      }
      std::memcpy(scale + 8 * half, &s, sizeof s);
      if constexpr (F::kHasMin) {
        const f32x8 m = to_floats(F::low8(b, half)) * F::low_d(b);
        std::memcpy(min + 8 * half, &m, sizeof m);
      }
    }
  } else {
    F::scales(b, scale, min);
  }
}

// Decodes a row with the rounding of the reference: first scale * (code - kZero), then + min.
template <typename F>
void decode_format(const void* src, float* dst, int64_t n) {
  constexpr int kLength = 32 * F::kChunks / F::kGroups;
  const auto* block = static_cast<const typename F::Block*>(src);
  for (int64_t i = 0; i < n; i += 32 * F::kChunks, ++block) {
    float scale[F::kGroups];
    float min[F::kGroups];
    block_scales<F>(*block, scale, min);
#pragma GCC unroll 8
    for (int c = 0; c < F::kChunks; ++c) {
      const u8x32 codes = F::codes(*block, c);
      for (int j = 0; j < 32; j += 8, dst += 8) {
        const int group = (32 * c + j) / kLength;
        const auto eight = load_as<uint64_t>(reinterpret_cast<const char*>(&codes) + j);
        f32x8 v = to_floats(widen_unsigned(eight) - F::kZero);
        v = v * scale[group];
        if constexpr (F::kHasMin) v = v + min[group];
        std::memcpy(dst, &v, sizeof v);
      }
    }
  }
}

// ---- activations: the codes of a chunk, and its scale

static inline s8x32 activation_codes(const BlockQ8_0* row, int64_t chunk) {
  return load_as<s8x32>(row[chunk].qs);
}
static inline s8x32 activation_codes(const BlockQ8_1* row, int64_t chunk) {
  return load_as<s8x32>(row[chunk].qs);
}
static inline s8x32 activation_codes(const BlockQ8_K* row, int64_t chunk) {
  return load_as<s8x32>(row[chunk / 8].qs + 32 * (chunk % 8));
}

static inline float activation_scale(const BlockQ8_0* row, int64_t chunk) {
  return half_to_float(row[chunk].d);
}
static inline float activation_scale(const BlockQ8_1* row, int64_t chunk) {
  return half_to_float(row[chunk].d);
}
static inline float activation_scale(const BlockQ8_K* row, int64_t chunk) {
  return row[chunk / 8].d;
}

template <typename Activation>
struct ActivationType;
template <>
struct ActivationType<BlockQ8_0> {
  static constexpr DType kType = DType::kQ8_0;
};
template <>
struct ActivationType<BlockQ8_1> {
  static constexpr DType kType = DType::kQ8_1;
};
template <>
struct ActivationType<BlockQ8_K> {
  static constexpr DType kType = DType::kQ8_K;
};

}  // namespace weft::WEFT_TARGET
