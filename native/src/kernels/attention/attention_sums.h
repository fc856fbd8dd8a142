// The sums of attention: the weights of a block, their sums over a chunk, and the sum of chunks.
//
// A weight is p 2^(n - top): p and the integer n follow from its score alone, and `top` is the
// largest n so far. When `top` rises, sums shrink by a power of two, which rounds nothing. So the
// result does not depend on where blocks begin, or on which cells in them are hidden.
#pragma once

#include "kernels/attention/alibi.h"
#include "kernels/attention/attention_mask.h"

namespace weft::WEFT_TARGET {

// Powers of two with an exponent below kLeast count as 0, and scores below -kMost as hidden.
inline constexpr float kLeast = -120.0f;
inline constexpr float kMost = 2.5e6f;

static inline float power_of_two(float n) {
  if (!(n >= kLeast)) return 0.0f;
  const uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

struct Weight {
  vf p, n;  // e^x = p 2^n
};

static inline Weight weight_of(vf x) {
  x = vmax(x, splat(-2 * kMost));
  x = x > kMost ? splat(kMost) : x;
  const vf n = fma(x, splat(1.44269504f), splat(kRound)) - kRound;
  const vf r = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), x));
  return {exp_tail(r) + 1.0f, n};
}

// p 2^n for a weight's p and n from kLeast to 0, where nothing leaves the range of normal numbers.
static inline vf times_power(vf p, vf n) {
#if defined(__AVX512F__)
  return scale_by_power(p, n);
#else
  return as_float(as_int(p) + (as_int(n + kRound) << 23));
#endif
}

// Turns the scores of a row for the cells begin..end into weights, sets the factor t.fade that its
// sums so far shrink by, and adds the weights of the cells before `end_total` to its total.
static inline void weigh(const Job& job, const Tile& t, int64_t row, const Block& block,
                         int64_t begin, int64_t end, int64_t end_total) {
  float* w = t.weights + row * kCells;
  if (const float cap = job.call.f(FlashAttnSlot::kLogitSoftcap); cap != 0.0f) {
    map(w + begin, w + begin, end - begin, [cap](vf x) { return tanh(x) * cap; });
  }
  vf high = splat(kHidden);
  if (block.masked) {
    const float* mask = t.mask + t.masks[row] * kCells;
    const vf slope = splat(
        alibi_slope(job.head(row), job.call.src[0]->ne[2], job.call.f(FlashAttnSlot::kMaxBias)));
    for (int64_t i = begin; i < end; i += kLanes) {
      const vf m = load(mask + i);
      // The score of a hidden cell may be anything, even NaN.
      const vf x = m == kHidden ? m : fma(slope, m, load(w + i));
      store(w + i, x);
      high = vmax(x, high);
    }
  } else {
    for (int64_t i = begin; i < end; i += kLanes) high = vmax(load(w + i), high);
  }
  const float largest = hmax(high);
  float top = t.top[row];
  if (largest >= -kMost) {
    const float n = weight_of(splat(largest)).n[0];
    top = n > top ? n : top;
  }
  const float fade = power_of_two(t.top[row] - top);
  const vf shift = splat(top == kHidden ? kMost : top);
  for (int64_t i = begin; i < end; i += kLanes) {
    const Weight weight = weight_of(load(w + i));
    const vf n = weight.n - shift;
    store(w + i, n < kLeast ? vf{} : times_power(weight.p, n));
  }
  // On its own, so that this chain of sums keeps its register.
  vf total = load(t.total + row * kStrip) * fade;
  for (int64_t i = begin; i < min64(end, end_total); i += kLanes) total += load(w + i);
  store(t.total + row * kStrip, total);
  t.top[row] = top;
  t.fade[row] = fade;
}

// Where a row's sums of a chunk are.
struct ChunkSums {
  float* sum;
  float* top;
  float* total;
};

// Adds the sums of a chunk to `past`, those of the chunks before it.
static inline void add_chunk(const ChunkSums& past, const float* sum, float top, float total,
                             int64_t width) {
  if (top == kHidden) return;
  if (*past.top == kHidden) {
    std::memcpy(past.sum, sum, static_cast<size_t>(width) * sizeof(float));
    *past.top = top;
    *past.total = total;
    return;
  }
  const float high = top > *past.top ? top : *past.top;
  const float past_fade = power_of_two(*past.top - high);
  const float chunk_fade = power_of_two(top - high);
  const vf a = splat(past_fade);
  const vf b = splat(chunk_fade);
  map(past.sum, sum, past.sum, width, [a, b](vf x, vf y) { return fma(y, b, x * a); });
  *past.total = *past.total * past_fade + total * chunk_fade;
  *past.top = high;
}

static inline ChunkSums past_of(const Job& job, const Tile& t, int64_t row) {
  const int64_t width = pad(job.call.src[2]->ne[0]);
  return {t.past_sum + row * width, t.past_top + row, t.past_total + row};
}

// Where the threads that share a tile leave a row's sums of a chunk: [chunk][row of all groups and
// batches][chunk_floats].
static inline ChunkSums shared_of(const Job& job, int64_t row, int64_t chunk) {
  const Plan& p = job.plan;
  const int64_t all = p.rows * p.groups * job.call.src[0]->ne[3];
  const int64_t index = (job.batch * p.groups + job.group) * p.rows + job.first + row;
  const int64_t floats = chunk_floats(job.call);
  float* at = reinterpret_cast<float*>(job.call.shared) + (chunk * all + index) * floats;
  return {at, at + floats - 2, at + floats - 1};
}

static inline void start_chunk(const Job& job, const Tile& t, int64_t row) {
  const int64_t width = pad(job.call.src[2]->ne[0]);
  for (int64_t i = 0; i < width; ++i) t.sum[row * width + i] = 0;
  for (int64_t i = 0; i < kStrip; ++i) t.total[row * kStrip + i] = 0;
}

// Adds the sums of a finished chunk of a row to those before it, or leaves them in shared memory.
static inline void end_chunk(const Job& job, const Tile& t, int64_t row, int64_t chunk) {
  const int64_t width = pad(job.call.src[2]->ne[0]);
  const float* sum = t.sum + row * width;
  const float total = hsum(load(t.total + row * kStrip));
  if (job.plan.parts == 1) {
    add_chunk(past_of(job, t, row), sum, t.top[row], total, width);
  } else {
    const ChunkSums out = shared_of(job, row, chunk);
    std::memcpy(out.sum, sum, static_cast<size_t>(width) * sizeof(float));
    *out.top = t.top[row];
    *out.total = total;
  }
}

}  // namespace weft::WEFT_TARGET
