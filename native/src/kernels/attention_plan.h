// How attention is cut into units of work, and where each keeps its numbers.
#pragma once

#include "kernels/attention_tile.h"
#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

inline constexpr int64_t kCells = 64;     // in a block
inline constexpr int64_t kMaxRows = 128;  // in a tile
inline constexpr int64_t kMinRows = 64;   // of a tile, before its cells are cut into parts
// Tiles up to this many rows read keys and values where they are, bigger ones convert each block.
inline constexpr int64_t kFewRows = 16;
inline constexpr int64_t kPartCells = 2 * kCells;  // of a part, at least
// Units that each thread should have, so that a slow one does not keep the others.
inline constexpr int64_t kUnits = 4;

static inline int64_t pad(int64_t n) { return (n + 15) / 16 * 16; }

static inline int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// Rows that a tile of `n` rows keeps numbers of.
static inline int64_t kept_rows(int64_t n) {
  return n <= kFewRows ? n : (n + kTileRows - 1) / kTileRows * kTileRows;
}

// A group is the heads that share a key head and a value head; its rows are token by token, the
// heads of a token side by side. A unit is a part of the cells of a tile of rows, of one group or,
// where rows are few, of a bundle of groups: their keys are neighbours in the cache.
struct Plan {
  int64_t group;       // heads of a group
  int64_t groups;      // of heads
  int64_t rows;        // of a group
  int64_t tile;        // rows of a tile
  int64_t tiles;       // of a group
  int64_t bundle;      // groups of a unit
  int64_t bundles;     // of groups
  int64_t all_tiles;   // of all bundles and batches
  int64_t parts;       // of a tile's cells
  int64_t part_cells;  // cells of a part

  bool few() const { return rows <= kFewRows; }
};

// Rows of a tile at most: long rows would push each other out of the second-level cache.
static inline int64_t most_rows(const Call& call) {
  return call.src[0]->ne[0] + call.src[2]->ne[0] > 512 ? kMaxRows / 2 : kMaxRows;
}

static inline int64_t group_size(const Call& call) {
  const int64_t heads = call.src[0]->ne[2];
  return gcd(heads / call.src[1]->ne[2], heads / call.src[2]->ne[2]);
}

static inline Plan make_plan(const Call& call) {
  const Tensor& q = *call.src[0];
  const int64_t units = kUnits * max64(1, call.n_threads);
  const int64_t cells = call.src[1]->ne[1];
  const int64_t most_parts = max64(1, cells / kPartCells);
  Plan p;
  p.group = group_size(call);
  p.groups = q.ne[2] / p.group;
  p.rows = p.group * q.ne[1];
  if (p.few()) {
    p.tile = max64(1, p.rows);
    p.bundle = max64(1, min64(p.groups, p.groups * q.ne[3] * most_parts / units));
  } else {
    const int64_t share = p.rows * p.groups * q.ne[3] / units;
    const int64_t wanted = max64(kMinRows, min64(most_rows(call), share));
    p.tile = min64(p.rows, kept_rows(wanted));
    p.bundle = 1;
  }
  p.tiles = (p.rows + p.tile - 1) / p.tile;
  p.bundles = (p.groups + p.bundle - 1) / p.bundle;
  p.all_tiles = p.tiles * p.bundles * q.ne[3];
  p.parts = call.n_threads == 1 ? 1 : max64(1, min64(most_parts, units / max64(1, p.all_tiles)));
  p.part_cells = max64(kCells, ((cells + p.parts - 1) / p.parts + kCells - 1) / kCells * kCells);
  p.parts = max64(1, (cells + p.part_cells - 1) / p.part_cells);
  return p;
}

