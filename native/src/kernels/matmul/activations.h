// The activation functions of UNARY and GLU, on float vectors.
#pragma once

#include "kernels/simd/math.h"

namespace weft::WEFT_TARGET {

// A NaN gives 0, here and in hard_sigmoid, as in ggml.
static inline vf relu(vf x) { return x > 0.0f ? x : vf{}; }
// To low..high; a NaN stays one.
static inline vf limit(vf x, vf low, vf high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

static inline vf silu(vf x) { return x / one_and_exp_of_minus(x); }

// The tanh form of GELU with its ends cut off. 0.5 (1 + tanh(u)) is sigmoid(2u), which does not
// cancel on the negative side.
static inline vf gelu(vf x) {
  constexpr float kTwiceRoot = 1.59576912f;  // 2 sqrt(2/pi)
  const vf u = kTwiceRoot * x * fma(0.044715f * x, x, splat(1.0f));
  const vf y = x * sigmoid(u);
  const vf cut = x <= -10.0f ? vf{} : y;
  return x >= 10.0f ? x : cut;
}

static inline vf gelu_quick(vf x) { return x * sigmoid(1.702f * x); }

// x Phi(x). Phi(-|x|), the normal distribution's lower tail, is 2^p for a polynomial p of |x|, so
// that one form serves every x and nothing cancels on the negative side.
static inline vf gelu_erf(vf x) {
  constexpr float c[] = {-1.0f,
                         -1.151105195e+00f,
                         -4.592116414e-01f,
                         -5.246858089e-02f,
                         6.984035914e-03f,
                         -2.637921195e-05f,
                         -2.693770619e-04f,
                         7.428189119e-05f,
                         -1.074626147e-05f,
                         8.532536955e-07f,
                         -2.922561038e-08f};
  // 2^r for |r| <= 1/2
  constexpr float d[] = {1.0f,
                         6.931472029e-01f,
                         2.402264791e-01f,
                         5.550332470e-02f,
                         9.618437363e-03f,
                         1.339887466e-03f,
                         1.535336118e-04f};
  // beyond 14 and below 2^-127, whose bits are those of 0, the tail is 0; up to 1e-15 it is 1/2,
  // without squares that are subnormal
  const vf size = vmin(splat(14.0f), larger(splat(1e-15f), x));
  const vf p = vmax(splat(-127.0f), polynomial_by_pairs(size, c));
  const vf rounded = p + kRound;
  const vf power = polynomial_by_pairs(p - (rounded - kRound), d);
  const vf tail = as_float(as_int(power) + (as_int(rounded) << 23));
  return x * (x < 0.0f ? tail : 1.0f - tail);
}

static inline vf hard_sigmoid(vf x) {
  // a sixth of at most 6: by its rounded inverse and the rest, which has the bits of a division
  x += 3.0f;
  const vf low = x > 0.0f ? x : vf{};
  const vf y = low < 6.0f ? low : splat(6.0f);
#if defined(__FMA__) || defined(WEFT_NEON)
  constexpr float kSixth = 1.0f / 6.0f;
  const vf sixth = y * kSixth;
  return fma(fma(sixth, splat(-6.0f), y), splat(kSixth), sixth);
#else
  return y / 6.0f;
#endif
}

static inline vf hard_swish(vf x) { return x * hard_sigmoid(x); }

static inline vf softplus(vf x) { return x > 20.0f ? x : log1p(exp(x > 20.0f ? splat(20.0f) : x)); }

}  // namespace weft::WEFT_TARGET
