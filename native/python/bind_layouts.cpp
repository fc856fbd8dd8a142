// Bindings that convert weights to the interleaved layout and back, and to the lookup and levels
// layouts.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "quants/interleave.h"
#include "quants/levels.h"
#include "quants/lookup_layout.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace {

using weft::DType;

using Bytes = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pool = std::shared_ptr<weft::ThreadPool>;

// About how many bytes a thread moves per claim.
constexpr int64_t kClaim = 256 * 1024;

// The scale of an i2_s tensor, in bytes. It stays behind the last row.
int64_t tail_bytes(DType type) { return type == DType::kI2_S ? 32 : 0; }

// The numbers of the types for which `reads(type, ops)` is true, on a target that this machine
// runs.
template <typename F>
std::vector<int> types_where(const std::string& name, const F& reads) {
  const weft::Target* target = weft::find_target(name);
  if (target == nullptr) throw nb::value_error(("no kernel target " + name).c_str());
  std::vector<int> types;
  if (target->score == 0) return types;
  for (int i = 0; i < weft::kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    if (reads(type, target->table().type(type))) types.push_back(i);
  }
  return types;
}

// ---- the interleaved layout

struct Move {
  DType type = DType::kF32;
  bool to_panels = false;
  const uint8_t* src = nullptr;
  uint8_t* dst = nullptr;
  int64_t row_bytes = 0;
  int64_t row_elements = 0;
  int64_t panels = 0;  // panels of all matrices, which follow each other without a gap
  int64_t per_claim = 1;
  std::atomic<int64_t> next{0};

  static void job(void* context, int) {
    Move& m = *static_cast<Move*>(context);
    for (;;) {
      const int64_t first = m.next.fetch_add(m.per_claim, std::memory_order_relaxed);
      if (first >= m.panels) return;
      const int64_t n = std::min(m.per_claim, m.panels - first);
      if (m.to_panels) {
        weft::interleave_panels(m.type, m.src, m.row_bytes, m.row_elements, first, n, m.dst);
      } else {
        weft::deinterleave_panels(m.type, m.src, m.row_elements, first, n, m.dst, m.row_bytes);
      }
    }
  }
};

void move(bool to_panels, int type, const Bytes& src, const MutableBytes& dst, int64_t rows,
          int64_t row_elements, const Pool& pool) {
  Move m;
  m.type = static_cast<DType>(type);
  const weft::InterleavedFormat* format = weft::interleaved_format(m.type);
  if (format == nullptr) throw nb::value_error("this type has no interleaved layout");
  if (pool == nullptr) throw nb::value_error("a thread pool is needed");
  if (rows < 0 || row_elements < 0 || row_elements % format->block != 0 ||
      !weft::has_panels(m.type, rows)) {
    throw nb::value_error(
        "an interleaved matrix must have rows of whole blocks, and a multiple of 32 rows (or more "
        "than 32, but not of i2_s)");
  }
  int64_t bytes = 0;
  m.row_elements = row_elements;
  m.row_bytes = row_elements / format->block * format->block_size;
  if (__builtin_mul_overflow(m.row_bytes, rows, &bytes)) throw nb::value_error("too many bytes");
  const int64_t tail = tail_bytes(m.type);
  const auto total = static_cast<size_t>(bytes + tail);
  if (src.size() != total || dst.size() != total) {
    throw nb::value_error(("the tensor has " + std::to_string(total) + " bytes, the arrays have " +
                           std::to_string(src.size()) + " and " + std::to_string(dst.size()))
                              .c_str());
  }
  m.to_panels = to_panels;
  m.src = src.data();
  m.dst = dst.data();
  if (m.src < m.dst + total && m.dst < m.src + total) {
    throw nb::value_error("the two arrays overlap");
  }
  m.panels = rows / weft::kPanelRows;
  m.per_claim = std::max<int64_t>(1, kClaim / std::max<int64_t>(1, m.row_bytes * weft::kPanelRows));
  nb::gil_scoped_release release;
  if (m.row_bytes > 0) pool->run(&Move::job, &m, pool->size());
  // rows behind the last panel, and the scale of i2_s
  const auto end = static_cast<size_t>(m.panels * weft::kPanelRows * m.row_bytes);
  if (total > end) std::memcpy(m.dst + end, m.src + end, total - end);
}

void interleave(int type, Bytes src, MutableBytes dst, int64_t rows, int64_t row_elements,
                Pool pool) {
  move(true, type, src, dst, rows, row_elements, pool);
}

void deinterleave(int type, Bytes src, MutableBytes dst, int64_t rows, int64_t row_elements,
                  Pool pool) {
  move(false, type, src, dst, rows, row_elements, pool);
}

// The number of elements that the length of a row must be a multiple of; 0 when the type has no
// interleaved layout.
int interleaved_block(int type) {
  const weft::InterleavedFormat* format = weft::interleaved_format(static_cast<DType>(type));
  return format == nullptr ? 0 : format->block;
}

