// The sums of attention's rows: weights of a block, chunks, and chunks added up.
//
// Weights are p 2^(n - top), with p and the integer n of their own score alone and `top` the
// largest n so far. So sums only ever shrink by powers of two, which rounds nothing, and it does
// not show where blocks begin and end, or which cells in them are hidden.
#pragma once

#include "kernels/attention/alibi.h"
#include "kernels/attention/attention_mask.h"

namespace weft::WEFT_TARGET {

// Smaller powers of two count as 0, and scores below -kMost as hidden.
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

// e^r - 1 for |r| <= ln(2)/2, as `exp_parts` has it.
static inline vf exp_tail(vf r) {
  constexpr float c[] = {5.000000029e-01f, 1.666657336e-01f, 4.166636345e-02f, 8.363776144e-03f,
                         1.394216109e-03f};
  return fma(r * r, polynomial(r, c), r);
}

static inline Weight weight_of(vf x) {
  x = vmax(x, splat(-2 * kMost));  // a NaN passes here,
  x = x > kMost ? splat(kMost) : x;
  const vf n = fma(x, splat(1.44269504f), splat(kRound)) - kRound;
  const vf r = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), x));
  return {exp_tail(r) + 1.0f, n};
}

// Turns the scores of a row for the cells begin..end into weights, says by how much those so far
// shrink, and adds the weights of the cells before `end_total` to the total.
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
      // a hidden cell may hold anything, NaN too
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
  vf total = load(t.total + row * kStrip) * fade;
  for (int64_t i = begin; i < end; i += kLanes) {
    const Weight weight = weight_of(load(w + i));
    const vf n = weight.n - shift;
    const vf x = n < kLeast ? vf{} : scale_by_power(weight.p, n);
    store(w + i, x);
    if (i < end_total) total += x;
  }
  store(t.total + row * kStrip, total);
  t.top[row] = top;
  t.fade[row] = fade;
}

// A row's sums of a chunk, wherever they are.
struct ChunkSums {
  float* sum;
  float* top;
  float* total;
};

// Adds the sums of a chunk to those of the chunks before it.
static inline void add_chunk(const ChunkSums& done, const float* sum, float top, float total,
                             int64_t width) {
  if (top == kHidden) return;
  if (*done.top == kHidden) {
    std::memcpy(done.sum, sum, static_cast<size_t>(width) * sizeof(float));
    *done.top = top;
    *done.total = total;
    return;
  }
  const float high = top > *done.top ? top : *done.top;
  const float before = power_of_two(*done.top - high);
  const float now = power_of_two(top - high);
  const vf a = splat(before);
  const vf b = splat(now);
  map(done.sum, sum, done.sum, width, [a, b](vf x, vf y) { return fma(y, b, x * a); });
  *done.total = *done.total * before + total * now;
  *done.top = high;
}

static inline ChunkSums done_of(const Job& job, const Tile& t, int64_t row) {
  const int64_t width = pad(job.call.src[2]->ne[0]);
  return {t.done_sum + row * width, t.done_top + row, t.done_total + row};
}

// Where threads leave a row's sums of a chunk for each other.
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

// Keeps the sums of a chunk of a row.
static inline void end_chunk(const Job& job, const Tile& t, int64_t row, int64_t chunk) {
  const int64_t width = pad(job.call.src[2]->ne[0]);
  const float* sum = t.sum + row * width;
  const float total = hsum(load(t.total + row * kStrip));
  if (job.plan.parts == 1) {
    add_chunk(done_of(job, t, row), sum, t.top[row], total, width);
  } else {
    const ChunkSums out = shared_of(job, row, chunk);
    std::memcpy(out.sum, sum, static_cast<size_t>(width) * sizeof(float));
    *out.top = t.top[row];
    *out.total = total;
  }
}

}  // namespace weft::WEFT_TARGET
