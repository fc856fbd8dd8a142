// The searches for scales of the K-quant encoders.
//
// They compare errors in float32 and keep the first of equals, so the order of every operation
// affects the result.
// Source: make_qkx2_quants, make_qx_quants (rmse type 1) and make_q3_quants in ggml-quants.c.
#pragma once

#include "quants/codec.h"

namespace weft::WEFT_TARGET {

struct Fit {
  float scale;
  float offset;
};

struct SearchRange {
  int top;        // codes are 0..top
  float first;    // the first trial divides the range of x into top + first steps,
  float step;     // each further trial into `step` more
  int n_steps;    // there are n_steps + 1 trials
  bool absolute;  // errors count by magnitude; otherwise by square
};

// A group of `n` numbers with their weights, and the errors of codes for them.
struct WeightedGroup {
  const float* x;
  const float* weights;
  int n;
  const SearchRange& range;
  float sum_w = 0;
  float sum_x = 0;

  WeightedGroup(const float* values, const float* w, int count, const SearchRange& r)
      : x(values), weights(w), n(count), range(r) {
    for (int i = 0; i < n; ++i) {
      sum_w += weights[i];
      sum_x += weights[i] * x[i];
    }
  }

  void quantize(float inverse, float low, uint8_t* codes) const {
    for (int i = 0; i < n; ++i) {
      codes[i] = low8(clamp(nearest_int(inverse * (x[i] - low)), 0, range.top));
    }
  }

  // The weighted error of scale * code + low.
  float error(float scale, float low, const uint8_t* codes) const {
    float sum = 0;
    for (int i = 0; i < n; ++i) {
      const float diff = scale * static_cast<float>(codes[i]) + low - x[i];
      sum += weights[i] * (range.absolute ? __builtin_fabsf(diff) : diff * diff);
    }
    return sum;
  }

  // The least-squares scale and low end (at most 0) for these codes; false when they have none.
  bool solve(const uint8_t* codes, float& scale, float& low) const {
    float sum_l = 0;
    float sum_l2 = 0;
    float sum_xl = 0;
    for (int i = 0; i < n; ++i) {
      const auto l = static_cast<float>(codes[i]);
      const float wl = weights[i] * l;
      sum_l += wl;
      sum_l2 += wl * l;
      sum_xl += wl * x[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0)) return false;
    scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (low > 0) {
      low = 0;
      scale = sum_xl / sum_l2;
    }
    return true;
  }
};

// Fits x = scale * code - offset with offset >= 0. Tries several widths of a code, each with its
// least-squares scale and offset, and keeps the fit with the least weighted error.
static inline Fit fit_scale_and_min(const float* x, const float* weights, int n,
                                    const SearchRange& range, uint8_t* codes) {
  float low = x[0];
  float high = x[0];
  for (int i = 1; i < n; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  if (low > 0) low = 0;
  if (high == low) {
    for (int i = 0; i < n; ++i) codes[i] = 0;
    return {0, -low};
  }
  const WeightedGroup group(x, weights, n, range);
  const auto top = static_cast<float>(range.top);
  const float inverse = top / (high - low);
  float scale = 1.0f / inverse;
  group.quantize(inverse, low, codes);
  float best = group.error(scale, low, codes);
  for (int step = 0; step <= range.n_steps; ++step) {
    const float width = range.first + range.step * static_cast<float>(step) + top;
    uint8_t trial[32];
    float trial_scale;
    float trial_low;
    // `low` is that of the best fit so far, so it shifts the range of this trial.
    group.quantize(width / (high - low), low, trial);
    if (!group.solve(trial, trial_scale, trial_low)) continue;
    const float trial_error = group.error(trial_scale, trial_low, trial);
    if (trial_error < best) {
      std::memcpy(codes, trial, static_cast<size_t>(n));
      best = trial_error;
      scale = trial_scale;
      low = trial_low;
    }
  }
  return {scale, -low};
}

// Fits 16 numbers x = scale * (code - kHalf), weighted by x * x. Tries 19 code widths and returns
// the scale; 0 for a group of zeros.
template <int kHalf>
float fit_scale(const float* x, uint8_t* codes) {
  const Peak peak = find_peak(x, 16);
  if (peak.magnitude < kTinyGroup) {
    std::memset(codes, 0, 16);
    return 0;
  }
  float sum_lx = 0;
  float sum_l2 = 0;
  const auto sums = [&](float inverse) {
    sum_lx = 0;
    sum_l2 = 0;
    for (int i = 0; i < 16; ++i) {
      const auto l = static_cast<float>(clamp(nearest_int(inverse * x[i]), -kHalf, kHalf - 1));
      const float w = x[i] * x[i];
      sum_lx += w * x[i] * l;
      sum_l2 += w * l * l;
    }
  };
  const auto half = static_cast<float>(kHalf);
  float best_inverse = -half / peak.value;
  sums(best_inverse);
  float scale = sum_l2 != 0 ? sum_lx / sum_l2 : 0.0f;
  float best = scale * sum_lx;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const float inverse = -(half + 0.1f * static_cast<float>(step)) / peak.value;
    sums(inverse);
    if (sum_l2 > 0 && sum_lx * sum_lx > best * sum_l2) {
      best_inverse = inverse;
      scale = sum_lx / sum_l2;
      best = scale * sum_lx;
    }
  }
  for (int i = 0; i < 16; ++i) {
    codes[i] = low8(clamp(nearest_int(best_inverse * x[i]), -kHalf, kHalf - 1) + kHalf);
  }
  return scale;
}

// The same fit, but it improves the codes of single elements, in up to five rounds.
template <int kHalf>
float fit_scale_by_element(const float* x, uint8_t* codes) {
  const Peak peak = find_peak(x, 16);
  if (peak.magnitude < kTinyGroup) {
    std::memset(codes, 0, 16);
    return 0;
  }
  const float inverse = static_cast<float>(-kHalf) / peak.value;
  int32_t q[16];
  float sum_lx = 0;
  float sum_l2 = 0;
  for (int i = 0; i < 16; ++i) {
    q[i] = clamp(nearest_int(inverse * x[i]), -kHalf, kHalf - 1);
    const auto l = static_cast<float>(q[i]);
    const float w = x[i] * x[i];
    sum_lx += w * x[i] * l;
    sum_l2 += w * l * l;
  }
  for (int round = 0; round < 5; ++round) {
    bool changed = false;
    for (int i = 0; i < 16; ++i) {
      const float w = x[i] * x[i];
      const auto l = static_cast<float>(q[i]);
      const float rest_lx = sum_lx - w * x[i] * l;
      const float rest_l2 = sum_l2 - w * l * l;
      if (!(rest_lx > 0)) continue;
      const int32_t trial = clamp(nearest_int(x[i] * rest_l2 / rest_lx), -kHalf, kHalf - 1);
      if (trial == q[i]) continue;
      const auto t = static_cast<float>(trial);
      const float trial_lx = rest_lx + w * x[i] * t;
      const float trial_l2 = rest_l2 + w * t * t;
      if (trial_l2 > 0 && trial_lx * trial_lx * sum_l2 > sum_lx * sum_lx * trial_l2) {
        q[i] = trial;
        sum_lx = trial_lx;
        sum_l2 = trial_l2;
        changed = true;
      }
    }
    if (!changed) break;
  }
  for (int i = 0; i < 16; ++i) codes[i] = low8(q[i] + kHalf);
  return sum_l2 > 0 ? sum_lx / sum_l2 : 0.0f;
}

}  // namespace weft::WEFT_TARGET
