// Tiles (AMX): eight registers of up to 16 rows of 64 bytes, and products of two that are added to
// a third.
//
// A product has a row for each row of its first factor and a word of four bytes for each word of
// the second factor's rows. Row m of the first factor has words of the depth (four bytes, or two
// bf16); row k of the second has that word of each of its columns. So panels of weights are second
// factors as they are, with a column for each of 16 rows, and columns of activations are rows of
// first factors.
//
// No machine without tiles can run these instructions. With WEFT_TILES_BY_DEFINITION tiles are
// memory, and products are computed as Intel's manual defines them: kernels over tiles are tested
// that way on any processor with AVX-512.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/simd/isa.h"

#if defined(WEFT_TILES_BY_DEFINITION) || \
    (defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__))
#define WEFT_TILES 1
#endif

namespace weft::WEFT_TARGET {

#if defined(WEFT_TILES)
inline constexpr bool kTiles = true;
#else
inline constexpr bool kTiles = false;
#endif

inline constexpr int kTileRegisters = 8;
inline constexpr int kMostTileRows = 16;
inline constexpr int kTileRowBytes = 64;

// The shapes of all tiles, as the processor reads them. A tile without rows is not used.
struct alignas(64) TileShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int rows_of, int bytes) {
    rows[tile] = static_cast<uint8_t>(rows_of);
    row_bytes[tile] = static_cast<uint16_t>(bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);

#if !defined(WEFT_TILES)

class TileUse {};

#elif defined(WEFT_TILES_BY_DEFINITION)

// The state of a thread. What a processor would refuse ends the program.
struct DefinedTiles {
  TileShapes shapes;
  bool used = false;
  alignas(64) uint8_t data[kTileRegisters][kMostTileRows][kTileRowBytes];

  void check(bool condition) const {
    if (!used || !condition) __builtin_trap();
  }
};
inline DefinedTiles& defined_tiles() {
  static thread_local DefinedTiles tiles;
  return tiles;
}

static inline void set_tile_shapes(const TileShapes& shapes) {
  DefinedTiles& t = defined_tiles();
  t.shapes = shapes;
  t.used = true;
  for (int i = 0; i < 16; ++i) {
    t.check(shapes.rows[i] <= kMostTileRows && shapes.row_bytes[i] <= kTileRowBytes);
    t.check(i < kTileRegisters || shapes.rows[i] == 0);
    t.check((shapes.rows[i] == 0) == (shapes.row_bytes[i] == 0));
  }
  std::memset(t.data, 0, sizeof t.data);
}
static inline void release_tiles() { defined_tiles().used = false; }

template <int kTile>
static inline void zero_tile() {
  DefinedTiles& t = defined_tiles();
  t.check(t.shapes.rows[kTile] > 0);
  std::memset(t.data[kTile], 0, sizeof t.data[kTile]);
}
template <int kTile>
static inline void load_tile(const void* from, int64_t stride) {
  zero_tile<kTile>();
  DefinedTiles& t = defined_tiles();
  for (int r = 0; r < t.shapes.rows[kTile]; ++r) {
    std::memcpy(t.data[kTile][r], static_cast<const char*>(from) + r * stride,
                t.shapes.row_bytes[kTile]);
  }
}
template <int kTile>
static inline void store_tile(void* to, int64_t stride) {
  DefinedTiles& t = defined_tiles();
  t.check(t.shapes.rows[kTile] > 0);
  for (int r = 0; r < t.shapes.rows[kTile]; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, t.data[kTile][r], t.shapes.row_bytes[kTile]);
  }
}

// Whether the shapes fit, and those of a product: m rows of k words times k rows of n words.
struct ProductShape {
  int m, n, k;

  ProductShape(const DefinedTiles& t, int sum, int first, int second)
      : m(t.shapes.rows[sum]), n(t.shapes.row_bytes[sum] / 4), k(t.shapes.row_bytes[first] / 4) {
    const TileShapes& s = t.shapes;
    t.check(sum != first && sum != second && first != second);
    t.check(m > 0 && m == s.rows[first] && n == s.row_bytes[second] / 4 && k == s.rows[second]);
    t.check(s.row_bytes[sum] % 4 == 0 && s.row_bytes[first] % 4 == 0);
  }
};

// TDPBSUD: signed bytes times unsigned ones, in sums of 32 bits.
template <int kSum, int kFirst, int kSecond>
static inline void add_byte_tiles() {
  DefinedTiles& t = defined_tiles();
  const ProductShape shape(t, kSum, kFirst, kSecond);
  for (int m = 0; m < shape.m; ++m) {
    int32_t sums[kTileRowBytes / 4];
    std::memcpy(sums, t.data[kSum][m], sizeof sums);
    for (int k = 0; k < shape.k; ++k) {
      for (int n = 0; n < shape.n; ++n) {
        for (int i = 0; i < 4; ++i) {
          const int a = static_cast<int8_t>(t.data[kFirst][m][4 * k + i]);
          sums[n] += a * t.data[kSecond][k][4 * n + i];
        }
      }
    }
    std::memcpy(t.data[kSum][m], sums, sizeof sums);
  }
}

