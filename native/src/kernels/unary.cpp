// Functions of one element: UNARY, SCALE, SQR, SQRT, LOG, SIN, COS, CLAMP, LEAKY_RELU, FILL.
#include "kernels/activations.h"
#include "kernels/elements.h"
#include "kernels/simd/functions.h"

namespace weft::WEFT_TARGET {

void register_unary(KernelTable& table);

namespace {

// Slots of the parameter record of UNARY, and the numbers of its functions (graph/params.py).
enum UnarySlot { kFunction, kAlphaN, kAlphaP, kBeta, kEps, kUnarySlots };
enum Function {
  kAbs,
  kSgn,
  kNeg,
  kStep,
  kTanh,
  kElu,
  kRelu,
  kSigmoid,
  kGelu,
  kGeluQuick,
  kSilu,
  kHardswish,
  kHardsigmoid,
  kExp,
  kExpm1,
  kSoftplus,
  kGeluErf,
  kXielu,
  kFloor,
  kCeil,
  kRound,
  kTrunc,
  kFunctions
};

template <typename F>
void apply(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  for_pieces(dst, begin, end, [&](const Piece& p) {
    float buffer[kPiece];
    const float* x = as_floats(a, element(a, p), p.n, buffer);
    char* out = element(dst, p);
    float* room = float_room(dst, out, buffer);
    map(x, room, p.n, f);
    put_floats(dst, out, p.n, room);
  });
}

vf one_where(vi condition) { return condition ? splat(1.0f) : vf{}; }

void run_unary(const Call& call, int64_t begin, int64_t end, char*) {
  const auto go = [&](const auto& f) { apply(call, begin, end, f); };
  switch (call.i(kFunction)) {
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
      return go([](vf x) { return x * hard_sigmoid(x); });
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
  const vf s = splat(call.f(0));
  const vf b = splat(call.f(1));
  apply(call, begin, end, [=](vf x) { return x * s + b; });
}
void run_sqr(const Call& call, int64_t begin, int64_t end, char*) {
  apply(call, begin, end, [](vf x) { return x * x; });
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
  const vf low = splat(call.f(0));
  const vf high = splat(call.f(1));
  apply(call, begin, end, [=](vf x) { return vmax(vmin(x, high), low); });
}
void run_leaky_relu(const Call& call, int64_t begin, int64_t end, char*) {
  const vf slope = splat(call.f(0));
  apply(call, begin, end, [=](vf x) { return relu(x) + slope * (x < 0.0f ? x : vf{}); });
}
void run_fill(const Call& call, int64_t begin, int64_t end, char*) {
  const vf c = splat(call.f(0));
  const Tensor& dst = call.dst;
  for_pieces(dst, begin, end, [&](const Piece& p) {
    float buffer[kPiece];
    char* out = element(dst, p);
    float* room = float_room(dst, out, buffer);
    int64_t i = 0;
    for (; i + kLanes <= p.n; i += kLanes) store(room + i, c);
    if (i < p.n) store_part(room + i, c, p.n - i);
    put_floats(dst, out, p.n, room);
  });
}

template <int kSlots>
const char* check(const Call& call) {
  if (!is_float(call.dst.type) || !is_float(call.src[0]->type)) {
    return "needs f32, f16 or bf16 operands";
  }
  if (!same_shape(call.dst, *call.src[0])) return "result and source differ in shape";
  if (call.n_params < kSlots) return "parameters are missing";
  return nullptr;
}

const char* check_unary(const Call& call) {
  if (const char* why = check<kUnarySlots>(call)) return why;
  if (call.i(kFunction) < 0 || call.i(kFunction) >= kFunctions) return "unknown function number";
  return nullptr;
}

template <int kSlots>
constexpr Kernel kernel(void (*run)(const Call&, int64_t, int64_t, char*)) {
  return {.check = check<kSlots>,
          .items = element_items,
          .run = run,
          .grain = element_grain,
          .by_rows = true};
}

}  // namespace

void register_unary(KernelTable& table) {
  table[Op::kUnary] = {.check = check_unary,
                       .items = element_items,
                       .run = run_unary,
                       .grain = element_grain,
                       .by_rows = true};
  table[Op::kScale] = kernel<2>(run_scale);
  table[Op::kSqr] = kernel<0>(run_sqr);
  table[Op::kSqrt] = kernel<0>(run_sqrt);
  table[Op::kLog] = kernel<0>(run_log);
  table[Op::kSin] = kernel<0>(run_sin);
  table[Op::kCos] = kernel<0>(run_cos);
  table[Op::kClamp] = kernel<2>(run_clamp);
  table[Op::kLeakyRelu] = kernel<1>(run_leaky_relu);
  table[Op::kFill] = kernel<1>(run_fill);
}

}  // namespace weft::WEFT_TARGET
