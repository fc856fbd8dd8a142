// Which cells of a block the rows of a tile see.
#pragma once

#include "kernels/attention_plan.h"
#include "kernels/reductions.h"

namespace weft::WEFT_TARGET {

// Slots of the parameter record (graph/params.py).
enum Slot { kScale, kMaxBias, kSoftcap, kSlots };

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
  // Where the row's mask is: all rows share one where there is none.
  int64_t mask_row(int64_t row) const {
    if (call.src[3] == nullptr) return 0;
    return call.src[3]->ne[2] == 1 ? token(row) - token(0) : row;
  }
};

// A block: what of it is visible to some row.
struct Block {
  int64_t first;       // cell
  int64_t n;           // cells that there are
  int64_t begin, end;  // of the visible ones, in the block
  int64_t seen;        // cells in Tile::cells
  bool masked;         // false: all rows see all cells, and the mask adds nothing
};

static inline void start_sights(const Job& job, const Tile& t) {
  for (int64_t m = 0; m <= job.mask_row(job.n_rows - 1); ++m) t.sight[m] = {};
}

// What a row sees of a block, from its mask: kCells floats.
static inline void look(const float* mask, Sight* s) {
  s->sees = 0;
  s->end = 0;
  int32_t count = s->count;
  for (int64_t i = 0; i < kCells; i += kStrip) {
    int32_t n = 0;
    for (int64_t j = i; j < i + kStrip; ++j) n += mask[j] != kHidden;
    s->sees |= n;
    count += n;
    if (count >= kChunkCells && mask[i + kStrip - 1] != kHidden) {
      s->end = static_cast<int32_t>(i + kStrip);
      count = 0;
    }
  }
  s->next = count;
}

// To be called when a block is done.
static inline void go_on(const Job& job, const Tile& t) {
  for (int64_t m = 0; m <= job.mask_row(job.n_rows - 1); ++m) {
    Sight& s = t.sight[m];
    if (s.sees == 0) continue;
    s.chunk += s.end != 0;
    s.count = s.next;
  }
}

// Whether a mask hides all of `n` cells.
static inline bool hides(const char* mask, const Tensor& t, int64_t n) {
  if (t.type != DType::kF16 || t.nb[0] != 2 || n != kCells) return false;
  uint64_t differ = 0;
  for (int64_t i = 0; i < kCells; i += 4) {
    uint64_t four;
    std::memcpy(&four, mask + 2 * i, sizeof four);
    differ |= four ^ 0xfc00fc00fc00fc00u;
  }
  return differ == 0;
}

// Reads the mask of the cells first..first + n into t.mask, where cells that are not there are
// hidden, and says what the rows see in t.sight and t.cells.
static inline Block look_at(const Job& job, const Tile& t, int64_t first, int64_t n) {
  const Tensor* mask = job.call.src[3];
  Block block = {first, n, 0, 0, 0, true};
  vf seen[kCells / kLanes];
  for (auto& s : seen) s = splat(kHidden);
  vf low = splat(0.0f);
  int64_t last = -1;
  bool any = false;
  for (int64_t r = 0; r < job.n_rows; ++r) {
    const int64_t row = job.mask_row(r);
    if (row == last) continue;
    last = row;
    float* out = t.mask + row * kCells;
    int64_t known = n;
    if (mask != nullptr) {
      const char* p =
          row_data(*mask, {job.token(r), job.head(r) % mask->ne[2], job.batch % mask->ne[3]});
      p += first * mask->nb[0];
      if (hides(p, *mask, n)) {
        t.sight[row].sees = 0;
        low = splat(kHidden);
        continue;
      }
      load_floats(p, mask->type, mask->nb[0], n, out);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = 0;
    }
    for (; known < kCells; ++known) out[known] = kHidden;
    for (int64_t i = 0; i < kCells; i += kLanes) {
      const vf m = load(out + i);
      low = vmin(m, low);
      seen[i / kLanes] = vmax(m, seen[i / kLanes]);
    }
    look(out, &t.sight[row]);
    any |= t.sight[row].sees != 0;
  }
  if (!any) return block;
  bool zeros = hmax(-low) == 0.0f;
  for (int64_t i = 0; i < kCells; ++i) {
    const float m = seen[i / kLanes][i % kLanes];
    zeros &= m == 0.0f;
    t.cells[block.seen] = static_cast<int32_t>(i);
    block.seen += m != kHidden;
  }
  block.begin = t.cells[0];
  block.end = t.cells[block.seen - 1] + 1;
  block.masked = !zeros;
  return block;
}

}  // namespace weft::WEFT_TARGET
