// MAP: functions of one number, as PyTorch defines them. A NaN stays a NaN.
#include <math.h>

#include "kernels/matmul/activations.h"
#include "kernels/numbers.h"
#include "kernels/simd/functions.h"

namespace weft::WEFT_TARGET {

void register_tensor_map(KernelTable& table);

namespace {

using enum MapSlot;
using enum MapOp;

template <typename F>
void apply(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 1);
  const DType type = o.of[1].type;
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    float buffer[kPiece];
    const float* x = numbers_at(p[1], type, steps[1], n, buffer);
    float* out = lies_as<float>(type, steps[0]) ? reinterpret_cast<float*>(p[0]) : buffer;
    map(x, out, n, f);
    if (out == buffer) store_numbers(buffer, n, p[0], type, steps[0]);
  });
}

void run_elementary(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply(call, begin, end, f); };
  switch (call.as<MapOp>(kOp)) {
    case kRoundEven:
      return go([](vf x) { return round_even(x); });
    case kExp2:
      return go([](vf x) { return exp2(x); });
    case kLog2:
      return go([](vf x) { return log2(x); });
    case kLog10:
      return go([](vf x) { return log10(x); });
    case kLog1p:
      return go([](vf x) { return log1p_any(x); });
    case kTan:
      return go([](vf x) { return tan(x); });
    case kAsin:
      return go([](vf x) { return asin(x); });
    case kAcos:
      return go([](vf x) { return acos(x); });
    case kAtan:
      return go([](vf x) { return atan(x); });
    case kSinh:
      return go([](vf x) { return sinh(x); });
    case kCosh:
      return go([](vf x) { return cosh(x); });
    case kAsinh:
      return go([](vf x) { return asinh(x); });
    case kAcosh:
      return go([](vf x) { return acosh(x); });
    case kAtanh:
      return go([](vf x) { return atanh(x); });
    default:
      return go(each<::erfcf>);
  }
}

void run_power(const Call& call, int64_t begin, int64_t end) {
  const float exponent = call.f(kA);
  if (exponent == 2.0f) return apply(call, begin, end, [](vf x) { return x * x; });
  if (exponent == 3.0f) return apply(call, begin, end, [](vf x) { return x * x * x; });
  const vf b = splat(exponent);
  apply(call, begin, end, [=](vf x) { return pow(x, b); });
}

void run_floats(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply(call, begin, end, f); };
  const vf a = splat(call.f(kA)), b = splat(call.f(kB)), c = splat(call.f(kC));
  const vf one = splat(1.0f);
  switch (call.as<MapOp>(kOp)) {
    case kAbs:
      return go([](vf x) { return vabs(x); });
    case kNeg:
      return go([](vf x) { return -x; });
    case kSign:
      return go([=](vf x) { return x > 0.0f ? one : x < 0.0f ? -one : vf{}; });
    case kClamp:
      return go([=](vf x) { return limit(x, a, b); });
    case kRsqrt:
      return go([](vf x) { return 1.0f / vsqrt(x); });
    case kReciprocal:
      return go([](vf x) { return 1.0f / x; });
    case kErf:
      return go([](vf x) { return erf(x); });
    case kElu:
      return go([=](vf x) { return x > 0.0f ? x * b : a * b * expm1((x > 0.0f ? vf{} : x) * c); });
    case kSoftplus:
      return go([=](vf x) { return x * a > b ? x : log1p(exp(x * a)) / a; });
    case kSoftshrink:
      return go([=](vf x) { return x > a ? x - a : x < -a ? x + a : x * 0.0f; });
    case kHardshrink:
      return go([=](vf x) { return x > a ? x : x >= -a ? (x != x ? x : vf{}) : x; });
    case kThreshold:
      return go([=](vf x) { return x <= a ? b : x; });
    case kHardsigmoid:
      return go([](vf x) { return limit(x + 3.0f, vf{}, splat(6.0f)) / 6.0f; });
    case kMish:
      return go([](vf x) { return x * tanh(log1p(exp(x))); });
    case kLogSigmoid:
      return go([](vf x) { return (x < 0.0f ? x : vf{}) - log1p(exp(-vabs(x))); });
    case kLeakyRelu:
      return go([=](vf x) { return x > 0.0f ? x : x * a; });
    case kPow:
      return run_power(call, begin, end);
    case kGelu:
      return go([](vf x) { return gelu_erf(x); });
    case kGeluTanh:
      return go([](vf x) { return gelu(x); });
    default:
      return run_elementary(call, begin, end);
  }
}

