// Codes of elements of one block, beside each other in memory.
#pragma once

#include "kernels/encode/lanes.h"

namespace weft::WEFT_TARGET {

typedef uint8_t vbytes __attribute__((vector_size(kLanes)));

// The nearest integers to `value(x)` of n elements, limited to low..high, less `low`.
template <int n, typename Value>
static inline void store_codes(const float* x, int low, int high, uint8_t* codes,
                               const Value& value) {
  static_assert(n % kLanes == 0);
  for (int i = 0; i < n; i += kLanes) {
    const vi code = clamp(nearest_int(value(load(x + i))), low, high) - low;
    const vbytes bytes = __builtin_convertvector(code, vbytes);
    std::memcpy(codes + i, &bytes, sizeof bytes);
  }
}

// (x + offset) / scale.
template <int n>
void divide_codes(const float* x, float scale, float offset, int low, int high, uint8_t* codes) {
  store_codes<n>(x, low, high, codes, [=](vf v) { return (v + splat(offset)) / splat(scale); });
}

// inverse * (x - from).
template <int n>
void multiply_codes(const float* x, float inverse, float from, int low, int high, uint8_t* codes) {
  store_codes<n>(x, low, high, codes, [=](vf v) { return splat(inverse) * (v - splat(from)); });
}

}  // namespace weft::WEFT_TARGET
