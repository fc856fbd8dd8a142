// The packed blocks of the quantized types, as files hold them (little-endian, no padding).
//
// Source: the block structures of ggml-common.h; mxfp4 is the OCP Microscaling format. `d` is a
// scale, `m` or `dmin` an offset; both are IEEE halves unless noted. The comment beside a block
// gives the value of code q.
#pragma once

#include <cstdint>

#include "weft/types.h"

namespace weft {

// Blocks follow each other without alignment.
#pragma pack(push, 1)

// ---- 32 elements with one scale. Byte j of a 4-bit qs holds element j in its low half and element
// 16 + j in its high half.

struct BlockQ4_0 {  // d * (q - 8)
  uint16_t d;
  uint8_t qs[16];
};

struct BlockQ4_1 {  // d * q + m
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];
};

struct BlockQ5_0 {  // d * (q - 16); bit i of qh is bit 4 of element i
  uint16_t d;
  uint8_t qh[4];
  uint8_t qs[16];
};

struct BlockQ5_1 {  // d * q + m
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};

struct BlockQ8_0 {  // d * q
  uint16_t d;
  int8_t qs[32];
};

struct BlockQ8_1 {  // d * q; s = d * sum(q). Activations only.
  uint16_t d;
  uint16_t s;
  int8_t qs[32];
};

// ---- K-quants: 256 elements in planes of 32. Field i of byte j belongs to element 32 * i + j:
//
//     4-bit qs, bytes 0..31     elements 0..31 low, 32..63 high; the next 32 bytes: 64..127, ...
//     2-bit qs, bytes 0..31     elements 0..31 in bits 0-1, 32..63 in bits 2-3, ... 96..127
//     1-bit qh, bytes 0..31     elements 0..31 in bit 0, 32..63 in bit 1, ... 224..255

struct BlockQ2_K {  // 16 groups of 16: d * (s & 15) * q - dmin * (s >> 4)
  uint8_t scales[16];
  uint8_t qs[64];
  uint16_t d;
  uint16_t dmin;
};

struct BlockQ3_K {  // 16 groups of 16: d * (s - 32) * (q - 4); hmask holds bit 2 of q
  uint8_t hmask[32];
  uint8_t qs[64];
  uint8_t scales[12];
  uint16_t d;
};

struct BlockQ4_K {  // 8 groups of 32: d * s * q - dmin * m
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qs[128];
};

struct BlockQ5_K {  // 8 groups of 32: d * s * q - dmin * m; qh holds bit 4 of q
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
};

struct BlockQ6_K {  // 16 groups of 16: d * s * (q - 32)
  uint8_t ql[128];
  uint8_t qh[64];
  int8_t scales[16];
  uint16_t d;
};

struct BlockQ8_K {  // d * q, where d is a float; bsums[i] is the sum of 16 codes. Activations only.
  float d;
  int8_t qs[256];
  int16_t bsums[16];
};

// ---- codebooks: 256 elements. A code names a vector of 8 (iq3: 4) levels.

struct BlockIQ2_XXS {  // per 32: four 8-bit codes, then four 7-bit sign indices and a 4-bit scale
  uint16_t d;
  uint16_t qs[32];
};

struct BlockIQ2_XS {  // per 8: a 9-bit code and a 7-bit sign index; per 16: a 4-bit scale
  uint16_t d;
  uint16_t qs[32];
  uint8_t scales[8];
};

struct BlockIQ2_S {  // per 8: a 10-bit code (8 bits in qs, 2 in qh) and 8 sign bits
  uint16_t d;
  uint8_t qs[32];
  uint8_t signs[32];
  uint8_t qh[8];
  uint8_t scales[8];
};

struct BlockIQ3_XXS {  // per 4: an 8-bit code; per 32: four 7-bit sign indices and a 4-bit scale
  uint16_t d;
  uint8_t qs[64];
  uint8_t signs_scales[32];
};

struct BlockIQ3_S {  // per 4: a 9-bit code (8 bits in qs, 1 in qh); per 32: a 4-bit scale
  uint16_t d;
  uint8_t qs[64];
  uint8_t qh[8];
  uint8_t signs[32];
  uint8_t scales[4];
};

struct BlockIQ1_S {  // per 8: an 11-bit code, 8 bits in qs; qh, per 32: 4 x 3 bits, scale, shift
  uint16_t d;
  uint8_t qs[32];
  uint16_t qh[8];
};

struct BlockIQ1_M {  // per 8: an 11-bit code; per 16: a 3-bit scale; d: the top 4 bits of scales
  uint8_t qs[32];
  uint8_t qh[16];
  uint16_t scales[4];
};

struct BlockIQ4_NL {  // 32 elements: d * level[q]
  uint16_t d;
  uint8_t qs[16];
};

struct BlockIQ4_XS {  // 8 groups of 32: d * (s - 32) * level[q]
  uint16_t d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[128];
};

// ---- ternary: 256 elements, d * (q - 1)

struct BlockTQ1_0 {  // five base-3 digits per byte of qs, four per byte of qh
  uint8_t qs[48];
  uint8_t qh[4];
  uint16_t d;
};

struct BlockTQ2_0 {
  uint8_t qs[64];
  uint16_t d;
};

// ---- floating-point codes

struct BlockMXFP4 {  // 32 elements; e is the exponent of a power of two (E8M0)
  uint8_t e;
  uint8_t qs[16];
};

struct BlockNVFP4 {  // 4 groups of 16; their scales d are unsigned E4M3
  uint8_t d[4];
  uint8_t qs[32];
};

// ---- one and two bits

struct BlockQ1_0 {  // 128 elements: d or -d
  uint16_t d;
  uint8_t qs[16];
};

struct BlockQ2_0 {  // 64 elements: d * (q - 1)
  uint16_t d;
  uint8_t qs[16];
};

#pragma pack(pop)

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ8_1) == 36);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockQ8_K) == 292);
static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110 && sizeof(BlockIQ1_S) == 50);
static_assert(sizeof(BlockIQ1_M) == 56 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136);
static_assert(sizeof(BlockTQ1_0) == 54 && sizeof(BlockTQ2_0) == 66 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockNVFP4) == 36 && sizeof(BlockQ1_0) == 18 && sizeof(BlockQ2_0) == 18);

// The levels of iq4_nl and iq4_xs.
inline constexpr int8_t kIQ4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// E2M1 values, doubled; scales are halved to make up for it. Code 8, which is -0, counts as 0.
inline constexpr int8_t kE2M1Doubled[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace weft
