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
  // Rows of the mask: one where there is none, or one for each token or row.
  int64_t n_masks() const {
    if (call.src[3] == nullptr) return 1;
    return many_masks(call) ? n_rows : token(n_rows - 1) - token(0) + 1;
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
  for (int64_t m = 0; m < job.n_masks(); ++m) t.sight[m] = {};
  for (int64_t r = 0; r < job.n_rows; ++r) {
    const int64_t token = job.token(r) - job.token(0);
    t.masks[r] = job.n_masks() == 1 ? 0 : static_cast<int32_t>(many_masks(job.call) ? r : token);
  }
}

// A bit for each of kCells cells: whether it is not hidden.
static inline uint64_t visible(const float* mask) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < kCells; i += kLanes) {
#if defined(__AVX512F__)
    const uint64_t some = _mm512_cmp_ps_mask(reinterpret_cast<__m512>(load(mask + i)),
                                             _mm512_set1_ps(kHidden), _CMP_NEQ_UQ);
#elif defined(__AVX2__)
    const auto some = static_cast<uint64_t>(_mm256_movemask_ps(_mm256_cmp_ps(
        reinterpret_cast<__m256>(load(mask + i)), _mm256_set1_ps(kHidden), _CMP_NEQ_UQ)));
#else
    uint64_t some = 0;
    for (int64_t j = 0; j < kLanes; ++j) some |= uint64_t{mask[i + j] != kHidden} << j;
#endif
    bits |= some << i;
  }
  return bits;
}

// What a row sees of a block.
static inline void look(uint64_t bits, Sight* s) {
  s->sees = bits != 0;
  s->end = 0;
  s->next = s->count + __builtin_popcountll(bits);
  if (s->next < kChunkCells) return;
  int32_t count = s->count;
  for (int64_t i = 0; i < kCells; i += kStrip) {
    const uint64_t strip = bits >> i & 0xffff;
    count += __builtin_popcountll(strip);
    if (count >= kChunkCells && strip >> (kStrip - 1) != 0) {
      s->end = static_cast<int32_t>(i + kStrip);
      count = 0;
    }
  }
  s->next = count;
}

// To be called when a block is done.
static inline void go_on(const Job& job, const Tile& t) {
  for (int64_t m = 0; m < job.n_masks(); ++m) {
    Sight& s = t.sight[m];
    if (s.sees == 0) continue;
    s.chunk += s.end != 0;
    s.count = s.next;
  }
}

// Reads `n` cells of a mask, and hides those behind them; false: all are hidden.
static inline bool read_mask(const Tensor& mask, const char* p, int64_t n, float* out) {
  if (mask.type == DType::kF16 && mask.nb[0] == 2 && n == kCells) {
    uint64_t differ = 0;
    for (int64_t i = 0; i < kCells && differ == 0; i += 16) {
      uint64_t four[4];
      std::memcpy(four, p + 2 * i, sizeof four);
      for (const uint64_t x : four) differ |= x ^ 0xfc00fc00fc00fc00u;
    }
    if (differ == 0) return false;
  }
  load_floats(p, mask.type, mask.nb[0], n, out);
  for (int64_t i = n; i < kCells; ++i) out[i] = kHidden;
  return true;
}

// Reads the mask of the cells first..first + n into t.mask, where cells that are not there are
// hidden, and says what the rows see in t.sight and t.cells.
static inline Block look_at(const Job& job, const Tile& t, int64_t first, int64_t n) {
  const Tensor* mask = job.call.src[3];
  Block block = {first, n, 0, 0, 0, true};
  uint64_t seen = 0;
  uint64_t by_all = ~uint64_t{0};
  vf largest{};
  const int64_t n_masks = job.n_masks();
  for (int64_t row = 0; row < n_masks; ++row) {
    float* out = t.mask + row * kCells;
    uint64_t bits = 0;
    if (mask == nullptr) {
      for (int64_t i = 0; i < kCells; ++i) out[i] = i < n ? 0 : kHidden;
      bits = n == kCells ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    } else {
      const int64_t token = many_masks(job.call) ? job.token(row) : job.token(0) + row;
      const int64_t head = many_masks(job.call) ? job.head(row) % mask->ne[2] : 0;
      const char* p = row_data(*mask, {token, head, job.batch % mask->ne[3]});
      if (read_mask(*mask, p + first * mask->nb[0], n, out)) {
        bits = visible(out);
        for (int64_t i = 0; i < kCells; i += kLanes) largest = vmax(vabs(load(out + i)), largest);
      }
    }
    look(bits, &t.sight[row]);
    seen |= bits;
    by_all &= bits;
  }
  if (seen == 0) return block;
  block.masked = by_all != ~uint64_t{0} || hmax(largest) != 0.0f;
  block.begin = __builtin_ctzll(seen);
  block.end = kCells - __builtin_clzll(seen);
  for (; seen != 0; seen &= seen - 1) t.cells[block.seen++] = __builtin_ctzll(seen);
  return block;
}

}  // namespace weft::WEFT_TARGET
