// Sums and maxima of rows of floats.
#pragma once

#include "kernels/elements.h"

namespace weft::WEFT_TARGET {

// The sum of f(x[i]) for i < n; f(fill) must be 0. The elements of a piece of kPiece are added in
// float, in the lanes of four vectors, and the sums of pieces in double.
template <typename F>
static inline double sum_of(const float* x, int64_t n, const F& f, float fill = 0.0f) {
  double total = 0;
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t last = min64(first + kPiece, n);
    vf s0{}, s1{}, s2{}, s3{};
    int64_t i = first;
    for (; i + 4 * kLanes <= last; i += 4 * kLanes) {
      s0 += f(load(x + i));
      s1 += f(load(x + i + kLanes));
      s2 += f(load(x + i + 2 * kLanes));
      s3 += f(load(x + i + 3 * kLanes));
    }
    for (; i + kLanes <= last; i += kLanes) s0 += f(load(x + i));
    if (i < last) s1 += f(load_part(x + i, last - i, fill));
    total += static_cast<double>(hsum((s0 + s1) + (s2 + s3)));
  }
  return total;
}

static inline double sum(const float* x, int64_t n) {
  return sum_of(x, n, [](vf v) { return v; });
}

static inline double sum_squares(const float* x, int64_t n) {
  return sum_of(x, n, [](vf v) { return v * v; });
}

// The sum of (x[i] - mean)^2.
static inline double sum_squares_about(const float* x, int64_t n, float mean) {
  const vf m = splat(mean);
  return sum_of(x, n, [m](vf v) { return (v - m) * (v - m); }, mean);
}

// The largest of x[0..n-1] and `least`.
static inline float max_of(const float* x, int64_t n, float least) {
  vf top = splat(least);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) top = vmax(load(x + i), top);
  float out = hmax(top);
  for (; i < n; ++i) out = x[i] > out ? x[i] : out;
  return out;
}

static inline void multiply(const float* x, float factor, float* out, int64_t n) {
  const vf f = splat(factor);
  map(x, out, n, [f](vf v) { return v * f; });
}

}  // namespace weft::WEFT_TARGET
