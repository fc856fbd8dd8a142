// Rows of attention masks, computed from a table of cache cells.
#pragma once

#include <cstdint>

namespace weft {

// For each of `n` cells: out[c] = 0 where members[c] and above < pos[c] <= last, otherwise -inf;
// both are f16.
void fill_mask_row(const int32_t* pos, const bool* members, int64_t n, int64_t above, int64_t last,
                   uint16_t* out);

}  // namespace weft
