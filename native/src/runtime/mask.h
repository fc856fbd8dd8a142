// Rows of attention masks, from a table of cells.
#pragma once

#include <cstdint>

namespace weft {

// out[c] = 0 (as f16) where members[c] and above < pos[c] <= last, else -inf; all of `n` cells.
void fill_mask_row(const int32_t* pos, const bool* members, int64_t n, int64_t above, int64_t last,
                   uint16_t* out);

}  // namespace weft
