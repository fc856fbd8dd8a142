#include "runtime/convert_rows.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace weft {
namespace {

constexpr int64_t kElementsAtOnce = 1 << 15;

// True if no value is infinite or NaN.
bool all_finite(const float* x, int64_t n) {
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bad |= (bits & 0x7f800000u) == 0x7f800000u ? 1u : 0u;
  }
  return bad == 0;
}

struct Job {
  const TypeOps& from;
  const TypeOps& to;
  const ConvertRows& rows;
  ThreadPool& pool;
  int64_t src_row;  // bytes
  int64_t dst_row;
  int64_t at_once;     // rows
  int64_t per_matrix;  // pieces of at_once rows
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> bad{INT64_MAX};

  void work(int thread) {
    const int64_t n_pieces = rows.n_rows / rows.rows_per_matrix * per_matrix;
    while (bad.load(std::memory_order_relaxed) == INT64_MAX) {
      const int64_t piece = next.fetch_add(1, std::memory_order_relaxed);
      if (piece >= n_pieces) return;
      const int64_t matrix = piece / per_matrix;
      const int64_t in_matrix = piece % per_matrix * at_once;
      const int64_t n = std::min(at_once, rows.rows_per_matrix - in_matrix);
      convert(matrix, matrix * rows.rows_per_matrix + in_matrix, n, pool.scratch(thread));
    }
  }

  void convert(int64_t matrix, int64_t row, int64_t n, char* scratch) {
    const char* src = rows.src + row * src_row;
    const auto* x = reinterpret_cast<const float*>(src);
    if (rows.from != DType::kF32) {
      from.to_float(src, reinterpret_cast<float*>(scratch), n * rows.ne0);
      x = reinterpret_cast<const float*>(scratch);
    }
    if (!all_finite(x, n * rows.ne0)) {
      report(x, row, n);
      return;
    }
    char* dst = rows.dst + row * dst_row;
    if (rows.to == DType::kF32) {
      std::memcpy(dst, x, static_cast<size_t>(n * dst_row));
    } else if (to.encode != nullptr) {
      const float* weights = rows.weights == nullptr ? nullptr : rows.weights + matrix * rows.ne0;
      to.encode({x, dst, n, rows.ne0, weights});
    } else {
      to.from_float(x, dst, n * rows.ne0);
    }
  }

  void report(const float* x, int64_t row, int64_t n) {
    while (n > 1 && all_finite(x, rows.ne0)) {
      x += rows.ne0;
      ++row;
      --n;
    }
    int64_t before = bad.load();
    while (row < before && !bad.compare_exchange_weak(before, row)) {
    }
  }
};

}  // namespace

bool can_convert(const KernelTable& table, DType from, DType to, bool weighted) {
  const TypeOps& source = table.type(from);
  const TypeOps& target = table.type(to);
  if (from != DType::kF32 && source.to_float == nullptr) return false;
  if (to == DType::kF32 || target.from_float != nullptr) return true;
  if (target.encode == nullptr) return false;
  // The reference has no rule for these without weights.
  const bool needs = to == DType::kIQ1_S || to == DType::kIQ2_XXS || to == DType::kIQ2_XS;
  return weighted || !needs;
}

int64_t convert_rows(const KernelTable& table, const ConvertRows& rows, ThreadPool& pool) {
  if (rows.n_rows == 0) return -1;
  const auto row_bytes = [&](DType type) {
    const DTypeInfo& info = dtype_info(type);
    return rows.ne0 / info.block * info.block_size;
  };
  const int64_t at_once = std::clamp<int64_t>(kElementsAtOnce / rows.ne0, 1, rows.rows_per_matrix);
  const int64_t per_matrix = (rows.rows_per_matrix + at_once - 1) / at_once;
  Job job{table.type(rows.from), table.type(rows.to), rows,    pool,
          row_bytes(rows.from),  row_bytes(rows.to),  at_once, per_matrix};
  pool.reserve_scratch(static_cast<size_t>(at_once * rows.ne0) * sizeof(float));
  pool.run([](void* context, int thread) { static_cast<Job*>(context)->work(thread); }, &job,
           pool.size());
  const int64_t bad = job.bad.load();
  return bad == INT64_MAX ? -1 : bad;
}

}  // namespace weft