// A tile's state and buffers, in scratch. Rows are padded with zeros to whole vectors.
struct Tile {
  // of each group of the bundle
  float* q;      // [rows][pad(dk)], times the scale
  float* sum;    // [rows][pad(dv)], values weighted so far
  float* top;    // [rows]
  float* total;  // [rows]
  // of the one at work
  float* weights;  // [rows][kCells]: scores, then their exponentials
  float* fade;     // [rows] what the weights so far shrink by in this block
  float* mask;     // [rows][kCells], or a row per token where heads share it
  float* keys;     // [kCells][pad(dk)] or [pad(dk)][kCells]
  float* values;   // [kCells][pad(dv)]
  float* turn;     // [8][pad(dk)]
  int64_t* cells;  // [kCells] visible cells of the block, in order
  int64_t* order;  // [kCells] 0, 1, 2, ...
};

// Bytes of a tile of `rows` rows in bundles with `all` rows; sets the pointers of `t`, if given.
static inline size_t lay_out(const Call& call, int64_t rows, int64_t all, char* scratch, Tile* t) {
  const int64_t dk = pad(call.src[0]->ne[0]);
  const int64_t dv = pad(call.src[2]->ne[0]);
  constexpr int kParts = 10;
  const int64_t sizes[kParts] = {
      all * dk,  all * dv,      pad(all),    pad(all),    rows * kCells,
      pad(rows), rows * kCells, kCells * dk, kCells * dv, 8 * dk,
  };
  float* parts[kParts] = {};
  auto* p = reinterpret_cast<float*>(scratch);
  int64_t used = 0;
  for (int i = 0; i < kParts; ++i) {
    if (t != nullptr) parts[i] = p + used;
    used += sizes[i];
  }
  const size_t bytes = static_cast<size_t>(used) * sizeof(float);
  if (t != nullptr) {
    auto* cells = reinterpret_cast<int64_t*>(scratch + bytes);
    *t = {parts[0], parts[1], parts[2], parts[3], parts[4], parts[5],
          parts[6], parts[7], parts[8], parts[9], cells,    cells + kCells};
  }
  return bytes + 2 * static_cast<size_t>(kCells) * sizeof(int64_t);
}

// The state of another group of the bundle, each with `rows` rows.
static inline Tile of_group(const Call& call, const Tile& t, int64_t index, int64_t rows) {
  Tile out = t;
  out.q += index * rows * pad(call.src[0]->ne[0]);
  out.sum += index * rows * pad(call.src[2]->ne[0]);
  out.top += index * rows;
  out.total += index * rows;
  return out;
}

// Rows of a bundle of few rows, at the most.
static inline int64_t bundle_rows(const Call& call) {
  const Tensor& q = *call.src[0];
  const int64_t group = group_size(call);
  return q.ne[2] / group * min64(kFewRows, group * q.ne[1]);
}

static inline size_t attention_scratch(const Call& call) {
  const Tensor& q = *call.src[0];
  const int64_t rows = kept_rows(min64(most_rows(call), q.ne[1] * q.ne[2]));
  return lay_out(call, rows, max64(rows, bundle_rows(call)), nullptr, nullptr);
}

// A part's results, in memory that the threads share: sums, then maxima and totals of the rows.
static inline int64_t part_floats(const Call& call, int64_t rows) {
  return rows * (pad(call.src[2]->ne[0]) + 2);
}

// Cells are only cut where tiles are few, and then tiles have at most kMinRows rows.
static inline size_t attention_shared(const Call& call) {
  const Tensor& q = *call.src[0];
  if (call.n_threads == 1 || call.src[1]->ne[1] < 2 * kPartCells) return 0;
  const int64_t rows = max64(kept_rows(min64(kMinRows, q.ne[1] * q.ne[2])), bundle_rows(call));
  return static_cast<size_t>(kUnits * call.n_threads * part_floats(call, rows)) * sizeof(float);
}

static inline int64_t attention_tickets(const Call& call) {
  return attention_shared(call) == 0 ? 0 : kUnits * int64_t{call.n_threads};
}

}  // namespace weft::WEFT_TARGET
