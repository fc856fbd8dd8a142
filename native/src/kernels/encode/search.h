// The searches for scales, kLanes groups at once.
//
// They compare errors in float32 and keep the first of equals, so the order of every operation
// affects the result. A group that a search has done with takes part without effect.
// Source: make_qkx2_quants, make_qkx3_quants, make_qx_quants (rmse type 1), make_q3_quants and
// make_qp_quants in ggml-quants.c.
#pragma once

#include "kernels/encode/lanes.h"

namespace weft::WEFT_TARGET {

// The result of a search: x is about scale * code - offset. The codes are the nearest to
// inverse * (x - low); lanes in `zero` have the code 0.
struct LaneFit {
  vf scale;
  vf offset;
  vf inverse;
  vf low;
  vi zero;
};

struct LaneRange {
  int top;      // codes are 0..top
  float first;  // the first trial divides the range of x into top + first steps,
  float step;   // each further trial into `step` more
  int n_steps;  // there are n_steps + 1 trials
};

// With offset >= 0. Tries several widths of a code, each with its least-squares scale and offset,
// and keeps the fit with the least weighted error: of squares, or with kAbsolute of magnitudes.
template <int n, bool kAbsolute>
LaneFit fit_lanes(const vf* x, const vf* weights, const LaneRange& range) {
  vf low = x[0];
  vf high = x[0];
  vf sum_w = {};
  vf sum_x = {};
  for (int i = 0; i < n; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
    sum_w += weights[i];
    sum_x += weights[i] * x[i];
  }
  low = low > vf{} ? vf{} : low;
  const vi zero = high <= low;
  const vf offset_of_zero = -low;
  const auto top = static_cast<float>(range.top);
  vf codes[n];
  const auto quantize = [&](vf inverse, int i) {
    codes[i] = int_floats(clamp(nearest_int(inverse * (x[i] - low)), 0, range.top));
  };
  const auto error_of = [&](vf scale, vf from) {
    vf sum = {};
    for (int i = 0; i < n; ++i) {
      const vf diff = scale * codes[i] + from - x[i];
      sum += weights[i] * (kAbsolute ? magnitude(diff) : diff * diff);
    }
    return sum;
  };
  vf best_inverse = splat(top) / (high - low);
  vf best_low = low;
  vf scale = splat(1.0f) / best_inverse;
  for (int i = 0; i < n; ++i) quantize(best_inverse, i);
  vf best = error_of(scale, low);
  for (int step = 0; step <= range.n_steps; ++step) {
    const float width = range.first + range.step * static_cast<float>(step) + top;
    // `low` is that of the best fit so far, so it shifts the range of this trial.
    const vf inverse = splat(width) / (high - low);
    vf sum_l = {};
    vf sum_l2 = {};
    vf sum_xl = {};
    for (int i = 0; i < n; ++i) {
      quantize(inverse, i);
      const vf wl = weights[i] * codes[i];
      sum_l += wl;
      sum_l2 += wl * codes[i];
      sum_xl += wl * x[i];
    }
    const vf determinant = sum_w * sum_l2 - sum_l * sum_l;
    vf trial_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
    vf trial_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
    const vi above = trial_low > vf{};
    trial_scale = above ? sum_xl / sum_l2 : trial_scale;
    trial_low = above ? vf{} : trial_low;
    const vf trial_error = error_of(trial_scale, trial_low);
    const vi better = (determinant > vf{}) & (trial_error < best);
    best = better ? trial_error : best;
    scale = better ? trial_scale : scale;
    best_inverse = better ? inverse : best_inverse;
    best_low = better ? low : best_low;
    low = better ? trial_low : low;
  }
  return {zero ? vf{} : scale, zero ? offset_of_zero : -low, best_inverse, best_low, zero};
}

struct LanePeak {
  vf magnitude;
  vf value;
};

static inline LanePeak find_peak(const vf* x, int n) {
  LanePeak peak = {};
  for (int i = 0; i < n; ++i) {
    const vf m = magnitude(x[i]);
    const vi more = m > peak.magnitude;
    peak.magnitude = more ? m : peak.magnitude;
    peak.value = more ? x[i] : peak.value;
  }
  return peak;
}

// x = scale * (code - half): tries 19 widths of a code. `zero` are groups of zeros, whose scale is
// 0; the codes of the others are the nearest to inverse * x, between -half and half - 1.
template <int n>
LaneFit fit_signed(const vf* x, const vf* weights, int half) {
  const LanePeak peak = find_peak(x, n);
  const vi zero = peak.magnitude < splat(kTinyGroup);
  vf sum_lx;
  vf sum_l2;
  const auto sums = [&](vf inverse) {
    sum_lx = vf{};
    sum_l2 = vf{};
    for (int i = 0; i < n; ++i) {
      const vf l = int_floats(clamp(nearest_int(inverse * x[i]), -half, half - 1));
      sum_lx += weights[i] * x[i] * l;
      sum_l2 += weights[i] * l * l;
    }
  };
  vf best_inverse = splat(static_cast<float>(-half)) / peak.value;
  sums(best_inverse);
  vf scale = sum_l2 != vf{} ? sum_lx / sum_l2 : vf{};
  vf best = scale * sum_lx;
  for (int step = -9; step <= 9; ++step) {
    if (step == 0) continue;
    const float width = -(static_cast<float>(half) + 0.1f * static_cast<float>(step));
    const vf inverse = splat(width) / peak.value;
    sums(inverse);
    const vi better = (sum_l2 > vf{}) & (sum_lx * sum_lx > best * sum_l2);
    scale = better ? sum_lx / sum_l2 : scale;
    best = better ? scale * sum_lx : best;
    best_inverse = better ? inverse : best_inverse;
  }
  return {zero ? vf{} : scale, vf{}, best_inverse, vf{}, zero};
}

// The same for 16 numbers weighted by their squares, but it improves the codes of single elements,
// in up to five rounds. Gives the scale, and the codes from 0 up.
template <int kHalf>
vf fit_by_element(const vf* x, vi* codes) {
  const LanePeak peak = find_peak(x, 16);
  const vi zero = peak.magnitude < splat(kTinyGroup);
  const vf inverse = splat(static_cast<float>(-kHalf)) / peak.value;
  vf sum_lx = {};
  vf sum_l2 = {};
  vf q[16];
  for (int i = 0; i < 16; ++i) {
    q[i] = int_floats(clamp(nearest_int(inverse * x[i]), -kHalf, kHalf - 1));
    const vf w = x[i] * x[i];
    sum_lx += w * x[i] * q[i];
    sum_l2 += w * q[i] * q[i];
  }
  vi open = ~zero;  // lanes whose last round changed something
  for (int round = 0; round < 5 && any(open); ++round) {
    vi changed = {};
    for (int i = 0; i < 16; ++i) {
      const vf w = x[i] * x[i];
      const vf rest_lx = sum_lx - w * x[i] * q[i];
      const vf rest_l2 = sum_l2 - w * q[i] * q[i];
      const vf t = int_floats(clamp(nearest_int(x[i] * rest_l2 / rest_lx), -kHalf, kHalf - 1));
      const vf trial_lx = rest_lx + w * x[i] * t;
      const vf trial_l2 = rest_l2 + w * t * t;
      const vi better = open & (rest_lx > vf{}) & (t != q[i]) & (trial_l2 > vf{}) &
                        (trial_lx * trial_lx * sum_l2 > sum_lx * sum_lx * trial_l2);
      q[i] = better ? t : q[i];
      sum_lx = better ? trial_lx : sum_lx;
      sum_l2 = better ? trial_l2 : sum_l2;
      changed |= better;
    }
    open = changed;
  }
  for (int i = 0; i < 16; ++i) {
    codes[i] = zero ? vi{} : __builtin_convertvector(q[i], vi) + kHalf;
  }
  return (sum_l2 > vf{}) & ~zero ? sum_lx / sum_l2 : vf{};
}

// x = scale * code for numbers that are not negative, with codes 0..top. As in the reference a code
// is a byte, so that one below 0 wraps around.
template <int n>
vf fit_unsigned(const vf* x, const vf* weights, int top, vi* codes) {
  vf high = {};
  for (int i = 0; i < n; ++i) high = high > x[i] ? high : x[i];
  const vi zero = high < splat(kTinyGroup);
  const auto error_of = [&](vf scale, const auto& code) {
    vf sum = {};
    for (int i = 0; i < n; ++i) {
      const vf diff = x[i] - scale * int_floats(code(i));
      sum += weights[i] * diff * diff;
    }
    return sum;
  };
  vf inverse = splat(static_cast<float>(top)) / high;
  vf best =
      error_of(splat(1.0f) / inverse, [&](int i) { return nearest_int(inverse * x[i]) & 255; });
  for (int step = -4; step <= 4; ++step) {
    if (step == 0) continue;
    const vf trial = splat(0.1f * static_cast<float>(step) + static_cast<float>(top)) / high;
    const vf error = error_of(splat(1.0f) / trial, [&](int i) {
      return least(splat_int(top), nearest_int(trial * x[i]));
    });
    const vi better = error < best;
    best = better ? error : best;
    inverse = better ? trial : inverse;
  }
  vf sum_lx = {};
  vf sum_l2 = {};
  for (int i = 0; i < n; ++i) {
    const vi l = least(splat_int(top), nearest_int(inverse * x[i]));
    codes[i] = l & 255;
    const vf lf = int_floats(l);
    sum_lx += weights[i] * x[i] * lf;
    sum_l2 += weights[i] * lf * lf;
  }
  vi open = ~zero;
  for (int round = 0; round < 5 && any(open); ++round) {
    vi changed = {};
    for (int i = 0; i < n; ++i) {
      const vf w = weights[i];
      const vf l = int_floats(codes[i]);
      const vf rest_lx = sum_lx - w * x[i] * l;
      const vf rest_l2 = sum_l2 - w * l * l;
      const vi trial = least(splat_int(top), nearest_int(x[i] * rest_l2 / rest_lx));
      const vf t = int_floats(trial);
      const vf trial_lx = rest_lx + w * x[i] * t;
      const vf trial_l2 = rest_l2 + w * t * t;
      const vi better = open & (rest_lx > vf{}) & (rest_l2 > vf{}) & (trial != codes[i]) &
                        (trial_lx * trial_lx * sum_l2 > sum_lx * sum_lx * trial_l2);
      codes[i] = better ? trial & 255 : codes[i];
      sum_lx = better ? trial_lx : sum_lx;
      sum_l2 = better ? trial_l2 : sum_l2;
      changed |= better;
    }
    open = changed;
  }
  for (int i = 0; i < n; ++i) codes[i] = zero ? vi{} : codes[i];
  return (sum_l2 > vf{}) & ~zero ? sum_lx / sum_l2 : vf{};
}

}  // namespace weft::WEFT_TARGET