std::vector<int> interleaved_types(const std::string& name) {
  return types_where(name, [](DType type, const weft::TypeOps& ops) {
    return weft::can_interleave(type) && ops.matmul_interleaved;
  });
}

// ---- the lookup layout

struct LookupJob {
  DType type = DType::kF32;
  const uint8_t* src = nullptr;
  uint8_t* dst = nullptr;  // nullptr when the job only checks that all weights are ternary
  int64_t row_bytes = 0;
  int64_t row_elements = 0;
  int64_t panels = 0;
  std::atomic<int64_t> next{0};
  std::atomic<bool> ternary{true};

  static void job(void* context, int) {
    LookupJob& m = *static_cast<LookupJob*>(context);
    for (;;) {
      const int64_t panel = m.next.fetch_add(1, std::memory_order_relaxed);
      if (panel >= m.panels) return;
      if (m.dst != nullptr) {
        weft::make_lookup_panels(m.type, m.src, m.row_bytes, m.row_elements, panel, 1, m.dst);
      } else if (!weft::is_ternary(
                     m.type, m.src + panel * weft::kPanelRows * m.row_bytes,
                     weft::kPanelRows * (m.row_elements / weft::lookup_block(m.type)))) {
        m.ternary.store(false, std::memory_order_relaxed);
        m.next.store(m.panels, std::memory_order_relaxed);
      }
    }
  }
};

int64_t lookup_bytes(int type, int64_t rows, int64_t row_elements) {
  const auto t = static_cast<DType>(type);
  const int64_t block = weft::lookup_block(t);
  if (block == 0) throw nb::value_error("this type has no lookup layout");
  int64_t elements = 0;
  if (rows < 0 || row_elements < 0 || rows % weft::kPanelRows != 0 || row_elements % block != 0 ||
      __builtin_mul_overflow(rows, row_elements, &elements) || elements > int64_t{1} << 56) {
    throw nb::value_error(
        "a matrix in the lookup layout must have rows of whole blocks, and a multiple of 32 rows");
  }
  const int64_t bytes = weft::dtype_info(t).block_size * (row_elements / block) * rows;
  return std::max(bytes + tail_bytes(t), weft::lookup_row_bytes(t, row_elements) * rows);
}

void prepare_job(LookupJob& m, int type, const Bytes& src, int64_t rows, int64_t row_elements,
                 const Pool& pool) {
  lookup_bytes(type, rows, row_elements);
  if (pool == nullptr) throw nb::value_error("a thread pool is needed");
  m.type = static_cast<DType>(type);
  m.src = src.data();
  m.row_elements = row_elements;
  m.row_bytes =
      weft::dtype_info(m.type).block_size * (row_elements / weft::dtype_info(m.type).block);
  m.panels = rows / weft::kPanelRows;
  const int64_t bytes = m.row_bytes * rows + tail_bytes(m.type);
  if (src.size() != static_cast<size_t>(bytes)) {
    throw nb::value_error(("the matrix has " + std::to_string(bytes) + " bytes, the array has " +
                           std::to_string(src.size()))
                              .c_str());
  }
}

bool is_ternary(int type, Bytes src, int64_t rows, int64_t row_elements, Pool pool) {
  LookupJob m;
  prepare_job(m, type, src, rows, row_elements, pool);
  nb::gil_scoped_release release;
  if (m.type != DType::kTQ2_0) return true;
  pool->run(&LookupJob::job, &m, pool->size());
  return m.ternary.load();
}

void make_lookup(int type, Bytes src, MutableBytes dst, int64_t rows, int64_t row_elements,
                 Pool pool) {
  LookupJob m;
  prepare_job(m, type, src, rows, row_elements, pool);
  if (dst.size() != static_cast<size_t>(lookup_bytes(type, rows, row_elements))) {
    throw nb::value_error("the array for the indices must have lookup_bytes() bytes");
  }
  m.dst = dst.data();
  if (m.src < m.dst + dst.size() && m.dst < m.src + src.size()) {
    throw nb::value_error("the two arrays overlap");
  }
  nb::gil_scoped_release release;
  pool->run(&LookupJob::job, &m, pool->size());
  const auto end = static_cast<size_t>(m.row_bytes * rows);
  if (src.size() > end) std::memcpy(m.dst + end, m.src + end, src.size() - end);
}

std::vector<int> lookup_types(const std::string& name) {
  return types_where(name, [](DType, const weft::TypeOps& ops) { return ops.matmul_lookup; });
}

// ---- the levels layout

struct LevelJob {
  DType type = DType::kF32;
  const uint8_t* src = nullptr;
  uint8_t* dst = nullptr;
  int64_t row_bytes = 0;
  int64_t row_elements = 0;
  int64_t panels = 0;
  std::atomic<int64_t> next{0};

