// The keys or values of a cache, as attention reads them: in place, or converted to floats.
#pragma once

#include "kernels/attention/attention_mask.h"
#include "kernels/attention/attention_plan.h"

namespace weft::WEFT_TARGET {

// The rows of one head in a cache of keys or values.
struct Cache {
  const Tensor& t;
  const char* data;
  int64_t width;  // floats from row to row in scratch memory
  int64_t lanes;  // floats of a row that products read: its length rounded up to whole vectors
  int64_t ahead;  // Rows::ahead

  Cache(const Tensor& cache, const Job& job)
      : t(cache), width(pad(cache.ne[0])), lanes((cache.ne[0] + kLanes - 1) / kLanes * kLanes) {
    const Tensor& q = *job.call.src[0];
    data = t.data + head_of(job, job.group) * t.nb[2] + job.batch / (q.ne[3] / t.ne[3]) * t.nb[3];
    ahead = ahead_of(job);
  }

  // The head of the cache that a group reads.
  int64_t head_of(const Job& job, int64_t group) const {
    return group * job.plan.group / (job.call.src[0]->ne[2] / t.ne[2]);
  }

  // The groups of a bundle follow each other in every block. What is prefetched is read about
  // kAheadBytes later: by a later group, or by one of the first in the next block.
  int64_t ahead_of(const Job& job) const {
    const int64_t first = job.first_group;
    const int64_t n = job.n_groups;
    const int64_t step = kAheadBytes / max64(1, 2 * kCells * row_bytes());
    const int64_t next = job.group - first + max64(1, min64(step, n));
    const int64_t group = first + (next < n ? next : next - n);
    return (head_of(job, group) - head_of(job, job.group)) * t.nb[2] +
           (next < n ? 0 : kCells * t.nb[1]);
  }

  int64_t row_bytes() const {
    const DTypeInfo& info = dtype_info(t.type);
    return t.ne[0] / info.block * info.block_size;
  }

  // The row of a cell where rows are whole vectors of floats, and then sets their `stride` in
  // floats; else nullptr.
  const float* floats(int64_t cell, int64_t& stride) const {
    if (t.type != DType::kF32 || t.nb[0] != 4 || t.ne[0] != lanes || t.nb[1] % 4 != 0) {
      return nullptr;
    }
    stride = t.nb[1] / 4;
    return reinterpret_cast<const float*>(data + cell * t.nb[1]);
  }

  // Reads a row as floats and pads it with zeros.
  void read(int64_t cell, float* out) const {
    const char* row = data + cell * t.nb[1];
    if (is_quantized(t.type)) {
      table().type(t.type).to_float(row, out, t.ne[0]);
    } else {
      load_short(row, t.type, t.nb[0], t.ne[0], out);
    }
    for (int64_t d = t.ne[0]; d < width; ++d) out[d] = 0;
  }

  // The rows of `n` cells as they are stored; fewer where the cache ends.
  Rows cells(int64_t first, int64_t n) const {
    const int64_t there = max64(0, min64(n, t.ne[1] - first));
    return {data + first * t.nb[1], t.nb[1], there, row_bytes(), ahead};
  }

  // The rows of a block for `n_rows` (few) rows of queries: in place, or the visible cells
  // converted to floats in `buffer`. Sets `type` to the type of the rows.
  Rows rows(const Tile& tile, const Block& block, int64_t n_rows, float* buffer,
            DType& type) const {
    type = t.type;
    const Rows stored = cells(block.first, block.n);
    const bool whole = t.ne[0] % kLanes == 0 && t.nb[0] == dtype_info(t.type).block_size;
    if (whole && reads_in_place(type, n_rows)) return stored;
    for (int64_t i = 0; i < block.n_seen; ++i) {
      const int64_t cell = tile.cells[i];
      stored.prefetch(stored.row(cell));
      read(block.first + cell, buffer + cell * width);
    }
    type = DType::kF32;
    return {reinterpret_cast<const char*>(buffer), width * 4, kCells, width * 4, 0};
  }
};

}  // namespace weft::WEFT_TARGET
