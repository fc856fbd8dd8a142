// How attention is cut into units of work, and where each keeps its numbers.
#pragma once

#include "kernels/attention/attention_tile.h"
#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

inline constexpr int64_t kCells = 64;     // in a block
inline constexpr int64_t kMaxRows = 128;  // in a tile
inline constexpr int64_t kMinRows = 64;   // of a tile, before its cells are cut into parts
// So many rows at most read keys and values where they are; for more, a block is converted.
inline constexpr int64_t kFewRows = 16;
// Units that each thread should have, so that a slow one does not keep the others.
inline constexpr int64_t kUnits = 4;

// A row's sums are kept apart for each kChunkCells cells that it sees, and added in order: so cells
// can be cut between threads, and who computes what never shows. A chunk ends with a strip of
// kStrip cells of which the last one is seen. Nothing here depends on hidden cells, on how many
// there are, or on other rows: see docs/decisions.md.
inline constexpr int64_t kStrip = 16;
inline constexpr int64_t kStrips = kCells / kStrip;
inline constexpr int64_t kChunkCells = 512;
// Cells are cut for this many rows at most (of all heads), and for this much memory.
inline constexpr int64_t kChunkRows = 256;
inline constexpr int64_t kChunkBytes = int64_t{32} << 20;

static inline int64_t pad(int64_t n) { return (n + 15) / 16 * 16; }

static inline int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// A group is the heads that share a key head and a value head; its rows are token by token, the
// heads of a token side by side. A unit is a part of the chunks of a tile of rows, of one group or,
// where rows are few, of a bundle of groups: their keys are neighbours in the cache.
struct Plan {
  int64_t group;      // heads of a group
  int64_t groups;     // of heads
  int64_t rows;       // of a group
  int64_t tile;       // rows of a tile
  int64_t tiles;      // of a group
  int64_t bundle;     // groups of a unit
  int64_t bundles;    // of groups
  int64_t all_tiles;  // of all bundles and batches
  int64_t parts;      // of a tile's chunks
  int64_t chunks;     // of a row, at most

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

// A row's sums of a chunk: values, maximum, total.
static inline int64_t chunk_floats(const Call& call) { return pad(call.src[2]->ne[0]) + 2; }

static inline int64_t chunks_of(int64_t cells) { return max64(1, cells / kChunkCells + 1); }

// Bytes of the sums of all chunks of all of `rows` rows.
static inline int64_t chunk_bytes(const Call& call, int64_t rows) {
  return chunks_of(call.src[1]->ne[1]) * rows * chunk_floats(call) * int64_t{sizeof(float)};
}

// Whether heads have masks of their own.
static inline bool many_masks(const Call& call) {
  return call.src[3] != nullptr && call.src[3]->ne[2] > 1;
}

static inline Plan make_plan(const Call& call) {
  const Tensor& q = *call.src[0];
  const int64_t units = kUnits * max64(1, call.n_threads);
  const int64_t all_rows = q.ne[1] * q.ne[2] * q.ne[3];
  Plan p;
  p.group = group_size(call);
  p.groups = q.ne[2] / p.group;
  p.rows = p.group * q.ne[1];
  p.chunks = chunks_of(call.src[1]->ne[1]);
  const bool cuts = call.n_threads == 1 || (p.chunks > 2 && all_rows <= kChunkRows &&
                                            chunk_bytes(call, all_rows) <= kChunkBytes);
  const int64_t most_parts = cuts ? max64(1, p.chunks - 1) : 1;
  p.bundle = 1;
  if (p.few()) {
    p.tile = max64(1, p.rows);
    // heads with masks of their own do not look at cells together
    if (!many_masks(call)) {
      // a bundle for each thread, as one thread adds up the chunks of a bundle
      const int64_t all = p.groups * q.ne[3];
      const int64_t most = min64(p.groups, all / max64(1, call.n_threads));
      p.bundle = max64(1, min64(most, all * most_parts / units));
    }
  } else {
    const int64_t share = p.rows * p.groups * q.ne[3] / units;
    const int64_t wanted = max64(cuts ? kMinRows : kFewRows, min64(most_rows(call), share));
    p.tile = min64(p.rows, (wanted + 3) / 4 * 4);
  }
  p.tiles = (p.rows + p.tile - 1) / p.tile;
  p.bundles = (p.groups + p.bundle - 1) / p.bundle;
  p.all_tiles = p.tiles * p.bundles * q.ne[3];
  p.parts = call.n_threads == 1 ? 1 : max64(1, min64(most_parts, units / max64(1, p.all_tiles)));
  return p;
}

// What a row of the mask shows of a block, and how far its rows have got.
struct Sight {
  int32_t sees;   // whether there is a visible cell
  int32_t end;    // where in the block a chunk ends; 0: it does not
  int32_t chunk;  // that the block begins in
  int32_t count;  // visible cells of that chunk before the block
  int32_t next;   // visible cells of the last chunk behind the block
};

// A tile's state and buffers, in scratch. Rows are padded with zeros to whole vectors.
struct Tile {
  // of each group of the bundle: the chunk at work, and those before it
  float* q;           // [rows][pad(dk)], times the scale
  float* sum;         // [rows][pad(dv)], values weighted so far
  float* top;         // [rows] exponent of the largest weight so far
  float* total;       // [rows][kStrip] weights so far, a sum per lane
  float* done_sum;    // [rows][pad(dv)]
  float* done_top;    // [rows]
  float* done_total;  // [rows]
  // of the one at work
  float* weights;  // [rows][kCells]: scores, then their exponentials
  float* fade;     // [rows] what the weights so far shrink by
  float* keys;     // [kCells][pad(dk)], as they are or turned
  float* values;   // [kCells][pad(dv)]
  float* turn;     // [kLanes][pad(dk)]
  // of all groups
  float* mask;     // [rows][kCells], or a row per token where heads share it
  Sight* sight;    // of each row of the mask
  int32_t* masks;  // [rows] which row of the mask is whose
  int32_t* cells;  // [kCells] visible ones of the block, in order

