// Finds which cells of a block the rows of a tile see.
#pragma once

#include "kernels/attention/attention_plan.h"
#include "kernels/elementwise/reductions.h"
#include "kernels/simd/lanes.h"

namespace weft::WEFT_TARGET {

inline constexpr float kHidden = -__builtin_inff();

// How many bytes ahead f16 masks are prefetched: two blocks.
inline constexpr int64_t kMaskAhead = 2 * kCells * 2;

// The rows of a tile: the rows first..first + n_rows of one group.
struct Job {
  const Call& call;
  const Plan& plan;
  int64_t group;
  int64_t batch;
  int64_t first;
  int64_t n_rows;
  int64_t first_group;  // of those that the unit computes in each block
  int64_t n_groups;

  int64_t head(int64_t row) const { return group * plan.group + (first + row) % plan.group; }
  int64_t token(int64_t row) const { return (first + row) / plan.group; }
  // The rows of the mask: one per row of the tile where each head has its own mask, otherwise one
  // per token; a single one where there is no mask.
  int64_t n_masks() const {
    if (call.src[3] == nullptr) return 1;
    return many_masks(call) ? n_rows : token(n_rows - 1) - token(0) + 1;
  }
  // The first row of the tile whose row of the mask is `m` or a later one.
  int64_t row_of(int64_t m) const {
    if (m <= 0) return 0;
    if (m >= n_masks()) return n_rows;
    return many_masks(call) ? m : (token(0) + m) * plan.group - first;
  }
};

// A block of cells. A cell counts as visible when some row of the tile sees it.
struct Block {
  int64_t first;       // its first cell
  int64_t n;           // cells of it that exist
  int64_t begin, end;  // the range of its visible cells, counted from its first cell
  uint64_t seen;       // bit i is set when cell i of the block is visible
  bool masked;         // false when all rows see all cells and the mask adds 0
  bool read;           // whether Tile::mask holds its mask
  int64_t low, high;   // the rows of the mask that see a cell of it are among low..high
  int64_t n_seen;      // entries of Tile::cells
};

// Bit i is set when cell i of a block is not hidden by a row of its mask.
static inline uint64_t visible(const float* mask) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < kCells; i += kLanes) {
    bits |= unlike_bits(load(mask + i), kHidden) << i;
  }
  return bits;
}

// Sets what a row of the mask shows of a block, from the bits of its visible cells.
static inline void set_sight(uint64_t bits, Sight* s) {
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

// Moves the sights behind a block.
static inline void leave_block(const Tile& t, const Block& block) {
  for (int64_t m = block.low; m < block.high; ++m) {
    Sight& s = t.sight[m];
    if (s.sees == 0) continue;
    s.chunk += s.end != 0;
    s.count = s.next;
  }
}

// Whether `n` cells of a mask are a whole block of adjacent f16 numbers, which visible_halves
// reads.
static inline bool is_halves(const Tensor& mask, int64_t n) {
  return mask.type == DType::kF16 && mask.nb[0] == 2 && n == kCells;
}

// `visible` for such a block. Sets `*adds` when the mask adds something other than 0 to a score.
static inline uint64_t visible_halves(const char* p, bool* adds) {
  constexpr uint16_t kHiddenHalf = 0xfc00;
  uint64_t bits = 0;
#if defined(__AVX512BW__)
  uint64_t zeros = 0;
  for (int64_t i = 0; i < kCells; i += 32) {
    const __m512i x = _mm512_loadu_si512(p + 2 * i);
    const __mmask32 some = _mm512_cmpneq_epi16_mask(x, _mm512_set1_epi16(kHiddenHalf - 0x10000));
    bits |= uint64_t{some} << i;
    zeros |= uint64_t{_mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x7fff))} << i;
  }
#else
  uint64_t four[kCells / 4];
  std::memcpy(four, p, sizeof four);
  uint64_t zeros = 0;
  uint64_t hidden = 0;
  for (const uint64_t x : four) zeros |= x, hidden |= x ^ 0xfc00fc00fc00fc00u;
  if (hidden == 0) return 0;
  if ((zeros & 0x7fff7fff7fff7fffu) == 0) return ~uint64_t{0};
  zeros = 0;
  uint16_t h[kCells];
  std::memcpy(h, p, sizeof h);
  for (int64_t i = 0; i < kCells; ++i) {
    bits |= uint64_t{h[i] != kHiddenHalf} << i;
    zeros |= uint64_t{(h[i] & 0x7fff) == 0} << i;
  }
