// ADD, SUB, MUL, DIV: the second source is repeated to the shape of the first. ADD_ID: adds to each
// row the row of the second source that an index names.
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_binary(KernelTable& table);

namespace {

struct AddOp {
  vf operator()(vf a, vf b) const { return a + b; }
};
struct SubOp {
  vf operator()(vf a, vf b) const { return a - b; }
};
struct MulOp {
  vf operator()(vf a, vf b) const { return a * b; }
};
struct DivOp {
  vf operator()(vf a, vf b) const { return a / b; }
};

// The elements first..first+n of a row of `b` that is repeated without end.
const float* repeated(const Tensor& b, const char* row, int64_t first, int64_t n, float* buffer) {
  if (b.ne[0] == 1) {
    const float value = load_element(row, b.type);
    for (int64_t i = 0; i < n; ++i) buffer[i] = value;
    return buffer;
  }
  int64_t at = first % b.ne[0];
  if (at + n <= b.ne[0]) return as_floats(b, row + at * b.nb[0], n, buffer);
  for (int64_t i = 0; i < n;) {
    const int64_t part = min64(n - i, b.ne[0] - at);
    load_floats(row + at * b.nb[0], b.type, b.nb[0], part, buffer + i);
    i += part;
    at = 0;
  }
  return buffer;
}

// The elements of a piece of `a`, of any type, as floats.
const float* decoded(const Tensor& a, const Piece& p, float* buffer) {
  const int64_t block = dtype_info(a.type).block;
  if (block == 1) return as_floats(a, element(a, p), p.n, buffer);
  table().type(a.type).to_float(row_data(a, p.row) + p.first / block * a.nb[0], buffer, p.n);
  return buffer;
}

template <typename F>
void run(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& dst = call.dst;
  if (is_float(a.type) && is_float(dst.type) && broadcasts_to(b, dst)) {
    return for_operands(Operands(call, 2), begin, end,
                        [&](char* const* p, const int64_t* steps, int64_t n) {
                          float left[kPiece];
                          float right[kPiece];
                          const float* x = numbers_at(p[1], a.type, steps[1], n, left);
                          const float* y = numbers_at(p[2], b.type, steps[2], n, right);
                          const bool plain = lies_as<float>(dst.type, steps[0]);
                          float* room = plain ? reinterpret_cast<float*>(p[0]) : left;
                          map(x, y, room, n, F());
                          if (!plain) store_numbers(room, n, p[0], dst.type, steps[0]);
                        });
  }
  const int64_t block = dtype_info(dst.type).block;
  for_pieces(dst, begin, end, [&](const Piece& p) {
    float left[kPiece];
    float right[kPiece];
    const float* x = decoded(a, p, left);
    const float* y = repeated(b, broadcast_row(b, p.row), p.first, p.n, right);
    if (block == 1) {
      char* out = element(dst, p);
      float* room = float_room(dst, out, left);
      map(x, y, room, p.n, F());
      put_floats(dst, out, p.n, room);
    } else {
      map(x, y, left, p.n, F());
      char* out = row_data(dst, p.row) + p.first / block * dst.nb[0];
      table().type(dst.type).from_float(left, out, p.n);
    }
  });
}

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  if (!is_float(a.type) && !can_decode(a.type)) {
    return "the first source must be f32, f16, bf16 or a block type that can be decoded";
  }
  if (!is_float(b.type)) return "the second source must be f32, f16 or bf16";
  if (!is_float(call.dst.type) && !can_encode(call.dst.type)) {
    return "the result must be f32, f16, bf16 or a block type that can be written";
  }
  if (!same_shape(call.dst, a)) return "result and first source differ in shape";
  for (int d = 0; d < 4; ++d) {
    if (call.dst.ne[d] != 0 && (b.ne[d] == 0 || call.dst.ne[d] % b.ne[d] != 0)) {
      return "the sizes of the first source must be multiples of those of the second";
    }
  }
  return nullptr;
}

template <typename F>
constexpr Kernel kernel() {
  return {.check = check,
          .items = element_items,
          .run = run<F>,
          .grain = element_grain,
          .by_rows = true};
}

// ---- ADD_ID: dst[:, i1, i2] = a[:, i1, i2] + b[:, ids[i1, i2]] ----------------------------------

void run_id(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& ids = *call.src[2];
  const Tensor& dst = call.dst;
  for_pieces(dst, begin, end, [&](const Piece& p) {
    float left[kPiece];
    float right[kPiece];
    int32_t id;
    std::memcpy(&id, ids.data + p.row.i1 * ids.nb[0] + p.row.i2 * ids.nb[1], 4);
    const float* x = as_floats(a, element(a, p), p.n, left);
    const float* y = right;
    if (id >= 0 && id < b.ne[1]) {
      y = as_floats(b, b.data + id * b.nb[1] + p.first * b.nb[0], p.n, right);
    } else {
      // There is no such row; NaN makes that visible.
      for (int64_t i = 0; i < p.n; ++i) right[i] = __builtin_nanf("");
    }
    char* out = element(dst, p);
    float* room = float_room(dst, out, left);
    map(x, y, room, p.n, AddOp());
    put_floats(dst, out, p.n, room);
  });
}

const char* check_id(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& ids = *call.src[2];
  if (!is_float(a.type) || !is_float(b.type) || !is_float(call.dst.type)) {
    return "needs f32, f16 or bf16 operands";
  }
  if (ids.type != DType::kI32) return "row numbers must be i32";
  if (!same_shape(call.dst, a)) return "result and first source differ in shape";
  if (b.ne[0] != a.ne[0]) return "rows of the two sources differ in length";
  if (ids.ne[0] < a.ne[1] || ids.ne[1] < a.ne[2]) return "there must be one row number per row";
  return nullptr;
}

}  // namespace

void register_binary(KernelTable& table) {
  table[Op::kAdd] = kernel<AddOp>();
  table[Op::kSub] = kernel<SubOp>();
  table[Op::kMul] = kernel<MulOp>();
  table[Op::kDiv] = kernel<DivOp>();
  table[Op::kAddId] = {
      .check = check_id, .items = element_items, .run = run_id, .grain = element_grain};
}

}  // namespace weft::WEFT_TARGET
