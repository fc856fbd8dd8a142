// Which cells of a block the rows of a tile see.
#pragma once

#include "kernels/attention_plan.h"
#include "kernels/reductions.h"

namespace weft::WEFT_TARGET {

inline constexpr float kHidden = -__builtin_inff();

// Some rows of one group: what all of them share.
struct Job {
  const Call& call;
  const Plan& plan;
  int64_t group;  // of heads
  int64_t batch;
  int64_t first;   // row of the group
  int64_t n_rows;  // of this tile

  int64_t head(int64_t row) const { return group * plan.group + (first + row) % plan.group; }
  int64_t token(int64_t row) const { return (first + row) / plan.group; }
  // Where the row's mask is.
  int64_t mask_row(int64_t row) const {
    return call.src[3]->ne[2] == 1 ? token(row) - token(0) : row;
  }
};

// The cells of a block that some row sees, and which rows those are.
struct Seen {
  int64_t n;           // cells
  int64_t first, end;  // rows; multiples of kTileRows where there are many
  bool masked;         // false: all rows see all cells, and the mask adds nothing
};

// Without a mask: all cells, and lanes behind the last one hidden.
static inline Seen see_all(const Job& job, const Tile& t, int64_t first, int64_t n) {
  for (int64_t i = 0; i < n; ++i) t.cells[i] = first + i;
  for (int64_t i = 0; i < kCells; ++i) t.mask[i] = i < n ? 0 : kHidden;
  return {n, 0, job.n_rows, n % kLanes != 0};
}

// Reads the mask of `n` cells from `first` on and lists the cells that some row sees. The mask of
// those cells ends up packed, in their order; lanes behind the last one are hidden.
static inline Seen find_visible(const Job& job, const Tile& t, int64_t first, int64_t n) {
  const Tensor* mask = job.call.src[3];
  if (mask == nullptr) return see_all(job, t, first, n);
  float seen[kCells];
  for (int64_t i = 0; i < kCells; ++i) seen[i] = kHidden;
  vf low = splat(0.0f);
  Seen found = {0, job.n_rows, 0, true};
  int64_t last = -1;
  bool visible = false;
  for (int64_t r = 0; r < job.n_rows; ++r) {
    const int64_t row = job.mask_row(r);
    if (row != last) {
      last = row;
      float* out = t.mask + row * kCells;
      const char* p =
          row_data(*mask, {job.token(r), job.head(r) % mask->ne[2], job.batch % mask->ne[3]});
      load_floats(p + first * mask->nb[0], mask->type, mask->nb[0], n, out);
      for (int64_t i = n; i < kCells; ++i) out[i] = kHidden;
      vf high = splat(kHidden);
      for (int64_t i = 0; i < kCells; i += kLanes) {
        const vf m = load(out + i);
        high = vmax(m, high);
        low = vmin(m, low);
        store(seen + i, vmax(m, load(seen + i)));
      }
      visible = hmax(high) != kHidden;
    }
    if (!visible) continue;
    found.first = min64(found.first, r);
    found.end = r + 1;
  }
  for (int64_t i = 0; i < n; ++i) {
    t.cells[found.n] = first + i;
    found.n += seen[i] != kHidden;
  }
  if (found.n == 0) return found;
  found.masked = found.n < kCells || -hmax(-low) != 0.0f || max_of(seen, kCells, 0) != 0.0f;
  if (found.n == n || t.cells[found.n - 1] - first == found.n - 1) return found;  // packed already
  for (int64_t row = 0; row <= last; ++row) {
    float* m = t.mask + row * kCells;
    for (int64_t i = 0; i < found.n; ++i) m[i] = m[t.cells[i] - first];
    for (int64_t i = found.n; i < kCells; ++i) m[i] = kHidden;
  }
  return found;
}

}  // namespace weft::WEFT_TARGET
