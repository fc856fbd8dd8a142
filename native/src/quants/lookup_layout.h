// The lookup layout of ternary weights: panels of 32 rows that hold indices into tables of partial
// sums.
//
// Three weights a, b, c of a row, each -1, 0 or +1, make one of 27 values v = 9a + 3b + c. It is
// stored as an index of five bits: |v|, plus 16 where v is negative. The table for these three
// elements of an activation column holds the partial sum of each |v|, so that one shuffle looks up
// the sums of 32 rows. A chunk of 32 elements has eleven indices, the last for two elements. A unit
// of two chunks has 22 indices in seven 16-bit words (1.75 bits per weight):
//
//             bits 0-4     bits 5-9     bits 10-14    bit 15
//     word 0  index 0      index 1      index 2       bit 0 of index 21
//     word 1  index 3      index 4      index 5       bit 1 of index 21
//     ...
//     word 6  index 18     index 19     index 20      unused in words 5 and 6
//
// A panel stores its 32 rows block by block: the scales of the rows (16 bits each; i2_s has none),
// then each word of the block for row 0 to row 31. Panel p begins at p times the size of a panel.
// The scale of i2_s, behind the last row of the tensor, stays where it was.
//
// The groups of three and the sign bit are those of TL2 in microsoft/BitNet; the packing is ours.
#pragma once

#include <cstdint>

#include "weft/types.h"

namespace weft {

inline constexpr int64_t kLookupUnit = 64;  // elements per unit
inline constexpr int kUnitWords = 7;        // 16-bit words per unit
inline constexpr int kChunkLookups = 11;    // indices per chunk of 32 elements
inline constexpr int kLookupEntries = 32;   // entries per table
inline constexpr int kLookupNegative = 16;  // the bit of an index for negative values

// The elements per block of `type`; rows have a multiple of it. 0 when the type has no lookup
// layout.
int64_t lookup_block(DType type);

// The bytes per row; a panel has 32 times as many.
int64_t lookup_row_bytes(DType type, int64_t row_elements);

// Whether all weights of the `n_blocks` blocks at `src` are -1, 0 or +1 times the scale. tq2_0 can
// also store +2.
bool is_ternary(DType type, const void* src, int64_t n_blocks);

// Converts the panels first_panel..first_panel+n_panels of a matrix of rows, `row_stride` bytes
// apart, to the lookup layout. `src` and `dst` are the starts of the whole matrices.
// `row_elements`, the length of a row, is a multiple of the block. Weights that are not ternary
// become ternary.
void make_lookup_panels(DType type, const void* src, int64_t row_stride, int64_t row_elements,
                        int64_t first_panel, int64_t n_panels, void* dst);

}  // namespace weft
