// The lookup layout of ternary weights: what a table is asked for, in panels of 32 rows.
//
// Three weights -1 0 +1 of a row are one of 27 values v = 9a + 3b + c, kept in five bits: |v|, and
// 16 where v is negative. So a table of one activation column that is built for those three
// elements has an entry for each, and one shuffle finds it for 32 rows. A chunk of 32 elements is
// eleven such indices (the last one is of two elements). A unit is two chunks, 22 indices in seven
// 16-bit words: index 3*w + s of word w from bit 5*s on, and the last one in the top bits of the
// first five words. That is 1.75 bits a weight.
//
// A panel holds 32 rows, block by block along the row: the rows' scales (16 bits each; none for
// i2_s), then word by word the 32 rows after each other. Panel p starts at p times its size. What
// a tensor keeps behind its last row (the scale of i2_s) stays where it was.
//
// The groups of three and the sign bit are those of TL2 in microsoft/BitNet; the packing is ours.
#pragma once

#include <cstdint>

#include "weft/types.h"

namespace weft {

inline constexpr int64_t kLookupUnit = 64;  // elements
inline constexpr int kUnitWords = 7;        // of 16 bits
inline constexpr int kChunkLookups = 11;    // of 32 elements
inline constexpr int kLookupEntries = 32;   // of a table
inline constexpr int kLookupNegative = 16;  // in an index

// Elements of a block of `type`, which rows are multiples of; 0: the type has no lookup layout.
int64_t lookup_block(DType type);

// Bytes of a row: 32 times that is a panel.
int64_t lookup_row_bytes(DType type, int64_t row_elements);

// Whether the weights at `src`, whole blocks, are all ternary: a code of tq2_0 may be 2.
bool is_ternary(DType type, const void* src, int64_t n_blocks);

// Panels first_panel..first_panel+n_panels of a matrix, from rows `row_stride` bytes apart at `src`
// to the matrix of indices at `dst`. Both are the starts of the matrix. `row_elements` is a
// multiple of the block. Codes that are not ternary become some that are.
void make_lookup_panels(DType type, const void* src, int64_t row_stride, int64_t row_elements,
                        int64_t first_panel, int64_t n_panels, void* dst);

}  // namespace weft
