// ADD, SUB, MUL, DIV: the second source repeats to the first.
#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

void register_binary(KernelTable& table);

namespace {

struct AddOp {
  static vf apply(vf a, vf b) { return a + b; }
  static float apply(float a, float b) { return a + b; }
};
struct SubOp {
  static vf apply(vf a, vf b) { return a - b; }
  static float apply(float a, float b) { return a - b; }
};
struct MulOp {
  static vf apply(vf a, vf b) { return a * b; }
  static float apply(float a, float b) { return a * b; }
};
struct DivOp {
  static vf apply(vf a, vf b) { return a / b; }
  static float apply(float a, float b) { return a / b; }
};

template <typename F>
void row_f32(const float* a, const float* b, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, F::apply(load(a + i), load(b + i)));
  for (; i < n; ++i) out[i] = F::apply(a[i], b[i]);
}

template <typename F>
void run(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& dst = call.dst;
  const bool plain = a.type == DType::kF32 && b.type == DType::kF32 && dst.type == DType::kF32 &&
                     a.nb[0] == 4 && b.nb[0] == 4 && dst.nb[0] == 4;
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const char* pa = row_data(a, index);
    const char* pb = broadcast_row(b, index);
    char* pd = row_data(dst, index);
    if (plain && b.ne[0] > 1) {
      for (int64_t i = 0; i < dst.ne[0]; i += b.ne[0]) {
        row_f32<F>(reinterpret_cast<const float*>(pa) + i, reinterpret_cast<const float*>(pb),
                   reinterpret_cast<float*>(pd) + i, b.ne[0]);
      }
      continue;
    }
    for (int64_t i = 0; i < dst.ne[0]; ++i) {
      const float x = load_element(pa + i * a.nb[0], a.type);
      const float y = load_element(pb + (i % b.ne[0]) * b.nb[0], b.type);
      store_element(pd + i * dst.nb[0], dst.type, F::apply(x, y));
    }
  }
}

const char* check(const Call& call) {
  if (!is_float(call.dst.type) || !is_float(call.src[0]->type) || !is_float(call.src[1]->type)) {
    return "needs f32, f16 or bf16 operands";
  }
  if (!same_shape(call.dst, *call.src[0])) return "result and first source differ in shape";
  for (int d = 0; d < 4; ++d) {
    if (call.src[1]->ne[d] == 0 || call.dst.ne[d] % call.src[1]->ne[d] != 0) {
      return "the second source does not repeat to the first";
    }
  }
  return nullptr;
}

int64_t items(const Call& call) { return n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0]); }

template <typename F>
constexpr Kernel kernel() {
  return {.check = check, .items = items, .run = run<F>, .grain = grain};
}

}  // namespace

void register_binary(KernelTable& table) {
  table[Op::kAdd] = kernel<AddOp>();
  table[Op::kSub] = kernel<SubOp>();
  table[Op::kMul] = kernel<MulOp>();
  table[Op::kDiv] = kernel<DivOp>();
}

}  // namespace weft::WEFT_TARGET
