// Functions of one element: UNARY, SCALE, SQRT, LOG, SIN, COS, CLAMP, LEAKY_RELU, FILL.
#include "kernels/matmul/activations.h"
#include "kernels/numbers.h"
#include "kernels/simd/functions.h"

namespace weft::WEFT_TARGET {

void register_unary(KernelTable& table);

namespace {

using enum UnarySlot;
using enum UnaryOp;

template <typename F>
void apply(const Call& call, int64_t begin, int64_t end, const F& f) {
  const DType from = call.src[0]->type;
  const DType to = call.dst.type;
  for_operands(Operands(call, 1), begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    float buffer[kPiece];
    const float* x = numbers_at(p[1], from, steps[1], n, buffer);
    const bool plain = lies_as<float>(to, steps[0]);
    float* room = plain ? reinterpret_cast<float*>(p[0]) : buffer;
    map(x, room, n, f);
    if (!plain) store_numbers(room, n, p[0], to, steps[0]);
  });
}

vf one_where(vi condition) { return condition ? splat(1.0f) : vf{}; }

void run_unary(const Call& call, int64_t begin, int64_t end, char*) {
  const auto go = [&](const auto& f) { apply(call, begin, end, f); };
  switch (call.as<UnaryOp>(kOp)) {
    case kAbs:
      return go([](vf x) { return vabs(x); });
    case kSgn:
      return go([](vf x) { return one_where(x > 0.0f) - one_where(x < 0.0f); });
    case kNeg:
      return go([](vf x) { return -x; });
    case kStep:
      return go([](vf x) { return one_where(x > 0.0f); });
    case kTanh:
      return go([](vf x) { return tanh(x); });
    case kElu:
      return go([](vf x) { return x > 0.0f ? x : expm1(x); });
    case kRelu:
      return go([](vf x) { return relu(x); });
    case kSigmoid:
      return go([](vf x) { return sigmoid(x); });
    case kGelu:
      return go([](vf x) { return gelu(x); });
    case kGeluQuick:
      return go([](vf x) { return gelu_quick(x); });
    case kSilu:
      return go([](vf x) { return silu(x); });
    case kHardswish:
      return go([](vf x) { return hard_swish(x); });
    case kHardsigmoid:
      return go([](vf x) { return hard_sigmoid(x); });
    case kExp:
      return go([](vf x) { return exp(x); });
    case kExpm1:
      return go([](vf x) { return expm1(x); });
    case kSoftplus:
      return go([](vf x) { return softplus(x); });
    case kGeluErf:
      return go([](vf x) { return gelu_erf(x); });
    case kXielu: {
      const vf alpha_n = splat(call.f(kAlphaN));
      const vf alpha_p = splat(call.f(kAlphaP));
      const vf beta = splat(call.f(kBeta));
      const vf eps = splat(call.f(kEps));
      return go([=](vf x) {
        const vf negative = (expm1(x < eps ? x : eps) - x) * alpha_n;
        return (x > 0.0f ? alpha_p * x * x : negative) + beta * x;
      });
    }
    case kFloor:
      return go([](vf x) { return floor(x); });
    case kCeil:
      return go([](vf x) { return ceil(x); });
    case kRound:
      return go([](vf x) { return round(x); });
    default:
      return go([](vf x) { return trunc(x); });
  }
}

void run_scale(const Call& call, int64_t begin, int64_t end, char*) {
  const vf s = splat(call.f(ScaleSlot::kS));
  const vf b = splat(call.f(ScaleSlot::kB));
  apply(call, begin, end, [=](vf x) { return x * s + b; });
}
void run_sqrt(const Call& call, int64_t begin, int64_t end, char*) {
  apply(call, begin, end, [](vf x) { return vsqrt(x); });
}
void run_log(const Call& call, int64_t begin, int64_t end, char*) {
  apply(call, begin, end, [](vf x) { return log(x); });
}
void run_sin(const Call& call, int64_t begin, int64_t end, char*) {
  apply(call, begin, end, [](vf x) { return sin(x); });
}
void run_cos(const Call& call, int64_t begin, int64_t end, char*) {
  apply(call, begin, end, [](vf x) { return cos(x); });
}
// A NaN becomes the upper bound, as in ggml.
void run_clamp(const Call& call, int64_t begin, int64_t end, char*) {
  const vf low = splat(call.f(ClampSlot::kMin));
  const vf high = splat(call.f(ClampSlot::kMax));
  apply(call, begin, end, [=](vf x) { return vmax(vmin(x, high), low); });
}
void run_leaky_relu(const Call& call, int64_t begin, int64_t end, char*) {
  const vf slope = splat(call.f(LeakyReluSlot::kNegativeSlope));
  apply(call, begin, end, [=](vf x) { return relu(x) + slope * (x < 0.0f ? x : vf{}); });
}
void run_fill(const Call& call, int64_t begin, int64_t end, char*) {
  const vf c = splat(call.f(FillSlot::kC));
  const DType to = call.dst.type;
  for_operands(Operands(call, 0), begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    float buffer[kPiece];
    const bool plain = lies_as<float>(to, steps[0]);
    float* room = plain ? reinterpret_cast<float*>(p[0]) : buffer;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) store(room + i, c);
    if (i < n) store_part(room + i, c, n - i);
    if (!plain) store_numbers(room, n, p[0], to, steps[0]);
  });
}

const char* check(const Call& call) {
  if (!is_float(call.dst.type) || !is_float(call.src[0]->type)) {
    return "needs f32, f16 or bf16 operands";
  }
  if (!same_shape(call.dst, *call.src[0])) return "result and source differ in shape";
  return nullptr;
}

const char* check_unary(const Call& call) {
  if (const char* why = check(call)) return why;
  return call.is_one<UnaryOp>(kOp) ? nullptr : "unknown function number";
}

constexpr Kernel kernel(void (*run)(const Call&, int64_t, int64_t, char*)) {
  return {
      .check = check, .items = element_items, .run = run, .grain = element_grain, .by_rows = true};
}

}  // namespace

void register_unary(KernelTable& table) {
  table[Op::kUnary] = {.check = check_unary,
                       .items = element_items,
                       .run = run_unary,
                       .grain = element_grain,
                       .by_rows = true};
  table[Op::kScale] = kernel(run_scale);
  table[Op::kSqrt] = kernel(run_sqrt);
  table[Op::kLog] = kernel(run_log);
  table[Op::kSin] = kernel(run_sin);
  table[Op::kCos] = kernel(run_cos);
  table[Op::kClamp] = kernel(run_clamp);
  table[Op::kLeakyRelu] = kernel(run_leaky_relu);
  table[Op::kFill] = kernel(run_fill);
}

}  // namespace weft::WEFT_TARGET
