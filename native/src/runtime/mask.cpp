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
                   uint16_t* __restrict out) {
  const int32_t low = narrowed(above), high = narrowed(last);
  const auto* own = reinterpret_cast<const uint8_t*>(members);
  // There are no branches, so that compilers use vectors.
  for (int64_t c = 0; c < n; ++c) {
    const int32_t seen = -static_cast<int32_t>(own[c]) & -(pos[c] > low) & -(pos[c] <= high);
    out[c] = static_cast<uint16_t>(~seen & kMinusInf);
  }
}

}  // namespace weft
