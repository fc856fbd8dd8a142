// Codes of three, five and six bits as interleaved panels have them.
//
// A file stores such codes in two planes: some bits of each in one byte, the others in another. To
// join them takes a shift, a mask and an or for each word of a panel, which is half of what one
// column costs. Panels have most codes whole, and only what is left over in the other bits of their
// bytes: the same bits in other places. With code c of the codes that share bytes (element 32 * c +
// j of a block or, q6_K, of half a block, for byte j of 32), from the lowest bit on:
//
//   q3_K    byte 0   code 0, code 1, low 2 bits of code 6
//           byte 1   code 2, code 3, low 2 bits of code 7
//           byte 2   code 4, code 5, top bit of code 6, top bit of code 7
//   q5_K    byte 0   code 0, low 3 bits of code 5
//           byte 1   code 1, low 3 bits of code 6
//           byte 2   code 2, low 3 bits of code 7
//           byte 3   code 3, top 2 bits of code 5, bit 3 of code 6
//           byte 4   code 4, top 2 bits of code 7, bit 4 of code 6
//   q6_K    byte 0   code 0, bits 0 and 1 of code 3
//           byte 1   code 1, bits 2 and 3 of code 3
//           byte 2   code 2, bits 4 and 5 of code 3
//
// Bytes with the same number follow each other, 32 of them, where the block of the file has its
// planes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "quants/blocks.h"

