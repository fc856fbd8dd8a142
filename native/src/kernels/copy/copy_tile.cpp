// SET and ACC: src0 with a region replaced by src1, or with src1 added to it. CONCAT, REPEAT,
// REPEAT_BACK.
#include "kernels/copy/copy_rows.h"

namespace weft::WEFT_TARGET {

void register_copy_tile(KernelTable& table);

namespace {

int64_t row_items(const Call& call) { return n_rows(call.dst); }
int64_t rows_grain(const Call& call) { return row_grain(call.dst.ne[0]); }

// ---- SET, ACC

// The strides and the offset of the region in the result, in bytes.
struct Region {
  int64_t nb[4];
  int64_t offset;
};

Region region_of(const Call& call) {
  return {{unit_bytes(call.dst.type), call.i(AccSlot::kNb1), call.i(AccSlot::kNb2),
           call.i(AccSlot::kNb3)},
          call.i(AccSlot::kOffset)};
}

// Whether the region is a box of the result's own dimensions, and its first index in each. Then
// each row of the result is an item; otherwise there is a single item.
bool is_box(const Call& call, const Region& r, int64_t start[4]) {
  const Tensor& dst = call.dst;
  const Tensor& b = *call.src[1];
  for (int d = 0; d < 4; ++d) {
    if (r.nb[d] != dst.nb[d] || dst.nb[d] == 0) return false;
  }
  int64_t rest = r.offset;
  for (int d = 3; d >= 0; --d) {
    start[d] = rest / dst.nb[d];
    rest -= start[d] * dst.nb[d];
    if (start[d] + b.ne[d] > dst.ne[d]) return false;
  }
  return rest == 0;
}

template <bool kAdd>
void write_row(const Tensor& b, const char* from, DType type, char* to) {
  if (!kAdd) {
    move_units(type, from, b.nb[0], to, unit_bytes(type), b.ne[0]);
    return;
  }
  const int64_t size = unit_bytes(type);
  for (int64_t i = 0; i < b.ne[0]; ++i) {
    const float sum = load_element(to + i * size, type) + load_element(from + i * b.nb[0], b.type);
    store_element(to + i * size, type, sum);
  }
}

void copy_row(const Tensor& a, const Tensor& dst, Index i) {
  const char* from = row_data(a, i);
  char* to = row_data(dst, i);
  if (from != to) move_units(a.type, from, a.nb[0], to, dst.nb[0], row_units(a));
}

template <bool kAdd>
void run_region(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& dst = call.dst;
  const Region r = region_of(call);
  int64_t start[4];
  if (!is_box(call, r, start)) {
    if (begin > 0) return;
    for (RowCursor row(dst, 0); (*row).i3 < dst.ne[3]; row.next()) copy_row(a, dst, *row);
    if (n_elements(b) == 0) return;
    for (RowCursor row(b, 0); (*row).i3 < b.ne[3]; row.next()) {
      const Index i = *row;
      char* to = dst.data + r.offset + i.i1 * r.nb[1] + i.i2 * r.nb[2] + i.i3 * r.nb[3];
      write_row<kAdd>(b, row_data(b, i), dst.type, to);
    }
    return;
  }
  RowCursor row(dst, begin);
  for (int64_t n = begin; n < end; ++n, row.next()) {
    copy_row(a, dst, *row);
    const Index i = {(*row).i1 - start[1], (*row).i2 - start[2], (*row).i3 - start[3]};
    if (i.i1 < 0 || i.i1 >= b.ne[1] || i.i2 < 0 || i.i2 >= b.ne[2] || i.i3 < 0 || i.i3 >= b.ne[3]) {
      continue;
    }
    write_row<kAdd>(b, row_data(b, i), dst.type, row_data(dst, *row) + start[0] * dst.nb[0]);
  }
}

int64_t region_items(const Call& call) {
  int64_t start[4];
  if (n_elements(call.dst) == 0) return 0;
  return is_box(call, region_of(call), start) ? n_rows(call.dst) : 1;
}

const char* check_region(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& dst = call.dst;
  if (a.type != dst.type || b.type != dst.type) return "operands and result differ in type";
  if (is_quantized(dst.type)) return "block types cannot be set in part";
  if (!same_shape(a, dst)) return "result and first source differ in shape";
  if (dst.nb[0] != unit_bytes(dst.type)) return "rows of the result must be contiguous";
  const Region r = region_of(call);
  int64_t last = r.offset;
  int64_t size = r.nb[0];
  for (int d = 0; d < 4; ++d) {
    if (r.nb[d] < 0 || r.offset < 0) return "the region has a negative stride or offset";
    int64_t span;
    if (__builtin_mul_overflow(max64(b.ne[d] - 1, 0), r.nb[d], &span) ||
        __builtin_add_overflow(last, span, &last)) {
      return "the region is too large";
    }
    size += (dst.ne[d] - 1) * dst.nb[d];
  }
  if (n_elements(b) > 0 && (n_elements(dst) == 0 || last > size - r.nb[0])) {
    return "the region is not within the result";
  }
  return nullptr;
}

const char* check_acc(const Call& call) {
  if (!is_float(call.dst.type)) return "needs f32, f16 or bf16 operands";
  return check_region(call);
}

// ---- CONCAT

// Copies `rows` rows of `src`, from index `at` on, into the same rows of `dst`, from byte `offset`
// of each.
void move_rows(const Tensor& src, const Tensor& dst, int64_t offset, Index at, int64_t rows) {
  const char* from = row_data(src, at);
  char* to = row_data(dst, at) + offset;
  const int64_t from_step = src.nb[1], to_step = dst.nb[1];
  const int64_t units = row_units(src), size = unit_bytes(dst.type);
  if ((src.nb[0] == size || units == 1) && (dst.nb[0] == size || units == 1)) {
    for (int64_t r = 0; r < rows; ++r) {
      move_bytes(from + r * from_step, to + r * to_step, units * size);
    }
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    move_units(dst.type, from + r * from_step, src.nb[0], to + r * to_step, dst.nb[0], units);
  }
}

void run_concat(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& dst = call.dst;
  const int64_t dim = call.i(ConcatSlot::kDim);
  if (dim == 0) {
    for_runs(dst, begin, end, [&](Index at, int64_t rows) {
      move_rows(a, dst, 0, at, rows);
      move_rows(b, dst, row_units(a) * dst.nb[0], at, rows);
    });
    return;
  }
  RowCursor row(dst, begin);
  for (int64_t n = begin; n < end; ++n, row.next()) {
    Index i = *row;
    char* to = row_data(dst, i);
    int64_t& along = dim == 1 ? i.i1 : dim == 2 ? i.i2 : i.i3;
    const bool first = along < a.ne[dim];
    if (!first) along -= a.ne[dim];
    const Tensor& src = first ? a : b;
    move_units(dst.type, row_data(src, i), src.nb[0], to, dst.nb[0], row_units(dst));
  }
}

const char* check_concat(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& dst = call.dst;
  if (call.i(ConcatSlot::kDim) < 0 || call.i(ConcatSlot::kDim) > 3)
    return "the dimension must be 0..3";
  if (a.type != dst.type || b.type != dst.type) return "operands and result differ in type";
  if (dst.type == DType::kI2_S) return "i2_s tensors cannot be joined: each has its own scale";
  for (int d = 0; d < 4; ++d) {
    const bool joined = d == call.i(ConcatSlot::kDim);
    if (dst.ne[d] != (joined ? a.ne[d] + b.ne[d] : a.ne[d]) || (!joined && a.ne[d] != b.ne[d])) {
      return "shapes may differ only along this dimension, and there the result is their sum";
    }
  }
  return nullptr;
}

// ---- REPEAT, REPEAT_BACK

void run_repeat(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t units = row_units(a);
  const int64_t tiles = dst.ne[0] / a.ne[0];
  RowCursor row(dst, begin);
  for (int64_t n = begin; n < end; ++n, row.next()) {
    const char* from = broadcast_row(a, *row);
    char* to = row_data(dst, *row);
    for (int64_t tile = 0; tile < tiles; ++tile, to += units * dst.nb[0]) {
      move_units(a.type, from, a.nb[0], to, dst.nb[0], units);
    }
  }
}

const char* repeats(const Tensor& tile, const Tensor& whole) {
  for (int d = 0; d < 4; ++d) {
    if (tile.ne[d] == 0 ? whole.ne[d] != 0 : whole.ne[d] % tile.ne[d] != 0) {
      return "the sizes of the larger shape must be multiples of those of the smaller one";
    }
  }
  return nullptr;
}

const char* check_repeat(const Call& call) {
  if (call.src[0]->type != call.dst.type) return "source and result differ in type";
  if (call.dst.type == DType::kI2_S) return "i2_s tensors cannot be repeated";
  return repeats(*call.src[0], call.dst);
}

void run_repeat_back(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  RowCursor row(dst, begin);
  for (int64_t n = begin; n < end; ++n, row.next()) {
    const Index i = *row;
    auto* out = reinterpret_cast<float*>(row_data(dst, i));
    std::memset(out, 0, static_cast<size_t>(dst.ne[0]) * 4);
    for (int64_t i3 = i.i3; i3 < a.ne[3]; i3 += dst.ne[3]) {
      for (int64_t i2 = i.i2; i2 < a.ne[2]; i2 += dst.ne[2]) {
        for (int64_t i1 = i.i1; i1 < a.ne[1]; i1 += dst.ne[1]) {
          const char* from = row_data(a, {i1, i2, i3});
          for (int64_t i0 = 0; i0 < a.ne[0]; i0 += dst.ne[0], from += dst.ne[0] * a.nb[0]) {
            for (int64_t k = 0; k < dst.ne[0]; ++k) {
              out[k] += load_element(from + k * a.nb[0], a.type);
            }
          }
        }
      }
    }
  }
}

const char* check_repeat_back(const Call& call) {
  if (call.dst.type != DType::kF32 || call.dst.nb[0] != 4) return "the result must be f32 rows";
  if (!is_float(call.src[0]->type)) return "the source must be f32, f16 or bf16";
  return repeats(call.dst, *call.src[0]);
}

}  // namespace

void register_copy_tile(KernelTable& table) {
  table[Op::kSet] = {
      .check = check_region, .items = region_items, .run = run_region<false>, .grain = rows_grain};
  table[Op::kAcc] = {
      .check = check_acc, .items = region_items, .run = run_region<true>, .grain = rows_grain};
  table[Op::kConcat] = {
      .check = check_concat, .items = row_items, .run = run_concat, .grain = rows_grain};
  table[Op::kRepeat] = {
      .check = check_repeat, .items = row_items, .run = run_repeat, .grain = rows_grain};
  table[Op::kRepeatBack] = {
      .check = check_repeat_back, .items = row_items, .run = run_repeat_back, .grain = rows_grain};
}

}  // namespace weft::WEFT_TARGET
