// How attention is cut into units of work, and the layout of a unit's scratch memory.
#pragma once

#include "kernels/attention/attention_tile.h"
#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

inline constexpr int64_t kCells = 64;     // cells in a block
inline constexpr int64_t kMaxRows = 256;  // the most rows in a tile
// A tile has at least this many rows, where there are as many, before its cells are cut into parts.
inline constexpr int64_t kMinRows = 64;
// Up to this many rows read keys and values in place. For more rows, each block is converted first.
inline constexpr int64_t kFewRows = 16;
// How far ahead few rows prefetch keys and values: much less than the second-level cache holds.
inline constexpr int64_t kAheadBytes = int64_t{32} << 10;
// Units per thread: enough that threads finish together although some are slower.
inline constexpr int64_t kUnits = 4;

// The cells that a row sees are divided into chunks of about kChunkCells. Each chunk has its own
// sums, and the sums of chunks are added in order. So several threads can share the cells of a row,
// and the result does not depend on which thread computed what.
//
//     cells   |  block of kCells  |  block of kCells  |  block of kCells  | ...
//     strips  |    |    |    |    |    |    |    |    |    |    |    |    |
//     chunks  |<------------- chunk 0 ---------->|<------- chunk 1 ...
//
// A chunk ends with the first strip of kStrip cells at whose end the row has seen kChunkCells cells
// or more, and whose last cell it sees. Where chunks end depends neither on hidden cells nor on
// other rows: see docs/decisions.md.
inline constexpr int64_t kStrip = 16;
inline constexpr int64_t kStrips = kCells / kStrip;
inline constexpr int64_t kChunkCells = 512;
// Cells are shared between threads only for up to this many rows (of all heads together), and up to
// this many bytes for the sums of their chunks.
inline constexpr int64_t kChunkRows = 256;
inline constexpr int64_t kChunkBytes = int64_t{32} << 20;

// `n` floats rounded up to whole vectors of every target.
static inline int64_t pad(int64_t n) { return (n + 15) / 16 * 16; }

static inline int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// A group is the heads that share a key head and a value head. Its rows are the queries of these
// heads, token by token, with the heads of a token side by side. A unit of work is a part of the
// chunks of a tile of rows. The tile belongs to one group or, where rows are few, to a bundle of
// groups, whose keys are neighbours in the cache.
struct Plan {
  int64_t group;      // heads per group
  int64_t groups;     // groups per batch
  int64_t rows;       // rows per group
  int64_t tile;       // rows per tile
  int64_t tiles;      // tiles per group
  int64_t bundle;     // groups per unit
  int64_t bundles;    // bundles per batch
  int64_t all_tiles;  // tiles of all bundles and batches
  int64_t parts;      // units per tile: its chunks are divided into this many parts
  int64_t chunks;     // the most chunks that a row can have

  bool few() const { return rows <= kFewRows; }
};

// The most rows in a tile. More long rows would push each other out of the second-level cache.
static inline int64_t most_rows(const Call& call) {
  return call.src[0]->ne[0] + call.src[2]->ne[0] > 512 ? kMaxRows / 2 : kMaxRows;
}

static inline int64_t group_size(const Call& call) {
  const int64_t heads = call.src[0]->ne[2];
  return gcd(heads / call.src[1]->ne[2], heads / call.src[2]->ne[2]);
}

// The floats of a row's sums of one chunk: the weighted values, the maximum and the total.
static inline int64_t chunk_floats(const Call& call) { return pad(call.src[2]->ne[0]) + 2; }

static inline int64_t chunks_of(int64_t cells) { return max64(1, cells / kChunkCells + 1); }

// The bytes of the sums of all chunks of `rows` rows.
static inline int64_t chunk_bytes(const Call& call, int64_t rows) {
  return chunks_of(call.src[1]->ne[1]) * rows * chunk_floats(call) * int64_t{sizeof(float)};
}

