#include "runtime/mask.h"

#include <algorithm>

namespace weft {

namespace {

constexpr uint16_t kMinusInf = 0xFC00;

int32_t narrowed(int64_t v) {
  return static_cast<int32_t>(std::clamp<int64_t>(v, INT32_MIN, INT32_MAX));
}

}  // namespace

void fill_mask_row(const int32_t* pos, const bool* members, int64_t n, int64_t above, int64_t last,
                   uint16_t* out) {
  const int32_t low = narrowed(above), high = narrowed(last);
  for (int64_t c = 0; c < n; ++c) {
    const bool seen = members[c] & (pos[c] > low) & (pos[c] <= high);
    out[c] = seen ? uint16_t{0} : kMinusInf;
  }
}

}  // namespace weft
