// SOFT_MAX: softmax(scale * a + slope * mask) of each row, with an optional sink per head.
#include "kernels/attention/alibi.h"
#include "kernels/elementwise/reductions.h"
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

void register_softmax(KernelTable& table);

namespace {

// out = scale * x + slope * mask, elementwise; `out` may be either source.
void scores(const Call& call, const float* x, const Tensor* mask, Index row, float* out) {
  const float scale = call.f(SoftMaxSlot::kScale);
  const int64_t n = call.dst.ne[0];
  if (mask == nullptr) return multiply(x, scale, out, n);
  const char* bias = row_data(*mask, {row.i1, row.i2 % mask->ne[2], row.i3 % mask->ne[3]});
  const vf s = splat(scale);
  const vf slope = splat(alibi_slope(row.i2, call.dst.ne[2], call.f(SoftMaxSlot::kMaxBias)));
  for (int64_t i = 0; i < n; i += kPiece) {
    float buffer[kPiece];
    const int64_t part = min64(kPiece, n - i);
    const float* b = as_floats(*mask, bias + i * mask->nb[0], part, buffer);
    map(x + i, b, out + i, part, [=](vf v, vf m) { return v * s + slope * m; });
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  const Tensor* sinks = call.src[2];
  const int64_t n = dst.ne[0];
  auto* buffer = reinterpret_cast<float*>(scratch);
  for (int64_t row = begin; row < end; ++row) {
    const Index index = row_index(dst, row);
    const float* x = as_floats(a, row_data(a, index), n, buffer);
    float* out = float_room(dst, row_data(dst, index), buffer);
    scores(call, x, call.src[1], index, out);
    float top = max_of(out, n, -__builtin_inff());
    double total = 0;
    if (sinks != nullptr) {
      const float sink = load_element(sinks->data + index.i2 * sinks->nb[0], sinks->type);
      top = sink > top ? sink : top;
      total = static_cast<double>(exp(splat(sink - top))[0]);
    }
    const vf t = splat(top);
    map(out, out, n, [t](vf v) { return exp(v - t); });
    total += sum(out, n);
    multiply(out, static_cast<float>(1.0 / total), out, n);
    put_floats(dst, row_data(dst, index), n, out);
  }
}

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor* mask = call.src[1];
  const Tensor* sinks = call.src[2];
  if (const char* why = check_float_map(call)) return why;
  if (mask != nullptr) {
    if (!is_float(mask->type)) return "the mask must be f32, f16 or bf16";
    if (mask->ne[0] < a.ne[0] || mask->ne[1] < a.ne[1] || mask->ne[2] < 1 || mask->ne[3] < 1) {
      return "the mask is smaller than the scores";
    }
  }
  if (sinks != nullptr && (!is_float(sinks->type) || sinks->ne[0] < a.ne[2])) {
    return "a floating-point sink per head is needed";
  }
  return nullptr;
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(4 * call.dst.ne[0]); }

}  // namespace

void register_softmax(KernelTable& table) {
  table[Op::kSoftMax] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = row_scratch};
}

}  // namespace weft::WEFT_TARGET
