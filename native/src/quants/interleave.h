// The interleaved layout of weight matrices: panels of 32 rows whose words are adjacent, so that a
// vector register loads the same word of many rows at once.
//
// A panel stores its rows block by block, and a block field by field. A field is a run of words of
// 1, 2 or 4 bytes. Each word is stored for row 0, row 1, ... row 31 of the panel. For q4_0, whose
// block is a 2-byte scale d and 16 bytes of codes, i.e. four words:
//
//     byte   0  block 0   d of rows 0..31
//     byte  64            qs[0..3] of rows 0..31
//     byte 192            qs[4..7] of rows 0..31
//     byte 320            qs[8..11] of rows 0..31
//     byte 448            qs[12..15] of rows 0..31
//     byte 576  block 1   d of rows 0..31, ...
//
// Codes of q3_K, q5_K and q6_K lie in other bits of their words than in the file (whole_codes.h).
//
// The matrix has as many bytes as in rows; panel p begins where row 32 * p would. Rows behind the
// last whole panel stay rows (has_panels).
#pragma once

#include <cstdint>

#include "weft/types.h"

namespace weft {

inline constexpr int64_t kPanelRows = 32;
inline constexpr int kMaxFields = 6;

struct WordField {
  int16_t offset;  // bytes from the start of the block
  int16_t width;   // bytes per word: 1, 2 or 4
  int16_t count;   // words in the field
};

// The fields of a block, in the order in which a panel stores them.
struct InterleavedFormat {
  int32_t block = 0;       // elements; 2 for the 16-bit floats, whose words are pairs
  int32_t block_size = 0;  // bytes of the block of one row
  int32_t n_fields = 0;
  WordField fields[kMaxFields] = {};
  // Copy a block of a row to one whose words the panel has, and back; nullptr where they are the
  // same.
  void (*to_panel)(const char* from, char* to) = nullptr;
  void (*to_row)(const char* from, char* to) = nullptr;
};

// The fields of `type`; nullptr when it has no interleaved layout.
const InterleavedFormat* interleaved_format(DType type);

// Whether a matrix of `rows` rows of `type`, which has the layout, can have it.
inline bool has_panels(DType type, int64_t rows) {
  return rows % kPanelRows == 0 || (type != DType::kI2_S && rows > kPanelRows);
}

inline bool can_interleave(DType type) { return interleaved_format(type) != nullptr; }

// Copies the panels first_panel..first_panel+n_panels of a matrix of rows, `row_stride` bytes
// apart, to an interleaved matrix. `src` and `dst` are the starts of the whole matrices and may not
// overlap. `row_elements`, the length of a row, is a multiple of the format's block, and `type` has
// the layout.
void interleave_panels(DType type, const void* src, int64_t row_stride, int64_t row_elements,
                       int64_t first_panel, int64_t n_panels, void* dst);

// Copies row `row` of the interleaved matrix of `n_rows` rows at `src` to `dst`.
void deinterleave_row(DType type, const void* src, int64_t row_elements, int64_t n_rows,
                      int64_t row, void* dst);

// Copies 32 rows of `n_blocks` blocks, `row_stride` bytes apart, to one panel.
void interleave_rows(const InterleavedFormat& format, const char* rows, int64_t row_stride,
                     int64_t n_blocks, char* panel);

// The inverse: copies panels of the interleaved matrix at `src` to the rows of the matrix at `dst`.
void deinterleave_panels(DType type, const void* src, int64_t row_elements, int64_t first_panel,
                         int64_t n_panels, void* dst, int64_t row_stride);

}  // namespace weft
