// The sums of attention's rows: weights of a block, chunks, and chunks added up.
//
// Weights are p 2^(n - top), with p and the integer n of their own score alone and `top` the largest
// n so far. So sums only ever shrink by powers of two, which rounds nothing, and it does not show
// where blocks begin and end, or which cells in them are hidden.
#pragma once

#include "kernels/alibi.h"
#include "kernels/attention_mask.h"

namespace weft::WEFT_TARGET {

// Smaller powers of two count as 0.
inline constexpr float kLeast = -120.0f;

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

static inline vf exp_tail(vf r) {
  constexpr float c[] = {5.000000029e-01f, 1.666657336e-01f, 4.166636345e-02f, 8.363776144e-03f,
                         1.394216109e-03f};
  return fma(r * r, polynomial(r, c), r);
}

static inline Weight weight_of(vf x) {
  // scores so far from 0 are all alike
  constexpr float kMost = 2.5e6f;
  x = x < -kMost ? splat(-kMost) : x;
  x = x > kMost ? splat(kMost) : x;
  const vf n = fma(x, splat(1.44269504f), splat(kRound)) - kRound;
  const vf r = fma(n, splat(-kLn2Low), fma(n, splat(-kLn2High), x));
  return {exp_tail(r) + 1.0f, n};
}

// Turns the scores of a row for the cells begin..end into weights, and says by how much the weights
// so far shrink.
static inline void weigh(const Job& job, const Tile& t, int64_t row, const Block& block,
                         int64_t begin, int64_t end) {
  float* w = t.weights + row * kCells;
  float power[kCells];
  const float cap = job.call.f(kSoftcap);
  const float* mask = t.mask + job.mask_row(row) * kCells;
  const vf slope =
      splat(alibi_slope(job.head(row), job.call.src[0]->ne[2], job.call.f(kMaxBias)));
  vf high = splat(t.top[row]);
  for (int64_t i = begin; i < end; i += kLanes) {
    vf x = load(w + i);
    if (cap != 0.0f) x = tanh(x) * cap;
    if (block.masked) {
      const vf m = load(mask + i);
      const Weight weight = weight_of(fma(slope, m, x));
      // a hidden cell may hold anything, NaN too
      store(w + i, m == kHidden ? vf{} : weight.p);
      const vf n = m == kHidden ? m : weight.n;
      store(power + i, n);
      high = vmax(n, high);
    } else {
      const Weight weight = weight_of(x);
      store(w + i, weight.p);
      store(power + i, weight.n);
      high = vmax(weight.n, high);
    }
  }
  const float top = hmax(high);
  t.fade[row] = power_of_two(t.top[row] - top);
  t.top[row] = top;
  const vf shift = splat(top == kHidden ? 0.0f : top);
  for (int64_t i = begin; i < end; i += kLanes) {
    const vf n = load(power + i) - shift;
    const vf x = load(w + i);
    store(w + i, n < kLeast ? vf{} : scale_by_power(x, n));
  }
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

// Ends a chunk of a row, and begins the next one.
static inline void end_chunk(const Job& job, const Tile& t, int64_t row, int64_t chunk) {
  const int64_t width = pad(job.call.src[2]->ne[0]);
  float* sum = t.sum + row * width;
  float* lanes = t.total + row * kStrip;
  const float total = hsum(load(lanes));
  if (job.plan.parts == 1) {
    add_chunk(done_of(job, t, row), sum, t.top[row], total, width);
  } else {
    const ChunkSums out = shared_of(job, row, chunk);
    std::memcpy(out.sum, sum, static_cast<size_t>(width) * sizeof(float));
    *out.top = t.top[row];
    *out.total = total;
  }
  for (int64_t i = 0; i < width; ++i) sum[i] = 0;
  for (int64_t i = 0; i < kStrip; ++i) lanes[i] = 0;
}

}  // namespace weft::WEFT_TARGET
