// ALiBi (arXiv 2108.12409): the factor that each head multiplies the mask by.
#pragma once

#include <math.h>

#include "kernels/kernel.h"

namespace weft::WEFT_TARGET {

// Let n be the largest power of two that is not above n_head, and m = 2^(-max_bias / n). The first
// n heads have the slopes m^1 .. m^n, the others the odd powers of sqrt(m). Every slope is 1 when
// `max_bias` is 0.
static inline float alibi_slope(int64_t head, int64_t n_head, float max_bias) {
  if (max_bias == 0.0f) return 1.0f;
  int64_t n = 1;
  while (2 * n <= n_head) n *= 2;
  const double step = -static_cast<double>(max_bias) / static_cast<double>(n);
  const double power = head < n ? step * static_cast<double>(head + 1)
                                : step / 2 * static_cast<double>(2 * (head - n) + 1);
  return static_cast<float>(::exp2(power));
}

}  // namespace weft::WEFT_TARGET