// Whether each head has its own mask.
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
    // The groups of a bundle inspect the mask once, so they must share it.
    if (!many_masks(call)) {
      // At least one bundle per thread, as a single thread adds up the chunks of a bundle.
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

// The part of the current block that one row of the mask shows to its rows of queries, and the
// chunk that they are in.
struct Sight {
  int32_t sees;   // whether a cell of the block is visible
  int32_t end;    // where in the block a chunk ends; 0 when none does
  int32_t chunk;  // the chunk that the block begins in
  int32_t count;  // visible cells of that chunk before the block
  int32_t next;   // visible cells of the chunk that the block ends in, up to the end of the block
};

// The blocks begin..end of cells outside which a row of the mask shows nothing.
struct Span {
  int32_t begin, end;

  bool has(int64_t block) const { return begin <= block && block < end; }
};

// The state and the buffers of a tile, in scratch memory. dk and dv are the lengths of keys and
// values; rows are padded with zeros to whole vectors.
struct Tile {
  // For each group of the bundle: its queries, the sums of the current chunk, and the sums of all
  // chunks before it.
  float* q;           // [rows][pad(dk)], multiplied by the scale
  float* sum;         // [rows][pad(dv)], the sum of the weighted values
  float* top;         // [rows], the binary exponent of the largest weight
  float* total;       // [rows][kStrip], the sum of the weights, in kStrip lanes
  float* past_sum;    // [rows][pad(dv)]
  float* past_top;    // [rows]
  float* past_total;  // [rows]
  // For the current group.
  float* weights;  // [rows][kCells], scores, then their exponentials
  float* fade;     // [rows], the factor that the sums so far shrink by
  float* keys;     // [kCells][pad(dk)], as in the cache, or turned (attention_tile.h)
  float* values;   // [kCells][pad(dv)]
  float* turn;     // [kLanes][pad(dk)], keys that are being turned
  // For all groups.
  float* mask;     // [rows][kCells], or one row per token where heads share the mask
  Sight* sight;    // [rows of the mask]
  Span* spans;     // [rows of the mask]
  int32_t* masks;  // [rows], the row of the mask for each row of queries
  int32_t* cells;  // [kCells], the visible cells of the block, in order

  const Sight& sees(int64_t row) const { return sight[masks[row]]; }
};

// The bytes of a tile of `rows` rows in a bundle of `all` rows. Sets the pointers of `t` to parts
// of `scratch` unless `t` is nullptr.
static inline size_t lay_out(const Call& call, int64_t rows, int64_t all, char* scratch, Tile* t) {
  const int64_t dk = pad(call.src[0]->ne[0]);
  const int64_t dv = pad(call.src[2]->ne[0]);
  constexpr int64_t kSight = sizeof(Sight) / sizeof(float);
  constexpr int64_t kSpan = sizeof(Span) / sizeof(float);
  const int64_t sizes[] = {
      all * dk,      all * dv,      pad(all),           all * kStrip,  // the current chunk
      all * dv,      pad(all),      pad(all),                          // the chunks before it
      rows * kCells, pad(rows),     kCells * dk,        kCells * dv,   // the current group
      kLanes * dk,   rows * kCells, pad(rows * kSight), pad(rows * kSpan), pad(rows), kCells,
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
          reinterpret_cast<Span*>(parts[14]),
          reinterpret_cast<int32_t*>(parts[15]),
          reinterpret_cast<int32_t*>(parts[16])};
  }
  return static_cast<size_t>(used) * sizeof(float);
}

// The state of group number `index` of the bundle, whose groups have `rows` rows each.
static inline Tile of_group(const Call& call, const Tile& t, int64_t index, int64_t rows) {
  const int64_t dv = pad(call.src[2]->ne[0]);
  Tile out = t;
  out.q += index * rows * pad(call.src[0]->ne[0]);
  out.sum += index * rows * dv;
  out.top += index * rows;
  out.total += index * rows * kStrip;
  out.past_sum += index * rows * dv;
  out.past_top += index * rows;
  out.past_total += index * rows;
  return out;
}

// The most rows that a bundle can have.
static inline int64_t bundle_rows(const Call& call) {
  const Tensor& q = *call.src[0];
  const int64_t group = group_size(call);
  return q.ne[2] / group * min64(kFewRows, group * q.ne[1]);
}

static inline size_t attention_scratch(const Call& call) {
  const Tensor& q = *call.src[0];
  const int64_t rows = min64(most_rows(call), (q.ne[1] * q.ne[2] + 3) / 4 * 4);
  // Rows that are shared out among the units of all groups may not divide evenly.
  const int64_t shared = rows + q.ne[2] / group_size(call);
  return lay_out(call, rows, max64(shared, bundle_rows(call)), nullptr, nullptr);
}

// The bytes for the sums of chunks, which threads leave for each other in shared memory.
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