  static void job(void* context, int) {
    LevelJob& m = *static_cast<LevelJob*>(context);
    for (;;) {
      const int64_t panel = m.next.fetch_add(1, std::memory_order_relaxed);
      if (panel >= m.panels) return;
      weft::make_level_panels(m.type, m.src, m.row_bytes, m.row_elements, panel, 1, m.dst);
    }
  }
};

int64_t level_bytes(int type, int64_t rows, int64_t row_elements) {
  const auto t = static_cast<DType>(type);
  const int64_t block = weft::level_block(t);
  if (block == 0) throw nb::value_error("this type has no levels layout");
  int64_t elements = 0;
  if (rows < 0 || row_elements < 0 || rows % weft::kPanelRows != 0 || row_elements % block != 0 ||
      __builtin_mul_overflow(rows, row_elements, &elements) || elements > int64_t{1} << 56) {
    throw nb::value_error(
        "a matrix in the levels layout must have rows of whole blocks, and a multiple of 32 rows");
  }
  return weft::level_row_bytes(t, row_elements) * rows;
}

void make_levels(int type, Bytes src, MutableBytes dst, int64_t rows, int64_t row_elements,
                 Pool pool) {
  const int64_t stored = level_bytes(type, rows, row_elements);
  if (pool == nullptr) throw nb::value_error("a thread pool is needed");
  LevelJob m;
  m.type = static_cast<DType>(type);
  const weft::DTypeInfo& info = weft::dtype_info(m.type);
  m.row_bytes = row_elements / info.block * info.block_size;
  if (src.size() != static_cast<size_t>(m.row_bytes * rows) ||
      dst.size() != static_cast<size_t>(stored)) {
    throw nb::value_error("the arrays must have the bytes of the rows, and level_bytes() bytes");
  }
  m.src = src.data();
  m.dst = dst.data();
  if (m.src < m.dst + dst.size() && m.dst < m.src + src.size()) {
    throw nb::value_error("the two arrays overlap");
  }
  m.row_elements = row_elements;
  m.panels = rows / weft::kPanelRows;
  nb::gil_scoped_release release;
  pool->run(&LevelJob::job, &m, pool->size());
}

std::vector<int> level_types(const std::string& name) {
  return types_where(name, [](DType, const weft::TypeOps& ops) { return ops.matmul_levels; });
}

}  // namespace

void bind_layouts(nb::module_& m) {
  m.def("interleaved_block", &interleaved_block, nb::arg("type"),
        "The number of elements that the length of a row must be a multiple of; 0 for a type "
        "without an interleaved layout.");
  m.def("interleaved_types", &interleaved_types, nb::arg("target"),
        "The weight types whose interleaved layout the matmuls of a target read.");
  m.def("interleave", &interleave, nb::arg("type"), nb::arg("src"), nb::arg("dst"), nb::arg("rows"),
        nb::arg("row_elements"), nb::arg("pool"),
        "Copies matrices, of `rows` rows altogether, into panels of 32 rows, on the threads of a "
        "pool.");
  m.def("deinterleave", &deinterleave, nb::arg("type"), nb::arg("src"), nb::arg("dst"),
        nb::arg("rows"), nb::arg("row_elements"), nb::arg("pool"),
        "Copies panels of 32 rows back into matrices.");
  m.def("level_types", &level_types, nb::arg("target"),
        "The weight types whose levels layout the matmuls of a target read.");
  m.def("level_bytes", &level_bytes, nb::arg("type"), nb::arg("rows"), nb::arg("row_elements"),
        "The bytes of matrices, of `rows` rows altogether, in the levels layout.");
  m.def("make_levels", &make_levels, nb::arg("type"), nb::arg("src"), nb::arg("dst"),
        nb::arg("rows"), nb::arg("row_elements"), nb::arg("pool"),
        "Converts matrices, of `rows` rows altogether, to the levels layout, on the threads of a "
        "pool.");
  m.def("lookup_types", &lookup_types, nb::arg("target"),
        "The weight types whose lookup layout the MUL_MAT of a target reads.");
  m.def("lookup_bytes", &lookup_bytes, nb::arg("type"), nb::arg("rows"), nb::arg("row_elements"),
        "The bytes of a matrix in the lookup layout.");
  m.def("is_ternary", &is_ternary, nb::arg("type"), nb::arg("src"), nb::arg("rows"),
        nb::arg("row_elements"), nb::arg("pool"),
        "Whether all weights of a matrix are -1, 0 or +1 times a scale.");
  m.def("make_lookup", &make_lookup, nb::arg("type"), nb::arg("src"), nb::arg("dst"),
        nb::arg("rows"), nb::arg("row_elements"), nb::arg("pool"),
        "Converts a matrix to the lookup layout, on the threads of a pool.");
}
