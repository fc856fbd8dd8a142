// TRI, DIAG_MASK_INF, DIAG_MASK_ZERO: keep a range of each row and fill the rest with one value.
// DIAG: puts rows on the diagonals of matrices.
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

void register_mask(KernelTable& table);

namespace {

using enum TriKind;

// The elements begin..end (exclusive) of a row.
struct Range {
  int64_t begin;
  int64_t end;
};

Range triangle(const Call& call, int64_t i1) {
  switch (call.as<TriKind>(TriSlot::kKind)) {
    case kUpperDiag:
      return {i1, call.dst.ne[0]};
    case kUpper:
      return {i1 + 1, call.dst.ne[0]};
    case kLowerDiag:
      return {0, i1 + 1};
    default:
      return {0, i1};
  }
}

Range past(const Call& call, int64_t i1) { return {0, call.i(DiagMaskSlot::kNPast) + i1 + 1}; }

template <Range (*kKept)(const Call&, int64_t)>
void run(const Call& call, int64_t begin, int64_t end, float rest) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const char* x = row_data(a, index);
    char* out = row_data(dst, index);
    const Range kept = kKept(call, index.i1);
    for (int64_t i = 0; i < dst.ne[0]; ++i) {
      const bool keep = i >= kept.begin && i < kept.end;
      store_element(out + i * dst.nb[0], dst.type,
                    keep ? load_element(x + i * a.nb[0], a.type) : rest);
    }
  }
}

void run_tri(const Call& call, int64_t begin, int64_t end, char*) {
  run<triangle>(call, begin, end, 0);
}
void run_mask_zero(const Call& call, int64_t begin, int64_t end, char*) {
  run<past>(call, begin, end, 0);
}
void run_mask_inf(const Call& call, int64_t begin, int64_t end, char*) {
  run<past>(call, begin, end, -__builtin_inff());
}

const char* check_tri(const Call& call) {
  if (const char* why = check_float_map(call)) return why;
  return call.is_one<TriKind>(TriSlot::kKind) ? nullptr : "unknown triangle";
}

// Makes each row of the source the diagonal of a square matrix.
void run_diag(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const char* x = row_data(a, {0, index.i2, index.i3}) + index.i1 * a.nb[0];
    char* out = row_data(dst, index);
    for (int64_t i = 0; i < dst.ne[0]; ++i) {
      store_element(out + i * dst.nb[0], dst.type, i == index.i1 ? load_element(x, a.type) : 0.0f);
    }
  }
}

const char* check_diag(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  if (const char* why = check_floats(call)) return why;
  if (a.ne[1] != 1 || dst.ne[0] != a.ne[0] || dst.ne[1] != a.ne[0] || dst.ne[2] != a.ne[2] ||
      dst.ne[3] != a.ne[3]) {
    return "the result must be a square matrix per row of the source";
  }
  return nullptr;
}

int64_t items(const Call& call) { return n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0]); }

}  // namespace

void register_mask(KernelTable& table) {
  table[Op::kTri] = {.check = check_tri, .items = items, .run = run_tri, .grain = grain};
  table[Op::kDiag] = {.check = check_diag, .items = items, .run = run_diag, .grain = grain};
  table[Op::kDiagMaskInf] = {
      .check = check_float_map, .items = items, .run = run_mask_inf, .grain = grain};
  table[Op::kDiagMaskZero] = {
      .check = check_float_map, .items = items, .run = run_mask_zero, .grain = grain};
}

}  // namespace weft::WEFT_TARGET
