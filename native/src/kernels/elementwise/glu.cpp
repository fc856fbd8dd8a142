// GLU: activation(x) * gate, where x and gate are two sources, or the two halves of each row of
// one. GLU_QUANTIZE: the same, written as the blocks that a matmul reads.
#include "kernels/copy/copy_rows.h"
#include "kernels/elements.h"
#include "kernels/matmul/activations.h"

namespace weft::WEFT_TARGET {

void register_glu(KernelTable& table);

namespace {

using enum GluSlot;
using enum GluOp;

template <typename F>
void apply(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Tensor& dst = call.dst;
  const Tensor& a = *call.src[0];
  const bool split = call.src[1] != nullptr;
  const Tensor& b = split ? *call.src[1] : a;
  const int64_t half = split ? 0 : dst.ne[0];
  const bool swapped = !split && call.i(kSwapped) != 0;
  const int64_t x_offset = swapped ? half * a.nb[0] : 0;
  const int64_t gate_offset = swapped ? 0 : half * b.nb[0];
  for_pieces(dst, begin, end, [&](const Piece& p) {
    float left[kPiece];
    float right[kPiece];
    const float* x = as_floats(a, element(a, p) + x_offset, p.n, left);
    const float* gate = as_floats(b, element(b, p) + gate_offset, p.n, right);
    if (is_quantized(dst.type)) {
      map(x, gate, left, p.n, f);
      store_range(left, p.n, dst, row_data(dst, p.row), p.first);
      return;
    }
    char* out = element(dst, p);
    float* room = float_room(dst, out, left);
    map(x, gate, room, p.n, f);
    put_floats(dst, out, p.n, room);
  });
}

void run(const Call& call, int64_t begin, int64_t end, char*) {
  const auto each = [&](const auto& f) { apply(call, begin, end, f); };
  const vf alpha = splat(call.f(kAlpha));
  const vf limit = splat(call.f(kLimit));
  switch (call.as<GluOp>(kOp)) {
    case kReglu:
      return each([](vf x, vf gate) { return relu(x) * gate; });
    case kGeglu:
      return each([](vf x, vf gate) { return gelu(x) * gate; });
    case kSwiglu:
      return each([](vf x, vf gate) { return silu(x) * gate; });
    case kSwigluOai:
      return each([=](vf x, vf gate) {
        const vf low = vmin(x, limit);
        return low * sigmoid(alpha * low) * (vmax(vmin(gate, limit), -limit) + 1.0f);
      });
    case kGegluErf:
      return each([](vf x, vf gate) { return gelu_erf(x) * gate; });
    case kGegluQuick:
      return each([](vf x, vf gate) { return gelu_quick(x) * gate; });
    default:
      return each(
          [=](vf x, vf gate) { return silu(vmin(x, limit)) * vmax(vmin(gate, limit), -limit); });
  }
}

const char* check_sources(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor* b = call.src[1];
  if (!call.is_one<GluOp>(kOp)) return "unknown activation number";
  if (!is_float(a.type) || (b != nullptr && !is_float(b->type))) {
    return "needs f32, f16 or bf16 operands";
  }
  if (b != nullptr && !same_shape(a, *b)) return "the two sources differ in shape";
  if (a.ne[0] != (b != nullptr ? call.dst.ne[0] : 2 * call.dst.ne[0])) {
    return "rows of one source must be twice as long as those of the result, rows of two as long";
  }
  for (int d = 1; d < 4; ++d) {
    if (a.ne[d] != call.dst.ne[d]) return "result and source differ in shape";
  }
  return nullptr;
}

const char* check(const Call& call) {
  if (!is_float(call.dst.type)) return "needs f32, f16 or bf16 operands";
  return check_sources(call);
}

const char* check_quantize(const Call& call) {
  if (!can_encode(call.dst.type)) return "the result must be of a block type that can be written";
  return check_sources(call);
}

}  // namespace

void register_glu(KernelTable& table) {
  table[Op::kGlu] = {
      .check = check, .items = element_items, .run = run, .grain = element_grain, .by_rows = true};
  table[Op::kGluQuantize] = {.check = check_quantize,
                             .items = element_items,
                             .run = run,
                             .grain = element_grain,
                             .by_rows = true};
}

}  // namespace weft::WEFT_TARGET