  const Sight& sees(int64_t row) const { return sight[masks[row]]; }
};

// Bytes of a tile of `rows` rows in bundles with `all` rows; sets the pointers of `t`, if given.
static inline size_t lay_out(const Call& call, int64_t rows, int64_t all, char* scratch, Tile* t) {
  const int64_t dk = pad(call.src[0]->ne[0]);
  const int64_t dv = pad(call.src[2]->ne[0]);
  constexpr int64_t kSight = sizeof(Sight) / sizeof(float);
  const int64_t sizes[] = {
      all * dk,      all * dv,      pad(all),           all * kStrip,  // chunk at work
      all * dv,      pad(all),      pad(all),                          // those before it
      rows * kCells, pad(rows),     kCells * dk,        kCells * dv,   // group at work
      kLanes * dk,   rows * kCells, pad(rows * kSight), pad(rows),    kCells,
  };
  constexpr int kParts = sizeof sizes / sizeof sizes[0];
  float* parts[kParts] = {};
  auto* p = reinterpret_cast<float*>(scratch);
  int64_t used = 0;
  for (int i = 0; i < kParts; ++i) {
    if (t != nullptr) parts[i] = p + used;
    used += sizes[i];
  }
  if (t != nullptr) {
    *t = {parts[0],
          parts[1],
          parts[2],
          parts[3],
          parts[4],
          parts[5],
          parts[6],
          parts[7],
          parts[8],
          parts[9],
          parts[10],
          parts[11],
          parts[12],
          reinterpret_cast<Sight*>(parts[13]),
          reinterpret_cast<int32_t*>(parts[14]),
          reinterpret_cast<int32_t*>(parts[15])};
  }
  return static_cast<size_t>(used) * sizeof(float);
}

// The state of another group of the bundle, each with `rows` rows.
static inline Tile of_group(const Call& call, const Tile& t, int64_t index, int64_t rows) {
  const int64_t dv = pad(call.src[2]->ne[0]);
  Tile out = t;
  out.q += index * rows * pad(call.src[0]->ne[0]);
  out.sum += index * rows * dv;
  out.top += index * rows;
  out.total += index * rows * kStrip;
  out.done_sum += index * rows * dv;
  out.done_top += index * rows;
  out.done_total += index * rows;
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
  const int64_t rows = min64(most_rows(call), (q.ne[1] * q.ne[2] + 3) / 4 * 4);
  return lay_out(call, rows, max64(rows, bundle_rows(call)), nullptr, nullptr);
}

// The sums of chunks, in memory that the threads share.
static inline size_t attention_shared(const Call& call) {
  const Tensor& q = *call.src[0];
  if (call.n_threads == 1 || chunks_of(call.src[1]->ne[1]) <= 2) return 0;
  const int64_t rows = min64(kChunkRows, q.ne[1] * q.ne[2] * q.ne[3]);
  return static_cast<size_t>(min64(kChunkBytes, chunk_bytes(call, rows)));
}

static inline int64_t attention_tickets(const Call& call) {
  return attention_shared(call) == 0 ? 0 : kUnits * int64_t{call.n_threads};
}

}  // namespace weft::WEFT_TARGET
