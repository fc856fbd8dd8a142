// The levels layout of codebook weights (iq1, iq2, iq3): panels of 32 rows whose codes name the
// level of one weight each, instead of a vector of a book.
//
// A book is a table that has to be read once for four or eight weights; a level is looked up by one
// shuffle for 32 rows. So a token takes a third of the time, and weights take 1.2 to 1.5 times the
// memory: 4.19 bits for iq3, 3.19 to 3.31 for iq2, 2.19 and 2.44 for iq1_s and iq1_m.
//
// A panel stores its rows block by block, as interleave.h says, of the blocks below instead of
// the blocks of the file. Panel p begins at p times the size of a panel.
#pragma once

#include <cstdint>

#include "weft/types.h"

namespace weft {

// A block has 256 weights. A group of 16 or 32 has a 4-bit step; four bytes have the steps of eight
// groups, the first in the lowest bits.

template <int kSteps>
struct BlockOctals {  // 3 bits: two name a level (qs as in q2_K), the third is the sign (as hmask)
  uint16_t d;
  uint8_t steps[kSteps / 2];
  uint8_t qs[64];
  uint8_t signs[32];
};

struct BlockNibbles {  // 4 bits: three name a level, the fourth is the sign; of 32, first the low
  uint16_t d;          // halves, then the high ones
  uint8_t steps[4];
  uint8_t qs[128];
};

struct BlockTrits {  // iq1_s, 2 bits: level + 1, as in tq2_0. The top bit of a step is its shift
  uint16_t d;
  uint8_t steps[4];
  uint8_t qs[64];
};

struct BlockShiftedTrits {  // iq1_m: the shifts are those of 8 weights, a bit each
  uint16_t d;
  uint8_t steps[8];
  uint8_t shifts[4];
  uint8_t qs[64];
};

static_assert(sizeof(BlockOctals<8>) == 102 && sizeof(BlockOctals<16>) == 106);
static_assert(sizeof(BlockNibbles) == 134 && sizeof(BlockTrits) == 70);
static_assert(sizeof(BlockShiftedTrits) == 78);

// The elements per block of `type`; rows have a multiple of it. 0 when the type has no levels
// layout.
int64_t level_block(DType type);

// The bytes per row; a panel has 32 times as many.
int64_t level_row_bytes(DType type, int64_t row_elements);

// Converts the panels first_panel..first_panel+n_panels of a matrix of rows, `row_stride` bytes
// apart, to the levels layout. `src` and `dst` are the starts of the whole matrices.
// `row_elements`, the length of a row, is a multiple of the block.
void make_level_panels(DType type, const void* src, int64_t row_stride, int64_t row_elements,
                       int64_t first_panel, int64_t n_panels, void* dst);

}  // namespace weft
