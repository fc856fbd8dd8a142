// BINARY: functions of two numbers, broadcast on both sides, as PyTorch defines them.
#include "kernels/tensor/tensor_binary.h"

#include <math.h>

#include "kernels/simd/functions.h"

namespace weft::WEFT_TARGET {

void register_tensor_binary(KernelTable& table);

using namespace binary;

namespace {

// out[i] = f(a[i], b[i]).
template <typename F>
void apply(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 2);
  const DType in = o.of[1].type;
  const DType type = o.of[0].type;
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    float buffer_a[kPiece], buffer_b[kPiece], buffer[kPiece];
    const float* a = numbers_at(p[1], in, steps[1], n, buffer_a);
    const float* b = numbers_at(p[2], in, steps[2], n, buffer_b);
    float* out = lies_as<float>(type, steps[0]) ? reinterpret_cast<float*>(p[0]) : buffer;
    map(a, b, out, n, f);
    if (out == buffer) store_numbers(buffer, n, p[0], type, steps[0]);
  });
}

// out[i] = a[i] - b[i] trunc(a[i] / b[i]), exact as fmodf: quotients of up to 22 bits times b fit a
// double. Returns whether all were such.
bool rests(const float* a, const float* b, int64_t n, float* out) {
  constexpr double kMost = 4194304.0;
  double misfits = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    const double quotient = x / y;
    const bool fits = __builtin_fabs(quotient) < kMost;
    const auto cut = static_cast<int32_t>(fits ? quotient : 0.0);
    misfits = fits ? misfits : 1.0;
    out[i] = __builtin_copysignf(static_cast<float>(x - static_cast<double>(cut) * y), a[i]);
  }
  return misfits == 0;
}

// out[i] = f(a[i], b[i], fmod(a[i], b[i]))
template <typename F>
void apply_rest(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 2);
  const DType type = o.of[0].type;
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    float buffer_a[kPiece], buffer_b[kPiece], rest[kPiece];
    const float* a = numbers_at(p[1], type, steps[1], n, buffer_a);
    const float* b = numbers_at(p[2], type, steps[2], n, buffer_b);
    if (!rests(a, b, n, rest)) {
      for (int64_t i = 0; i < n; ++i) rest[i] = ::fmodf(a[i], b[i]);
    }
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      store(rest + i, f(load(a + i), load(b + i), load(rest + i)));
    }
    if (i < n) {
      const int64_t left = n - i;
      const vf last = f(load_part(a + i, left), load_part(b + i, left), load_part(rest + i, left));
      store_part(rest + i, last, left);
    }
    store_numbers(rest, n, p[0], type, steps[0]);
  });
}

// Where a division that rounds down goes one further than one that cuts.
vi turns(vf b, vf rest) { return (rest != 0.0f) & ((b < 0.0f) != (rest < 0.0f)); }

vf floor_divide(vf a, vf b, vf rest) {
  const vf exact = a / b;
  const vf one = splat(1.0f);
  const vf quotient = (a - rest) / b - (turns(b, rest) ? one : vf{});
  const vf low = floor(quotient);
  const vf whole = quotient - low > 0.5f ? low + one : low;
  const vf result = quotient == 0.0f ? copysign(vf{}, exact) : whole;
  return b == 0.0f ? exact : result;
}

vf remainder_of(vf, vf b, vf rest) { return turns(b, rest) ? rest + b : rest; }

// Rounded to `type`, as PyTorch does before it cuts a quotient.
vf rounded(vf x, DType type) {
  uint16_t words[kLanes];
  if (type == DType::kF16) {
    store_half(words, x);
    return load_half(words);
  }
  if (type == DType::kBF16) {
    store_bf16(words, x);
    return load_bf16(words);
  }
  return x;
}

void run_floats(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply(call, begin, end, f); };
  switch (call.as<BinaryOp>(kOp)) {
    case kAdd:
      return go([](vf a, vf b) { return a + b; });
    case kSub:
      return go([](vf a, vf b) { return a - b; });
    case kMul:
      return go([](vf a, vf b) { return a * b; });
    case kDiv:
      return go([](vf a, vf b) { return a / b; });
    case kFloorDiv:
      return apply_rest(call, begin, end, floor_divide);
    case kTruncDiv: {
      const DType type = call.dst.type;
      return go([type](vf a, vf b) { return trunc(rounded(a / b, type)); });
    }
    case kRemainder:
      return apply_rest(call, begin, end, remainder_of);
    case kFmod:
      return apply_rest(call, begin, end, [](vf, vf, vf rest) { return rest; });
    case kPow:
      return go([](vf a, vf b) { return pow(a, b); });
    case kMin:
      return go([](vf a, vf b) { return ((a < b) | (a != a)) ? a : b; });
    case kMax:
      return go([](vf a, vf b) { return ((a > b) | (a != a)) ? a : b; });
    default:
      return go([](vf a, vf b) { return atan2(a, b); });
  }
}

void run(const Call& call, int64_t begin, int64_t end, char*) {
  const DType type = call.src[0]->type;
  if (is_whole(type)) return run_whole(call, begin, end);
  if (!is_test(call.as<BinaryOp>(kOp))) return run_floats(call, begin, end);
  run_test<float>(call, begin, end,
                  [type](const char* p, int64_t stride, int64_t n, float* buffer) {
                    return numbers_at(p, type, stride, n, buffer);
                  });
}

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  if (!call.is_one<BinaryOp>(kOp)) return "unknown function number";
  const auto function = call.as<BinaryOp>(kOp);
  if (a.type != b.type || !is_number(a.type)) {
    return "needs two operands of one type: f32, f16, bf16, i8, i16, i32 or i64";
  }
  if (call.dst.type != (is_test(function) ? DType::kI8 : a.type)) {
    return "the result has the type of the operands, i8 for tests";
  }
  if (is_float(a.type) ? function >= kBitAnd : function == kDiv || function == kAtan2) {
    return "the function is not defined for these numbers";
  }
  if (!broadcasts_to(a, call.dst) || !broadcasts_to(b, call.dst)) {
    return "operands do not broadcast to the result";
  }
  return nullptr;
}

}  // namespace

void register_tensor_binary(KernelTable& table) {
  table[Op::kBinary] = {
      .check = check, .items = element_items, .run = run, .grain = element_grain, .by_rows = true};
}

}  // namespace weft::WEFT_TARGET
