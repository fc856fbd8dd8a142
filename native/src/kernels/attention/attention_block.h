// The work of a tile of query rows on a block of cells: scores, weights, and their sums. Only the
// rows that see some cell of the block compute it. A part of attention.cpp, which alone includes
// it.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_cache.h"
#include "kernels/attention/attention_sums.h"

namespace weft::WEFT_TARGET {

namespace {

// The chunks of one of the parts that a tile is divided into. A part has runs of neighbouring
// chunks, because the keys and values that follow are prefetched.
struct Share {
  int64_t parts;
  int64_t part;
  int64_t run;  // chunks per run

  Share(const Job& job, const Tile& t, int64_t of_part)
      : parts(job.plan.parts), part(of_part), run(1) {
    if (parts == 1) return;
    const int64_t chunks = (most_seen(job, t) + kChunkCells - 1) / kChunkCells;
    run = max64(1, (chunks + parts / 2) / parts);
  }
  bool has(int64_t chunk) const { return parts == 1 || chunk / run % parts == part; }
  // Whether a row computes some of the current block in this part.
  bool has(const Sight& s) const {
    return s.sees != 0 && (has(s.chunk) || (s.end != 0 && has(s.chunk + 1)));
  }
  // Whether any row of tile `t` has work in this block and part.
  bool has(const Tile& t, const Block& block) const {
    for (int64_t m = block.low; m < block.high; ++m) {
      if (has(t.sight[m])) return true;
    }
    return false;
  }
};

// The work of the rows first..first + n of a tile on a block that all of them see.
struct Run {
  const Job& job;
  const Tile& t;
  const Cache& key;
  const Cache& value;
  const Block& block;
  const Share& share;
  int64_t first, n;

  bool few() const { return n <= kFewRows; }
  bool mine(int64_t chunk) const { return share.has(chunk); }

  // Computes the scores of the cells begin..end (multiples of kLanes).
  void score(int64_t begin, int64_t end) const {
    const Matrix q = {t.q + first * key.width, key.width, n};
    float* out = t.weights + first * kCells;
    if (few()) {
      DType type;
      const Rows keys = key.rows(t, block, n, t.keys, type);
      scores(type, q, keys, begin, end, key.lanes, out, kCells);
      return;
    }
    for (int64_t cell = begin; cell < end; cell += kLanes) {
      int64_t stride = key.width;
      const float* rows =
          cell + kLanes <= block.n ? key.floats(block.first + cell, stride) : nullptr;
      if (rows == nullptr) {
        for (int64_t i = 0; i < kLanes; ++i) {
          key.read(block.first + min64(cell + i, block.n - 1), t.turn + i * key.width);
        }
        rows = t.turn;
      }
      turn_keys(rows, stride, key.lanes, t.keys + cell * key.width);
    }
    Ahead ahead = rows_ahead(value.cells(block.first, block.n), multiply_steps(n, begin, end));
    multiply_block(q, t.keys, begin, end, key.width, key.lanes, out, kCells, ahead);
  }

  // The values of the block as `add` takes them; hidden cells may be zeros.
  Rows values(DType& type) const {
    if (few()) return value.rows(t, block, n, t.values, type);
    type = DType::kF32;
    int64_t next = 0;
    for (int64_t i = block.begin; i < block.end; ++i) {
      float* out = t.values + i * value.width;
      if (t.cells[next] == i) {
        value.read(block.first + i, out);
        ++next;
      } else {
        for (int64_t d = 0; d < value.width; ++d) out[d] = 0;
      }
    }
    return {reinterpret_cast<const char*>(t.values), value.width * 4, kCells, value.width * 4, 0};
  }

  // Adds the weighted values of the cells begin..end to the sums.
  void add(DType type, const Rows& rows, int64_t begin, int64_t end, Ahead& ahead) const {
    const float* w = t.weights + first * kCells;
    float* sum = t.sum + first * value.width;
    if (few()) {
      Picked cells = {t.cells, block.n_seen};
      while (cells.n > 0 && cells.cell[0] < begin) ++cells.cell, --cells.n;
      while (cells.n > 0 && cells.cell[cells.n - 1] >= end) --cells.n;
      add_weighted(type, {w, kCells, n}, rows, cells, value.lanes, t.fade + first, sum,
                   value.width);
    } else {
      add_block({w + begin, kCells, n}, t.values + begin * value.width, value.width, end - begin,
                value.lanes, t.fade + first, sum, value.width, ahead);
    }
    for (int64_t r = first; r < first + n; ++r) t.fade[r] = 1;
  }

  // Ends a chunk of a row within the block, and starts the next chunk.
  void cross(int64_t row, int64_t end) const {
    const Sight& s = t.sees(row);
    if (mine(s.chunk)) end_chunk(job, t, row, s.chunk);
    start_chunk(job, t, row);
    vf total{};
    for (int64_t i = s.end; i < end; i += kLanes) total += load(t.weights + row * kCells + i);
    store(t.total + row * kStrip, total);
  }

  void attend() const {
    const int64_t begin = block.begin / kLanes * kLanes;
    const int64_t end = (block.end + kLanes - 1) / kLanes * kLanes;
    score(begin, end);
    bool cuts[kStrips + 1] = {};
    for (int64_t r = first; r < first + n; ++r) {
      const Sight& s = t.sees(r);
      cuts[s.end / kStrip] = true;
      weigh(job, t, r, block, begin, end, s.end == 0 ? end : s.end);
    }
    DType type;
    const Rows rows = values(type);
    // Few rows prefetch what they read in place.
    Ahead ahead;
    if (!few()) {
      ahead = rows_ahead(key.cells(block.first + kCells, kCells), add_steps(n, value.lanes));
    }
    const Sight& s = t.sees(first);
    int64_t from = block.begin;
    for (int64_t cut = kStrip; from < block.end; cut += kStrip) {
      if (!cuts[cut / kStrip] && cut < block.end) continue;
      const int64_t to = min64(cut, block.end);
      if (mine(s.chunk + (s.end != 0 && from >= s.end))) add(type, rows, from, to, ahead);
      for (int64_t r = first; cuts[cut / kStrip] && r < first + n; ++r) {
        if (t.sees(r).end == cut) cross(r, end);
      }
      from = to;
    }
  }
};

// Divides the rows that see a block into runs, and computes each. Where chunks are shared between
// threads, the rows of a run are in the same chunk.
void attend_block(const Share& share, const Job& job, const Tile& t, const Block& block) {
  const Cache key(*job.call.src[1], job);
  const Cache value(*job.call.src[2], job);
  int64_t first = job.row_of(block.low);
  const int64_t last = job.row_of(block.high);
  while (first < last) {
    const Sight& s = t.sees(first);
    int64_t end = first + 1;
    if (!share.has(s)) {
      first = end;
      continue;
    }
    while (end < last) {
      const Sight& other = t.sees(end);
      if (other.sees == 0) break;
      if (share.parts > 1 && (other.chunk != s.chunk || other.end != s.end)) break;
      ++end;
    }
    Run{job, t, key, value, block, share, first, end - first}.attend();
    first = end;
  }
}

}  // namespace

}  // namespace weft::WEFT_TARGET