#endif
  *adds |= (bits & ~zeros) != 0;
  return bits;
}

// The address of cell `first` in a row of the mask.
static inline const char* mask_row(const Job& job, int64_t row, int64_t first) {
  const Tensor& mask = *job.call.src[3];
  const bool many = many_masks(job.call);
  const int64_t token = many ? job.token(row) : job.token(0) + row;
  const int64_t head = many ? job.head(row) % mask.ne[2] : 0;
  return row_data(mask, {token, head, job.batch % mask.ne[3]}) + first * mask.nb[0];
}

// load_floats for rows as short as those of attention, which a call of memcpy takes longer to begin
// with than to copy.
static inline void load_short(const char* p, DType type, int64_t stride, int64_t n, float* out) {
  if (type != DType::kF32 || stride != 4 || n < kLanes) {
    load_floats(p, type, stride, n, out);
    return;
  }
  const auto* in = reinterpret_cast<const float*>(p);
  for (int64_t i = 0; i + kLanes <= n; i += kLanes) store(out + i, load(in + i));
  store(out + n - kLanes, load(in + n - kLanes));  // the last numbers, some of them again
}

// The span of a row of an f16 mask over `blocks` whole blocks, found from both of its ends.
static inline Span span_of(const char* mask, int64_t blocks) {
  constexpr int64_t kBytes = 2 * kCells;
  bool adds = false;
  int64_t begin = 0;
  while (begin < blocks && visible_halves(mask + begin * kBytes, &adds) == 0) ++begin;
  int64_t end = blocks;
  while (end > begin && visible_halves(mask + (end - 1) * kBytes, &adds) == 0) --end;
  return {static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

// Whether the first and the last row of a tile share less than half of the cells that either sees.
// It is asked of whole f16 masks of many blocks alone.
static inline bool sees_apart(const Job& job) {
  const Tensor* mask = job.call.src[3];
  const int64_t cells = job.call.src[1]->ne[1];
  if (mask == nullptr || !is_halves(*mask, kCells) || job.n_masks() == 1) return false;
  const char* p = mask_row(job, 0, 0);
  const char* q = mask_row(job, job.n_masks() - 1, 0);
  int64_t by_first = 0, by_last = 0, by_both = 0;
  bool adds = false;
  for (int64_t i = 0; i + kCells <= cells; i += kCells) {
    const uint64_t a = visible_halves(p + 2 * i, &adds);
    const uint64_t b = visible_halves(q + 2 * i, &adds);
    if ((a | b) == 0) continue;
    by_first += __builtin_popcountll(a);
    by_last += __builtin_popcountll(b);
    by_both += __builtin_popcountll(a & b);
  }
  return 2 * by_both < min64(by_first, by_last);
}

// Sets up t.sight, t.spans and t.masks. Many sequences in one cache see little of it each, so what
// is outside a row's span is looked at here, once and in order, instead of in every block.
static inline void start_sights(const Job& job, const Tile& t) {
  const Tensor* mask = job.call.src[3];
  const int64_t cells = job.call.src[1]->ne[1];
  const int64_t n_masks = job.n_masks();
  const int64_t blocks = cells / kCells;
  const int32_t all = static_cast<int32_t>((cells + kCells - 1) / kCells);
  for (int64_t m = 0; m < n_masks; ++m) {
    t.sight[m] = {};
    t.spans[m] = {0, all};
    if (mask == nullptr || !is_halves(*mask, kCells)) continue;
    const Span whole = span_of(mask_row(job, m, 0), blocks);
    t.spans[m] = all == blocks ? whole : Span{whole.begin, all};
  }
  for (int64_t r = 0; r < job.n_rows; ++r) {
    const int64_t token = job.token(r) - job.token(0);
    t.masks[r] = n_masks == 1 ? 0 : static_cast<int32_t>(many_masks(job.call) ? r : token);
  }
}

// Reads `n` cells of a row of the mask as floats, and hides the cells of the block behind them.
static inline void read_mask(const Job& job, int64_t row, int64_t first, int64_t n, float* out) {
  const Tensor* mask = job.call.src[3];
  if (mask == nullptr) {
    for (int64_t i = 0; i < n; ++i) out[i] = 0;
  } else {
    load_short(mask_row(job, row, first), mask->type, mask->nb[0], n, out);
  }
  for (int64_t i = n; i < kCells; ++i) out[i] = kHidden;
}

// The block of the cells first..first + n. Sets t.sight to what the rows see of it; cells that do
// not exist are hidden.
static inline Block inspect_block(const Job& job, const Tile& t, int64_t first, int64_t n) {
  const Tensor* mask = job.call.src[3];
  const bool halves = mask != nullptr && is_halves(*mask, n);
  const int64_t n_masks = job.n_masks();
  Block block = {first, n, 0, 0, 0, false, !halves, n_masks, 0, 0};
  uint64_t by_all = ~uint64_t{0};
  vf largest{};
  for (int64_t row = 0; row < n_masks; ++row) {
    if (!t.spans[row].has(first / kCells)) {
      t.sight[row].sees = 0;
      by_all = 0;
      continue;
    }
    uint64_t bits = 0;
    if (halves) {
      const char* p = mask_row(job, row, first);
      // The rows of a long mask are too far apart for the processor to foresee.
      __builtin_prefetch(p + kMaskAhead, 0, 2);
      __builtin_prefetch(p + kMaskAhead + 64, 0, 2);
      bits = visible_halves(p, &block.masked);
    } else {
      float* out = t.mask + row * kCells;
      read_mask(job, row, first, n, out);
      bits = visible(out);
      for (int64_t i = 0; i < kCells; i += kLanes) largest = vmax(vabs(load(out + i)), largest);
    }
    set_sight(bits, &t.sight[row]);
    if (bits != 0) {
      block.low = min64(block.low, row);
      block.high = row + 1;
    }
    block.seen |= bits;
    by_all &= bits;
  }
  block.masked |= by_all != ~uint64_t{0};
  block.masked |= hmax(largest) != 0.0f;
  return block;
}

// Completes a block that is going to be computed: its range, t.cells, and its mask in t.mask.
static inline void open_block(const Job& job, const Tile& t, Block* block) {
  block->begin = __builtin_ctzll(block->seen);
  block->end = kCells - __builtin_clzll(block->seen);
  block->n_seen = 0;
  if (block->seen == ~uint64_t{0}) {
    for (int32_t i = 0; i < kCells; ++i) t.cells[i] = i;
    block->n_seen = kCells;
  } else {
    for (uint64_t bits = block->seen; bits != 0; bits &= bits - 1) {
      t.cells[block->n_seen++] = __builtin_ctzll(bits);
    }
  }
  if (!block->masked || block->read) return;
  for (int64_t row = block->low; row < block->high; ++row) {
    if (t.sight[row].sees == 0) continue;
    read_mask(job, row, block->first, block->n, t.mask + row * kCells);
  }
}

// An upper bound on the number of cells that a row sees: the exact number (but for the last,
// partial block) where the mask is f16, otherwise all cells.
static inline int64_t most_seen(const Job& job, const Tile& t) {
  const Tensor* mask = job.call.src[3];
  const int64_t cells = job.call.src[1]->ne[1];
  if (mask == nullptr || !is_halves(*mask, kCells)) return cells;
  int64_t most = 0;
  for (int64_t row = 0; row < job.n_masks(); ++row) {
    const char* p = mask_row(job, row, 0);
    int64_t n = cells % kCells;
    bool adds = false;
    const int64_t end = min64(t.spans[row].end, cells / kCells);
    for (int64_t i = t.spans[row].begin; i < end; ++i) {
      n += __builtin_popcountll(visible_halves(p + 2 * kCells * i, &adds));
    }
    most = max64(most, n);
  }
  return most;
}

}  // namespace weft::WEFT_TARGET