namespace weft {

// The plane bytes at `p` hold codes as files do; the bytes at `w`, 32 apart, as panels.

struct WholeQ3_K {
  using Block = BlockQ3_K;
  static constexpr size_t kCodes = 8, kBytes = 3, kRuns = 1;
  static constexpr size_t kAt = offsetof(BlockQ3_K, hmask);
  static void read_planes(const uint8_t* p, size_t, uint8_t* c) {
    for (size_t i = 0; i < 8; ++i) {
      const int low = p[32 + i / 4 * 32] >> i % 4 * 2 & 3;
      c[i] = static_cast<uint8_t>(low | (p[0] >> i & 1) << 2);
    }
  }
  static void write_planes(const uint8_t* c, size_t, uint8_t* p) {
    int high = 0, low[2] = {};
    for (size_t i = 0; i < 8; ++i) {
      high |= c[i] >> 2 << i;
      low[i / 4] |= (c[i] & 3) << i % 4 * 2;
    }
    p[0] = static_cast<uint8_t>(high);
    for (size_t i = 0; i < 2; ++i) p[32 + i * 32] = static_cast<uint8_t>(low[i]);
  }
  static void read_whole(const uint8_t* w, uint8_t* c) {
    for (size_t i = 0; i < 6; ++i) c[i] = w[i / 2 * 32] >> i % 2 * 3 & 7;
    c[6] = static_cast<uint8_t>(w[0] >> 6 | (w[64] >> 4 & 4));
    c[7] = static_cast<uint8_t>(w[32] >> 6 | (w[64] >> 5 & 4));
  }
  static void write_whole(const uint8_t* c, uint8_t* w) {
    w[0] = static_cast<uint8_t>(c[0] | c[1] << 3 | c[6] << 6);
    w[32] = static_cast<uint8_t>(c[2] | c[3] << 3 | c[7] << 6);
    w[64] = static_cast<uint8_t>(c[4] | c[5] << 3 | c[6] >> 2 << 6 | c[7] >> 2 << 7);
  }
};

struct WholeQ5_K {
  using Block = BlockQ5_K;
  static constexpr size_t kCodes = 8, kBytes = 5, kRuns = 1;
  static constexpr size_t kAt = offsetof(BlockQ5_K, qh);
  static void read_planes(const uint8_t* p, size_t, uint8_t* c) {
    for (size_t i = 0; i < 8; ++i) {
      const int low = p[32 + i / 2 * 32] >> i % 2 * 4 & 15;
      c[i] = static_cast<uint8_t>(low | (p[0] >> i & 1) << 4);
    }
  }
  static void write_planes(const uint8_t* c, size_t, uint8_t* p) {
    int high = 0, low[4] = {};
    for (size_t i = 0; i < 8; ++i) {
      high |= c[i] >> 4 << i;
      low[i / 2] |= (c[i] & 15) << i % 2 * 4;
    }
    p[0] = static_cast<uint8_t>(high);
    for (size_t i = 0; i < 4; ++i) p[32 + i * 32] = static_cast<uint8_t>(low[i]);
  }
  static void read_whole(const uint8_t* w, uint8_t* c) {
    for (size_t i = 0; i < 5; ++i) c[i] = w[32 * i] & 31;
    c[5] = static_cast<uint8_t>(w[0] >> 5 | (w[96] >> 2 & 24));
    c[6] = static_cast<uint8_t>(w[32] >> 5 | (w[96] >> 4 & 8) | (w[128] >> 3 & 16));
    c[7] = static_cast<uint8_t>(w[64] >> 5 | (w[128] >> 2 & 24));
  }
  static void write_whole(const uint8_t* c, uint8_t* w) {
    for (size_t i = 0; i < 3; ++i) w[32 * i] = static_cast<uint8_t>(c[i] | c[i + 5] << 5);
    w[96] = static_cast<uint8_t>(c[3] | c[5] >> 3 << 5 | (c[6] >> 3 & 1) << 7);
    w[128] = static_cast<uint8_t>(c[4] | c[7] >> 3 << 5 | c[6] >> 4 << 7);
  }
};

struct WholeQ6_K {
  using Block = BlockQ6_K;
  static constexpr size_t kCodes = 4, kBytes = 3, kRuns = 2;
  static constexpr size_t kAt = offsetof(BlockQ6_K, ql);
  static void read_planes(const uint8_t* p, size_t run, uint8_t* c) {
    for (size_t i = 0; i < 4; ++i) {
      const int low = p[run * 64 + i % 2 * 32] >> i / 2 * 4 & 15;
      c[i] = static_cast<uint8_t>(low | (p[128 + run * 32] >> 2 * i & 3) << 4);
    }
  }
  static void write_planes(const uint8_t* c, size_t run, uint8_t* p) {
    for (size_t i = 0; i < 2; ++i) {
      p[run * 64 + i * 32] = static_cast<uint8_t>((c[i] & 15) | c[i + 2] << 4);
    }
    p[128 + run * 32] =
        static_cast<uint8_t>(c[0] >> 4 | c[1] >> 4 << 2 | c[2] >> 4 << 4 | c[3] >> 4 << 6);
  }
  static void read_whole(const uint8_t* w, uint8_t* c) {
    for (size_t i = 0; i < 3; ++i) c[i] = w[32 * i] & 63;
    c[3] = static_cast<uint8_t>(w[0] >> 6 | (w[32] >> 4 & 12) | (w[64] >> 2 & 48));
  }
  static void write_whole(const uint8_t* c, uint8_t* w) {
    for (size_t i = 0; i < 3; ++i) w[32 * i] = static_cast<uint8_t>(c[i] | c[3] >> 2 * i << 6);
  }
};

static_assert(offsetof(BlockQ3_K, qs) == 32 && offsetof(BlockQ6_K, qh) == 128);
static_assert(offsetof(BlockQ5_K, qs) == offsetof(BlockQ5_K, qh) + 32);

// Copies a block, with codes as panels have them instead of the file's planes.
template <class F>
void make_whole(const char* from, char* to) {
  std::memcpy(to, from, sizeof(typename F::Block));
  const auto* planes = reinterpret_cast<const uint8_t*>(from) + F::kAt;
  auto* whole = reinterpret_cast<uint8_t*>(to) + F::kAt;
  for (size_t run = 0; run < F::kRuns; ++run) {
    for (size_t j = 0; j < 32; ++j) {
      uint8_t codes[F::kCodes];
      F::read_planes(planes + j, run, codes);
      F::write_whole(codes, whole + run * F::kBytes * 32 + j);
    }
  }
}

// The inverse.
template <class F>
void make_planes(const char* from, char* to) {
  std::memcpy(to, from, sizeof(typename F::Block));
  const auto* whole = reinterpret_cast<const uint8_t*>(from) + F::kAt;
  auto* planes = reinterpret_cast<uint8_t*>(to) + F::kAt;
  for (size_t run = 0; run < F::kRuns; ++run) {
    for (size_t j = 0; j < 32; ++j) {
      uint8_t codes[F::kCodes];
      F::read_whole(whole + run * F::kBytes * 32 + j, codes);
      F::write_planes(codes, run, planes + j);
    }
  }
}

}  // namespace weft
