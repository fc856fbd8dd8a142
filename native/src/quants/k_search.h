// The scale searches of the K-quant encoders.
//
// They keep the first of equals in float32, so the order of every operation is part of the result.
// Source: make_qkx2_quants, make_qx_quants (rmse type 1) and make_q3_quants in ggml-quants.c.
#pragma once

#include "quants/codec.h"

namespace weft::WEFT_TARGET {

struct Fit {
  float scale;
  float offset;
};

struct SearchRange {
  int top;      // codes are 0..top
  float first;  // the first code width tried is top + first
  float step;
  int n_steps;
  bool absolute;  // error of magnitude, not of square
};

// Fit x = scale * q - offset with offset >= 0: tries n_steps + 1 code widths over the range of x,
// each with its least-squares scale and offset, and keeps the least weighted error.
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
  float sum_w = 0;
  float sum_x = 0;
  for (int i = 0; i < n; ++i) {
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  const auto top = static_cast<float>(range.top);
  uint8_t trial[32];
  const auto quantize = [&](float inverse, uint8_t* out) {
    for (int i = 0; i < n; ++i) {
      out[i] = low8(clamp(nearest_int(inverse * (x[i] - low)), 0, range.top));
    }
  };
  const auto error = [&](float scale, float min, const uint8_t* q) {
    float sum = 0;
    for (int i = 0; i < n; ++i) {
      const float diff = scale * static_cast<float>(q[i]) + min - x[i];
      sum += weights[i] * (range.absolute ? __builtin_fabsf(diff) : diff * diff);
    }
    return sum;
  };
  const float inverse = top / (high - low);
  float scale = 1.0f / inverse;
  quantize(inverse, codes);
  float best = error(scale, low, codes);
  for (int step = 0; step <= range.n_steps; ++step) {
    const float width = range.first + range.step * static_cast<float>(step) + top;
    // the offset of the best fit so far shifts the range of the next try
    quantize(width / (high - low), trial);
    float sum_l = 0;
    float sum_l2 = 0;
    float sum_xl = 0;
    for (int i = 0; i < n; ++i) {
      const auto l = static_cast<float>(trial[i]);
      const float wl = weights[i] * l;
      sum_l += wl;
      sum_l2 += wl * l;
      sum_xl += wl * x[i];
    }
    const float determinant = sum_w * sum_l2 - sum_l * sum_l;
    if (!(determinant > 0)) continue;
    float trial_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    float trial_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    if (trial_low > 0) {
      trial_low = 0;
      trial_scale = sum_xl / sum_l2;
    }
    const float trial_error = error(trial_scale, trial_low, trial);
    if (trial_error < best) {
      std::memcpy(codes, trial, static_cast<size_t>(n));
      best = trial_error;
      scale = trial_scale;
      low = trial_low;
    }
  }
  return {scale, -low};
}

// Fit x[16] = scale * (q - half), weights x*x, over 19 code widths. 0 for a group of zeros.
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

// As fit_scale, but improving one element at a time, in up to five rounds.
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
