// The interleaved layout of weight matrices: panels of 32 rows whose words stand side by side.
//
// A panel holds 32 rows, block by block along the row. Within a block, field by field; a field is a
// run of words of 1, 2 or 4 bytes; each word is stored for the 32 rows after each other. So a
// vector register loads the same word of many rows at once. A matrix has as many bytes as before,
// and panel p starts where row 32*p started; its number of rows is a multiple of 32.
#pragma once

#include <cstdint>

#include "weft/types.h"

namespace weft {

inline constexpr int64_t kPanelRows = 32;
inline constexpr int kMaxFields = 6;

struct WordField {
  int16_t offset;  // bytes into the block
  int16_t width;   // bytes of a word: 1, 2 or 4
  int16_t count;   // words
};

// How one block is taken apart; the fields in the order in which a panel stores them, widths 2, 1,
// 4 one after the other.
struct InterleavedFormat {
  int32_t block = 0;       // elements; 2 for the 16-bit floats, whose words are pairs
  int32_t block_size = 0;  // bytes of one row's block; 32 times that in a panel
  int32_t n_fields = 0;
  WordField fields[kMaxFields] = {};
};

// The fields of `type`; nullptr when it has no interleaved layout.
const InterleavedFormat* interleaved_format(DType type);

inline bool can_interleave(DType type) { return interleaved_format(type) != nullptr; }

// Panels first_panel..first_panel+n_panels of a matrix, from rows `row_stride` bytes apart at `src`
// to the interleaved matrix at `dst`. Both are the starts of the matrix. `row_elements` is a
// multiple of the format's block, and the type has the layout. They may not overlap.
void interleave_panels(DType type, const void* src, int64_t row_stride, int64_t row_elements,
                       int64_t first_panel, int64_t n_panels, void* dst);

// The inverse: from the interleaved matrix at `src` to rows at `dst`.
void deinterleave_panels(DType type, const void* src, int64_t row_elements, int64_t first_panel,
                         int64_t n_panels, void* dst, int64_t row_stride);

}  // namespace weft
