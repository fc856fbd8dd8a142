// Weights in the interleaved layout, and back.
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
#include "quants/lookup_layout.h"
#include "threads/pool.h"

namespace nb = nanobind;

namespace {

using weft::DType;

using Bytes = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pool = std::shared_ptr<weft::ThreadPool>;

// Bytes that one claim of a thread moves, about.
constexpr int64_t kClaim = 256 * 1024;

struct Move {
  DType type = DType::kF32;
  bool to_panels = false;
  const uint8_t* src = nullptr;
  uint8_t* dst = nullptr;
  int64_t row_bytes = 0;
  int64_t row_elements = 0;
  int64_t panels = 0;  // of all matrices: they follow each other without a gap
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
      rows % weft::kPanelRows != 0) {
    throw nb::value_error("an interleaved matrix has whole words and whole panels of 32 rows");
  }
  int64_t bytes = 0;
  m.row_elements = row_elements;
  m.row_bytes = row_elements / format->block * format->block_size;
  if (__builtin_mul_overflow(m.row_bytes, rows, &bytes)) throw nb::value_error("too many bytes");
  // the scale of a ternary tensor stays behind its codes
  const int64_t tail = m.type == DType::kI2_S ? 32 : 0;
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
  if (tail != 0) std::memcpy(m.dst + bytes, m.src + bytes, static_cast<size_t>(tail));
}

void interleave(int type, Bytes src, MutableBytes dst, int64_t rows, int64_t row_elements,
                Pool pool) {
  move(true, type, src, dst, rows, row_elements, pool);
}

void deinterleave(int type, Bytes src, MutableBytes dst, int64_t rows, int64_t row_elements,
                  Pool pool) {
  move(false, type, src, dst, rows, row_elements, pool);
}

// Elements that a row must be a multiple of; 0: the type has no interleaved layout.
int interleaved_block(int type) {
  const weft::InterleavedFormat* format = weft::interleaved_format(static_cast<DType>(type));
  return format == nullptr ? 0 : format->block;
}

std::vector<int> interleaved_types(const std::string& name) {
  const weft::Target* target = weft::find_target(name);
  if (target == nullptr) throw nb::value_error(("no kernel target " + name).c_str());
  std::vector<int> types;
  if (target->score == 0) return types;
  for (int i = 0; i < weft::kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    if (weft::can_interleave(type) && target->table().type(type).matmul_interleaved) {
      types.push_back(i);
    }
  }
  return types;
}

// ---- the lookup layout

struct LookupJob {
  DType type = DType::kF32;
  const uint8_t* src = nullptr;
  uint8_t* dst = nullptr;  // nullptr: only asks whether all is ternary
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
    throw nb::value_error("a matrix for lookups has whole blocks and whole panels of 32 rows");
  }
  const int64_t tail = t == DType::kI2_S ? 32 : 0;  // stays where it was, behind the rows
  const int64_t size = weft::dtype_info(t).block_size * (row_elements / block) * rows + tail;
  return std::max(size, weft::lookup_row_bytes(t, row_elements) * rows);
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
  const int64_t tail = m.type == DType::kI2_S ? 32 : 0;
  if (src.size() != static_cast<size_t>(m.row_bytes * rows + tail)) {
    throw nb::value_error("the array has not the size of the matrix");
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
    throw nb::value_error("the array for the indices has not lookup_bytes() bytes");
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
  const weft::Target* target = weft::find_target(name);
  if (target == nullptr) throw nb::value_error(("no kernel target " + name).c_str());
  std::vector<int> types;
  if (target->score == 0) return types;
  for (int i = 0; i < weft::kDTypeCount; ++i) {
    if (target->table().type(static_cast<DType>(i)).matmul_lookup) types.push_back(i);
  }
  return types;
}

}  // namespace

void bind_layouts(nb::module_& m) {
  m.def("interleaved_block", &interleaved_block, nb::arg("type"),
        "Elements that rows must be a multiple of; 0 for a type without an interleaved layout.");
  m.def("interleaved_types", &interleaved_types, nb::arg("target"),
        "Weight types whose interleaved layout the matmuls of a target read.");
  m.def(
      "interleave", &interleave, nb::arg("type"), nb::arg("src"), nb::arg("dst"), nb::arg("rows"),
      nb::arg("row_elements"), nb::arg("pool"),
      "Copies matrices (`rows` of all of them) into panels of 32 rows, on the threads of a pool.");
  m.def("deinterleave", &deinterleave, nb::arg("type"), nb::arg("src"), nb::arg("dst"),
        nb::arg("rows"), nb::arg("row_elements"), nb::arg("pool"),
        "Copies panels of 32 rows back into matrices.");
  m.def("lookup_types", &lookup_types, nb::arg("target"),
        "Weight types whose lookup layout the MUL_MAT of a target reads.");
  m.def("lookup_bytes", &lookup_bytes, nb::arg("type"), nb::arg("rows"), nb::arg("row_elements"),
        "Bytes of a matrix in the lookup layout.");
  m.def("is_ternary", &is_ternary, nb::arg("type"), nb::arg("src"), nb::arg("rows"),
        nb::arg("row_elements"), nb::arg("pool"),
        "Whether all weights of a matrix are -1, 0 or +1 times a scale.");
  m.def("make_lookup", &make_lookup, nb::arg("type"), nb::arg("src"), nb::arg("dst"),
        nb::arg("rows"), nb::arg("row_elements"), nb::arg("pool"),
        "Turns a matrix into indices of tables, on the threads of a pool.");
}
