// GET_ROWS, SET_ROWS, GET_ROWS_BACK: read or write the rows that an index tensor names.
//
// Unlike INDEX, these ops do not fail on an index outside of the table: GET_ROWS gives zeros,
// SET_ROWS and GET_ROWS_BACK skip the row.
#include "kernels/copy/copy_rows.h"
#include "quants/interleave.h"

namespace weft::WEFT_TARGET {

void register_rows_ops(KernelTable& table);

namespace {

int64_t index_of(const Tensor& ids, int64_t i0, int64_t i1, int64_t i2) {
  return read_index(ids.data + i0 * ids.nb[0] + i1 * ids.nb[1] + i2 * ids.nb[2], ids.type);
}

// ---- GET_ROWS: dst[i3, i2, i1] = src0[i3, i2, ids[i3, i2, i1]]

// A table may be in panels: a matrix that is multiplied with, too.
void run_get(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  const float scale = tensor_scale(a);
  RowCursor row(dst, begin);
  for (int64_t n = begin; n < end; ++n, row.next()) {
    const Index i = *row;
    const int64_t id = index_of(ids, i.i1, i.i2, i.i3);
    char* to = row_data(dst, i);
    if (id < 0 || id >= a.ne[1]) {
      std::memset(to, 0, static_cast<size_t>(row_units(dst) * unit_bytes(dst.type)));
      continue;
    }
    const char* from = row_data(a, {id, i.i2 % a.ne[2], i.i3 % a.ne[3]});
    if (a.layout == Layout::kInterleaved) {
      deinterleave_row(a.type, from - id * a.nb[1], a.ne[0], a.ne[1], id, scratch);
      from = scratch;
    }
    if (a.type == dst.type) {
      move_units(a.type, from, a.nb[0], to, dst.nb[0], row_units(a));
    } else {
      load_range(a, from, 0, a.ne[0], scale, reinterpret_cast<float*>(to));
    }
  }
}

size_t scratch_get(const Call& call) {
  const Tensor& a = *call.src[0];
  return a.layout == Layout::kInterleaved ? static_cast<size_t>(a.nb[1]) : 0;
}

const char* check_get(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  if (!is_index(ids.type)) return "the indices must be i32 or i64";
  if (dst.nb[0] != unit_bytes(dst.type)) return "rows of the result must be contiguous";
  if (a.type == DType::kI2_S && !is_contiguous(a)) return "an i2_s table must be contiguous";
  const bool panels = a.layout == Layout::kInterleaved && is_quantized(a.type);
  if (a.layout != Layout::kRows && (!panels || a.type == DType::kI2_S)) {
    return "the table must be in rows or panels of a quantized type other than i2_s";
  }
  if (a.type != dst.type && (dst.type != DType::kF32 || !can_load(a.type))) {
    return "the result must be f32 or of the table's type";
  }
  if (a.type == DType::kI2_S && dst.type == DType::kI2_S) return "rows of i2_s are read as f32";
  if (dst.ne[0] != a.ne[0] || dst.ne[1] != ids.ne[0] || dst.ne[2] != ids.ne[1] ||
      dst.ne[3] != ids.ne[2] || ids.ne[3] != 1) {
    return "the result must have one row per index, as long as those of the table";
  }
  if (a.ne[2] == 0 || dst.ne[2] % a.ne[2] != 0 || a.ne[3] == 0 || dst.ne[3] % a.ne[3] != 0) {
    return "the batches of the indices must be multiples of those of the table";
  }
  return nullptr;
}

// ---- SET_ROWS (rows, ids, dst): dst[i3, i2, ids[i3, i2, i1]] = src0[i3, i2, i1]

void run_set(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  auto* values = reinterpret_cast<float*>(scratch);
  RowCursor row(a, begin);
  for (int64_t n = begin; n < end; ++n, row.next()) {
    const Index i = *row;
    const int64_t id = index_of(ids, i.i1, i.i2 % ids.ne[1], i.i3 % ids.ne[2]);
    if (id < 0 || id >= dst.ne[1]) continue;
    const char* from = row_data(a, i);
    char* to = row_data(dst, {id, i.i2, i.i3});
    if (a.type == dst.type) {
      move_units(a.type, from, a.nb[0], to, dst.nb[0], row_units(a));
    } else if (is_plain_row(a)) {
      store_range(reinterpret_cast<const float*>(from), a.ne[0], dst, to, 0);
    } else {
      load_range(a, from, 0, a.ne[0], 1.0f, values);
      store_range(values, a.ne[0], dst, to, 0);
    }
  }
}

int64_t items_set(const Call& call) { return call.src[0]->ne[0] == 0 ? 0 : n_rows(*call.src[0]); }

size_t scratch_set(const Call& call) {
  const Tensor& a = *call.src[0];
  return a.type == call.dst.type || is_plain_row(a) ? 0 : static_cast<size_t>(a.ne[0]) * 4;
}

const char* check_set(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  if (!is_index(ids.type)) return "the indices must be i32 or i64";
  if (a.type == DType::kI2_S || dst.type == DType::kI2_S) return "i2_s rows cannot be written";
  if (a.type != dst.type && (!is_float(a.type) || !can_store(dst.type))) {
    return "rows must be f32, f16 or bf16 and the result of a type that can be written";
  }
  if (a.ne[0] != dst.ne[0] || a.ne[2] != dst.ne[2] || a.ne[3] != dst.ne[3]) {
    return "rows and result differ in row length or batch";
  }
  if (ids.ne[0] != a.ne[1] || ids.ne[3] != 1) return "there must be one index per row";
  if (ids.ne[1] == 0 || a.ne[2] % ids.ne[1] != 0 || ids.ne[2] == 0 || a.ne[3] % ids.ne[2] != 0) {
    return "the batches of the rows must be multiples of those of the indices";
  }
  return nullptr;
}

// ---- GET_ROWS_BACK: dst[ids[i]] += src0[i], from zeros. An item is kColumns columns.

constexpr int64_t kColumns = 64;

void run_back(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  const int64_t first = begin * kColumns;
  const int64_t n = min64(end * kColumns, dst.ne[0]) - first;
  for (int64_t r = 0; r < dst.ne[1]; ++r) {
    std::memset(dst.data + r * dst.nb[1] + first * 4, 0, static_cast<size_t>(n) * 4);
  }
  for (int64_t r = 0; r < ids.ne[0]; ++r) {
    const int64_t id = index_of(ids, r, 0, 0);
    if (id < 0 || id >= dst.ne[1]) continue;
    auto* out = reinterpret_cast<float*>(dst.data + id * dst.nb[1]) + first;
    const char* from = a.data + r * a.nb[1] + first * a.nb[0];
    for (int64_t i = 0; i < n; ++i) out[i] += load_element(from + i * a.nb[0], a.type);
  }
}

int64_t items_back(const Call& call) { return (call.dst.ne[0] + kColumns - 1) / kColumns; }

const char* check_back(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& ids = *call.src[1];
  const Tensor& dst = call.dst;
  if (!is_index(ids.type)) return "the indices must be i32 or i64";
  if (!is_float(a.type)) return "rows must be f32, f16 or bf16";
  if (dst.type != DType::kF32 || dst.nb[0] != 4) return "the result must be f32 rows";
  if (a.ne[0] != dst.ne[0]) return "rows and result differ in row length";
  if (dst.ne[2] != 1 || dst.ne[3] != 1 || n_rows(a) != a.ne[1] || n_rows(ids) != 1 ||
      ids.ne[0] != a.ne[1]) {
    return "the source must be a matrix, with one index per row";
  }
  return nullptr;
}

int64_t items_get(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }
int64_t grain_get(const Call& call) { return row_grain(call.dst.ne[0]); }

}  // namespace

void register_rows_ops(KernelTable& table) {
  table[Op::kGetRows] = {.check = check_get,
                         .items = items_get,
                         .run = run_get,
                         .grain = grain_get,
                         .scratch = scratch_get,
                         .takes_interleaved = true};
  table[Op::kSetRows] = {.check = check_set,
                         .items = items_set,
                         .run = run_set,
                         .grain = grain_get,
                         .scratch = scratch_set};
  table[Op::kGetRowsBack] = {.check = check_back, .items = items_back, .run = run_back};
}

}  // namespace weft::WEFT_TARGET
