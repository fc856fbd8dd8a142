// MAP: functions of one number, as PyTorch defines them. A NaN stays a NaN.
#include <math.h>

#include "kernels/activations.h"
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_map(KernelTable& table);

namespace {

// Slots of the record, and the numbers of the functions (graph/params_tensor.py).
enum Slot { kFunction, kA, kB, kC, kSlots };
enum Function {
  kAbs,
  kNeg,
  kSign,
  kBitNot,
  kClamp,
  kRoundEven,
  kExp2,
  kLog2,
  kLog10,
  kLog1p,
  kRsqrt,
  kReciprocal,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kErf,
  kErfc,
  kElu,
  kSoftplus,
  kSoftshrink,
  kHardshrink,
  kThreshold,
  kHardsigmoidNan,
  kMish,
  kLogSigmoid,
  kLeakyReluNan,
  kPow,
  kGeluErf,
  kGeluTanh,
  kLogicalNot,
  kIsNan,
  kIsInf,
  kIsFinite,
  kFunctions
};

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

// A C library function on each lane, for functions that are rare.
template <float (*kOne)(float)>
vf each(vf x) {
  for (int i = 0; i < kLanes; ++i) x[i] = kOne(x[i]);
  return x;
}

vf clamped(vf x, vf low, vf high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

void run_library(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply(call, begin, end, f); };
  switch (call.i(kFunction)) {
    case kRoundEven:
      return go(each<::rintf>);
    case kExp2:
      return go(each<::exp2f>);
    case kLog2:
      return go(each<::log2f>);
    case kLog10:
      return go(each<::log10f>);
    case kLog1p:
      return go(each<::log1pf>);
    case kTan:
      return go(each<::tanf>);
    case kAsin:
      return go(each<::asinf>);
    case kAcos:
      return go(each<::acosf>);
    case kAtan:
      return go(each<::atanf>);
    case kSinh:
      return go(each<::sinhf>);
    case kCosh:
      return go(each<::coshf>);
    case kAsinh:
      return go(each<::asinhf>);
    case kAcosh:
      return go(each<::acoshf>);
    case kAtanh:
      return go(each<::atanhf>);
    default:
      return go(each<::erfcf>);
  }
}

void run_power(const Call& call, int64_t begin, int64_t end) {
  const float exponent = call.f(kA);
  if (exponent == 2.0f) return apply(call, begin, end, [](vf x) { return x * x; });
  if (exponent == 3.0f) return apply(call, begin, end, [](vf x) { return x * x * x; });
  apply(call, begin, end, [=](vf x) {
    for (int i = 0; i < kLanes; ++i) x[i] = ::powf(x[i], exponent);
    return x;
  });
}

void run_floats(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply(call, begin, end, f); };
  const vf a = splat(call.f(kA)), b = splat(call.f(kB)), c = splat(call.f(kC));
  const vf one = splat(1.0f);
  switch (call.i(kFunction)) {
    case kAbs:
      return go([](vf x) { return vabs(x); });
    case kNeg:
      return go([](vf x) { return -x; });
    case kSign:
      return go([=](vf x) { return x > 0.0f ? one : x < 0.0f ? -one : vf{}; });
    case kClamp:
      return go([=](vf x) { return clamped(x, a, b); });
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
    case kHardsigmoidNan:
      return go([](vf x) { return clamped(x + 3.0f, vf{}, splat(6.0f)) / 6.0f; });
    case kMish:
      return go([](vf x) { return x * tanh(log1p(exp(x))); });
    case kLogSigmoid:
      return go([](vf x) { return (x < 0.0f ? x : vf{}) - log1p(exp(-vabs(x))); });
    case kLeakyReluNan:
      return go([=](vf x) { return x > 0.0f ? x : x * a; });
    case kPow:
      return run_power(call, begin, end);
    case kGeluErf:
      return go([](vf x) { return gelu_erf(x); });
    case kGeluTanh:
      return go([](vf x) { return gelu(x); });
    default:
      return run_library(call, begin, end);
  }
}

// A bound as the nearest number of the type.
int64_t whole_bound(double x, DType type) {
  const int64_t most = INT64_MAX >> (64 - 8 * element_size(type));
  if (x >= static_cast<double>(most)) return most;
  if (x <= -static_cast<double>(most) - 1.0) return -most - 1;
  return static_cast<int64_t>(x);
}

template <typename F>
void apply_whole(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 1);
  const DType type = o.of[1].type;
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    int64_t buffer[kPiece];
    load_numbers(p[1], type, steps[1], n, buffer);
    for (int64_t i = 0; i < n; ++i) buffer[i] = f(buffer[i]);
    store_numbers(buffer, n, p[0], o.of[0].type, steps[0]);
  });
}

void run_whole(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply_whole(call, begin, end, f); };
  const auto minus = [](int64_t x) { return static_cast<int64_t>(0 - static_cast<uint64_t>(x)); };
  const DType type = call.src[0]->type;
  switch (call.i(kFunction)) {
    case kAbs:
      return go([=](int64_t x) { return x < 0 ? minus(x) : x; });
    case kNeg:
      return go(minus);
    case kSign:
      return go([](int64_t x) { return static_cast<int64_t>(x > 0) - (x < 0); });
    case kBitNot:
      return go([](int64_t x) { return ~x; });
    case kClamp: {
      const int64_t low = whole_bound(call.params[kA], type);
      const int64_t high = whole_bound(call.params[kB], type);
      return go([=](int64_t x) {
        x = x < low ? low : x;
        return x > high ? high : x;
      });
    }
    case kLogicalNot:
      return go([](int64_t x) { return static_cast<int64_t>(x == 0); });
    default:  // whole numbers are all finite
      return go([one = int64_t{call.i(kFunction) == kIsFinite}](int64_t) { return one; });
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
  switch (call.i(kFunction)) {
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

bool is_test(int64_t function) { return function >= kLogicalNot; }

void run(const Call& call, int64_t begin, int64_t end, char*) {
  if (is_whole(call.src[0]->type)) return run_whole(call, begin, end);
  is_test(call.i(kFunction)) ? run_test(call, begin, end) : run_floats(call, begin, end);
}

bool takes_whole(int64_t function) { return function <= kClamp || is_test(function); }

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  if (call.n_params < kSlots || call.i(kFunction) < 0 || call.i(kFunction) >= kFunctions) {
    return "unknown function number";
  }
  const int64_t function = call.i(kFunction);
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
