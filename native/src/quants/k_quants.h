// How the K-quants pack scales and codes, for their decoders, encoders and dot products.
#pragma once

#include "quants/codec.h"

namespace weft::WEFT_TARGET {

// The eight 6-bit scales and minima of q4_K and q5_K are packed in 12 bytes. With j from 0 to 3:
//
//     byte j      bits 0-5: scale j           bits 6-7: bits 4-5 of scale 4 + j
//     byte 4 + j  bits 0-5: minimum j         bits 6-7: bits 4-5 of minimum 4 + j
//     byte 8 + j  bits 0-3: bits 0-3 of scale 4 + j, bits 4-7: bits 0-3 of minimum 4 + j
//
// pair_scales and pair_mins give one number per byte, the first in the lowest.
static inline uint64_t pair_scales(const uint8_t* packed) {
  const uint32_t a = read32(packed);
  const uint32_t c = read32(packed + 8);
  const uint32_t high = (c & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u);
  return uint64_t{high} << 32 | (a & 0x3f3f3f3fu);
}
static inline uint64_t pair_mins(const uint8_t* packed) {
  const uint32_t b = read32(packed + 4);
  const uint32_t c = read32(packed + 8);
  const uint32_t high = (c >> 4 & 0x0f0f0f0fu) | (b >> 2 & 0x30303030u);
  return uint64_t{high} << 32 | (b & 0x3f3f3f3fu);
}

static inline void pack_pairs(const uint8_t* scales, const uint8_t* mins, uint8_t* packed) {
  for (int j = 0; j < 4; ++j) {
    packed[j] = low8(scales[j] | scales[j + 4] >> 4 << 6);
    packed[j + 4] = low8(mins[j] | mins[j + 4] >> 4 << 6);
    packed[j + 8] = low8((scales[j + 4] & 15) | (mins[j + 4] & 15) << 4);
  }
}

// The sixteen 6-bit scales of q3_K are packed in 12 bytes: byte j < 8 has bits 0-3 of scale j in
// its low half and those of scale 8 + j in its high half; bits 4-5 of scale j are in byte 8 + j %
// 4, at bit 2 * (j / 4). Gives the scales 8 * half .. 8 * half + 7, one per byte, the first in the
// lowest.
static inline uint64_t sixteen_scales(const uint8_t* packed, int half) {
  const uint32_t c = read32(packed + 8);
  const int shift = 4 * half;
  const uint32_t low = (read32(packed) >> shift & 0x0f0f0f0fu) | (c >> shift << 4 & 0x30303030u);
  const uint32_t high =
      (read32(packed + 4) >> shift & 0x0f0f0f0fu) | (c >> shift << 2 & 0x30303030u);
  return uint64_t{high} << 32 | low;
}

static inline void pack_sixteen(const uint8_t* scales, uint8_t* packed) {
  for (int j = 0; j < 8; ++j) packed[j] = low8((scales[j] & 15) | (scales[j + 8] & 15) << 4);
  for (int j = 0; j < 4; ++j) {
    int high = 0;
    for (int k = 0; k < 4; ++k) high |= scales[j + 4 * k] >> 4 << 2 * k;
    packed[j + 8] = low8(high);
  }
}

// Packs 256 two-bit codes into the planes of 64 bytes (blocks.h).
static inline void pack_two_bits(const uint8_t* codes, uint8_t* packed) {
  for (int half = 0; half < 2; ++half, codes += 128, packed += 32) {
    for (int j = 0; j < 32; ++j) {
      packed[j] = low8((codes[j] & 3) | (codes[j + 32] & 3) << 2 | (codes[j + 64] & 3) << 4 |
                       (codes[j + 96] & 3) << 6);
    }
  }
}

// Packs 256 four-bit codes into the planes of 128 bytes.
static inline void pack_four_bits(const uint8_t* codes, uint8_t* packed) {
  for (int pair = 0; pair < 4; ++pair, codes += 64, packed += 32) {
    for (int j = 0; j < 32; ++j) packed[j] = low8((codes[j] & 15) | (codes[j + 32] & 15) << 4);
  }
}

// Packs bit `bit` of 256 codes into the eight planes of 32 bytes.
static inline void pack_planes(const uint8_t* codes, int bit, uint8_t* planes) {
  for (int j = 0; j < 32; ++j) {
    int byte = 0;
    for (int plane = 0; plane < 8; ++plane) byte |= (codes[32 * plane + j] >> bit & 1) << plane;
    planes[j] = low8(byte);
  }
}

}  // namespace weft::WEFT_TARGET