// A subnormal number counts as zero.
static inline float without_subnormal(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return (bits & 0x7f800000u) == 0 ? 0.0f : x;
}
static inline float bf16_of(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  const uint32_t bits = uint32_t{half} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return without_subnormal(x);
}

// TDPBF16PS: the products of even and of odd elements are added up by themselves, each fused; their
// sum is added to what was there.
template <int kSum, int kFirst, int kSecond>
static inline void add_bf16_tiles() {
  DefinedTiles& t = defined_tiles();
  const ProductShape shape(t, kSum, kFirst, kSecond);
  for (int m = 0; m < shape.m; ++m) {
    float sums[kTileRowBytes / 4];
    std::memcpy(sums, t.data[kSum][m], sizeof sums);
    float part[2][kTileRowBytes / 4] = {};
    for (int k = 0; k < shape.k; ++k) {
      for (int i = 0; i < 2; ++i) {
        const float a = bf16_of(t.data[kFirst][m] + 4 * k + 2 * i);
        for (int n = 0; n < shape.n; ++n) {
          const float b = bf16_of(t.data[kSecond][k] + 4 * n + 2 * i);
          part[i][n] = without_subnormal(__builtin_fmaf(a, b, part[i][n]));
        }
      }
    }
    for (int n = 0; n < shape.n; ++n) {
      const float both = without_subnormal(part[0][n] + part[1][n]);
      sums[n] = without_subnormal(without_subnormal(sums[n]) + both);
    }
    std::memcpy(t.data[kSum][m], sums, sizeof sums);
  }
}

#else

// The compilers' own functions take the number of a tile as text, so that no template can use them.
static inline void set_tile_shapes(const TileShapes& shapes) {
  __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}
static inline void release_tiles() { __asm__ volatile("tilerelease"); }

template <int kTile>
static inline void zero_tile() {
  __asm__ volatile("tilezero %%tmm%c0" : : "n"(kTile));
}
template <int kTile>
static inline void load_tile(const void* from, int64_t stride) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2"
                   :
                   : "r"(from), "r"(stride), "n"(kTile)
                   : "memory");
}
template <int kTile>
static inline void store_tile(void* to, int64_t stride) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)"
                   :
                   : "r"(to), "r"(stride), "n"(kTile)
                   : "memory");
}

// kSum += kFirst, of signed bytes, times kSecond, of unsigned ones.
template <int kSum, int kFirst, int kSecond>
static inline void add_byte_tiles() {
  __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(kSum), "n"(kFirst), "n"(kSecond));
}
// The same of bf16, in sums of f32.
template <int kSum, int kFirst, int kSecond>
static inline void add_bf16_tiles() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"
                   :
                   : "n"(kSum), "n"(kFirst), "n"(kSecond));
}

#endif

#if defined(WEFT_TILES)

// The tiles of a thread while a product uses them. Given back, they need not be saved when the
// system lets another thread run.
class TileUse {
 public:
  TileUse() = default;
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;
  ~TileUse() {
    if (shape_ != 0) release_tiles();
  }

  // Sums are tiles 0 to 3, columns 4 and 5, panels 6 and 7: of bytes, for so many columns and words
  // of depth. All tiles are zeros after a change.
  void shape_bytes(int columns, int words) {
    if (!changes(columns, words)) return;
    TileShapes shapes;
    for (int tile = 0; tile < 4; ++tile) shapes.set(tile, columns, kTileRowBytes);
    for (int tile = 4; tile < 6; ++tile) shapes.set(tile, columns, 4 * words);
    for (int tile = 6; tile < 8; ++tile) shapes.set(tile, words, kTileRowBytes);
    set_tile_shapes(shapes);
  }

  // Sums are tiles 0 and 1, 16 words of columns and panels tiles 2 to 4, and the last `rest` words,
  // if there are any, tiles 5 to 7.
  void shape_pairs(int columns, int rest) {
    if (!changes(columns, kMostTileRows + 1 + rest)) return;
    TileShapes shapes;
    for (int tile = 0; tile < 3; ++tile) shapes.set(tile, columns, kTileRowBytes);
    for (int tile = 3; tile < 5; ++tile) shapes.set(tile, kMostTileRows, kTileRowBytes);
    if (rest > 0) {
      shapes.set(5, columns, 4 * rest);
      for (int tile = 6; tile < 8; ++tile) shapes.set(tile, rest, kTileRowBytes);
    }
    set_tile_shapes(shapes);
  }

 private:
  bool changes(int columns, int kind) {
    const int shape = columns << 8 | kind;
    if (shape == shape_) return false;
    shape_ = shape;
    return true;
  }

  int shape_ = 0;
};

#endif

}  // namespace weft::WEFT_TARGET
