// The blocks of ik_llama.cpp's types, as rows in memory have them. Types whose scale files store
// once for a row have a copy of it in each block (frontends/gguf/row_forms.py).
#pragma once

#include <cstdint>

namespace weft {

#pragma pack(push, 1)

struct BlockIQ2_K {
  uint16_t d;
  uint16_t extra;
  uint8_t scales[8];
  uint8_t qs[64];
};
struct BlockIQ3_K {
  uint16_t d;
  uint16_t extra;
  uint16_t signs;
  uint8_t scales[8];
  uint8_t qs[64];
  uint8_t qh[32];
};
struct BlockIQ4_K {
  uint16_t d;
  uint16_t extra;
  uint8_t scales_h[4];
  uint8_t scales_l[8];
  uint8_t qs[128];
};
struct BlockIQ5_K {
  uint16_t d;
  uint16_t extra;
  uint8_t scales_h[4];
  uint8_t scales_l[8];
  uint8_t qs[128];
  uint8_t qh[32];
};
struct BlockIQ6_K {
  uint16_t d;
  uint16_t extra;
  int8_t scales[16];
  uint8_t qs[128];
  uint8_t qh[64];
};
struct BlockIQ2_KS {
  uint16_t d;
  uint16_t extra;
  uint8_t scales[4];
  uint8_t qs[64];
};
struct BlockIQ3_KS {
  uint16_t d;
  uint16_t extra;
  uint8_t scales[4];
  uint8_t qs[64];
  uint8_t qh[32];
};
struct BlockIQ4_KS {
  float d;
  uint8_t scales[8];
  uint8_t qs[128];
};
struct BlockIQ5_KS {
  float d;
  uint8_t scales[8];
  uint8_t qs[128];
  uint8_t qh[32];
};
struct BlockIQ2_KL {
  uint16_t d;
  uint16_t scales_h;
  uint8_t scales_l[4];
  uint8_t qs[64];
  uint8_t qh[16];
};
struct BlockIQ1_KT {
  float d;
  uint8_t sh[8];
  uint8_t ql[32];
  uint8_t qh[16];
};
struct BlockIQ2_KT {
  float d;
  uint8_t scales[4];
  uint16_t ql[32];
};
struct BlockIQ3_KT {
  float d;
  uint8_t scales[4];
  uint16_t ql[32];
  uint8_t signs[32];
};
struct BlockIQ4_KT {
  float d;
  uint32_t steps[8];
  uint8_t ql[64];
  uint8_t qh[32];
};
struct BlockIQ2_BN {
  float d;
  uint8_t qs[16];
};
struct BlockIQ1_M_R4 {
  uint16_t d;
  uint8_t scales[8];
  uint8_t qs[32];
  uint8_t qh[16];
};
struct BlockQ6_0 {
  uint16_t d;
  uint8_t qh[8];
  uint8_t qs[16];
};
struct BlockQ8_KV {
  float d;
  int8_t qs[32];
};

#pragma pack(pop)

static_assert(sizeof(BlockIQ2_K) == 76 && sizeof(BlockIQ3_K) == 110 && sizeof(BlockIQ4_K) == 144);
static_assert(sizeof(BlockIQ5_K) == 176 && sizeof(BlockIQ6_K) == 212 && sizeof(BlockIQ2_KS) == 72);
static_assert(sizeof(BlockIQ3_KS) == 104 && sizeof(BlockIQ4_KS) == 140);
static_assert(sizeof(BlockIQ5_KS) == 172 && sizeof(BlockIQ2_KL) == 88 && sizeof(BlockIQ1_KT) == 60);
static_assert(sizeof(BlockIQ2_KT) == 72 && sizeof(BlockIQ3_KT) == 104 &&
              sizeof(BlockIQ4_KT) == 132);
static_assert(sizeof(BlockIQ2_BN) == 20 && sizeof(BlockIQ1_M_R4) == 58 && sizeof(BlockQ6_0) == 26);
static_assert(sizeof(BlockQ8_KV) == 36);

}  // namespace weft