// A bound as the nearest number of the type.
int64_t whole_bound(double x, DType type) {
  const int64_t most = INT64_MAX >> (64 - 8 * element_size(type));
  if (x >= static_cast<double>(most)) return most;
  if (x <= -static_cast<double>(most) - 1.0) return -most - 1;
  return static_cast<int64_t>(x);
}

template <typename T, typename F>
void apply_whole(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 1);
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    T buffer[kPiece];
    const T* x = elements_at(p[1], steps[1], n, buffer);
    T* out = element_room(p[0], steps[0], buffer);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(f(x[i]));
    put_elements(out, n, p[0], steps[0]);
  });
}

template <typename T, typename F>
void test_whole(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 1);
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    T buffer[kPiece];
    int8_t results[kPiece];
    const T* x = elements_at(p[1], steps[1], n, buffer);
    int8_t* out = element_room(p[0], steps[0], results);
    for (int64_t i = 0; i < n; ++i) out[i] = f(x[i]) ? 1 : 0;
    put_elements(out, n, p[0], steps[0]);
  });
}

template <typename T>
void run_whole(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply_whole<T>(call, begin, end, f); };
  const auto test = [&](const auto& f) { test_whole<T>(call, begin, end, f); };
  const auto minus = [](T x) { return 0 - static_cast<uint64_t>(x); };
  const DType type = call.src[0]->type;
  switch (call.as<MapOp>(kOp)) {
    case kAbs:
      return go([=](T x) { return x < 0 ? minus(x) : static_cast<uint64_t>(x); });
    case kNeg:
      return go(minus);
    case kSign:
      return go([](T x) { return (x > 0) - (x < 0); });
    case kBitNot:
      return go([](T x) { return ~x; });
    case kClamp: {
      const auto low = static_cast<T>(whole_bound(call.number(kA), type));
      const auto high = static_cast<T>(whole_bound(call.number(kB), type));
      return go([=](T x) {
        x = x < low ? low : x;
        return x > high ? high : x;
      });
    }
    case kLogicalNot:
      return test([](T x) { return x == 0; });
    default:  // whole numbers are all finite
      return test([finite = call.as<MapOp>(kOp) == kIsFinite](T) { return finite; });
  }
}

template <typename F>
void test(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 1);
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    float buffer[kPiece];
    const float* x = numbers_at(p[1], o.of[1].type, steps[1], n, buffer);
    if (steps[0] == 1) {
      auto* out = reinterpret_cast<int8_t*>(p[0]);
      for (int64_t i = 0; i < n; ++i) out[i] = f(x[i]) ? 1 : 0;
    } else {
      for (int64_t i = 0; i < n; ++i) p[0][i * steps[0]] = f(x[i]) ? 1 : 0;
    }
  });
}

void run_test(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { test(call, begin, end, f); };
  constexpr float kMost = 3.402823466e+38f;
  switch (call.as<MapOp>(kOp)) {
    case kLogicalNot:
      return go([](float x) { return x == 0; });
    case kIsNan:
      return go([](float x) { return x != x; });
    case kIsInf:
      return go([](float x) { return x > kMost || x < -kMost; });
    default:
      return go([](float x) { return x <= kMost && x >= -kMost; });
  }
}

bool is_test(MapOp function) { return function >= kLogicalNot; }

void run(const Call& call, int64_t begin, int64_t end, char*) {
  const DType type = call.src[0]->type;
  if (is_whole(type)) {
    return with_whole_type(type, [&](auto one) { run_whole<decltype(one)>(call, begin, end); });
  }
  is_test(call.as<MapOp>(kOp)) ? run_test(call, begin, end) : run_floats(call, begin, end);
}

bool takes_whole(MapOp function) { return function <= kClamp || is_test(function); }

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  if (!call.is_one<MapOp>(kOp)) return "unknown function number";
  const auto function = call.as<MapOp>(kOp);
  if (!is_number(a.type)) return "needs f32, f16, bf16, i8, i16, i32 or i64";
  if (is_whole(a.type) ? !takes_whole(function) : function == kBitNot) {
    return "the function is not defined for these numbers";
  }
  if (call.dst.type != (is_test(function) ? DType::kI8 : a.type)) {
    return "the result has the type of the source, i8 for tests";
  }
  return same_shape(call.dst, a) ? nullptr : "result and source differ in shape";
}

}  // namespace

void register_tensor_map(KernelTable& table) {
  table[Op::kMap] = {
      .check = check, .items = element_items, .run = run, .grain = element_grain, .by_rows = true};
}

}  // namespace weft::WEFT_TARGET
