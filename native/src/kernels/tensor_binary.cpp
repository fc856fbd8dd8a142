// BINARY: functions of two numbers, broadcast on both sides, as PyTorch defines them.
#include <math.h>

#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_binary(KernelTable& table);

namespace {

// The numbers of graph/params_tensor.py.
enum Function {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kTruncDiv,
  kRemainder,
  kFmod,
  kPow,
  kMin,
  kMax,
  kAtan2,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kBitAnd,
  kBitOr,
  kBitXor,
  kShiftLeft,
  kShiftRight,
  kFunctions
};

// out[i] = f(a[i], b[i]), as numbers of T.
template <typename T, typename F>
void apply(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 2);
  const DType in = o.of[1].type;
  const DType type = o.of[0].type;
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    T buffer_a[kPiece], buffer_b[kPiece], buffer[kPiece];
    const T* a = numbers_at(p[1], in, steps[1], n, buffer_a);
    const T* b = numbers_at(p[2], in, steps[2], n, buffer_b);
    T* out = lies_as<T>(type, steps[0]) ? reinterpret_cast<T*>(p[0]) : buffer;
    for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]);
    if (out == buffer) store_numbers(buffer, n, p[0], type, steps[0]);
  });
}

// out[i] = f(a[i], b[i]) as 0 or 1.
template <typename T, typename F>
void test(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 2);
  const DType in = o.of[1].type;
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    T buffer_a[kPiece], buffer_b[kPiece];
    int8_t buffer[kPiece];
    const T* a = numbers_at(p[1], in, steps[1], n, buffer_a);
    const T* b = numbers_at(p[2], in, steps[2], n, buffer_b);
    int8_t* out = steps[0] == 1 ? reinterpret_cast<int8_t*>(p[0]) : buffer;
    for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]) ? 1 : 0;
    if (out == buffer) {
      for (int64_t i = 0; i < n; ++i) p[0][i * steps[0]] = static_cast<char>(buffer[i]);
    }
  });
}

// ---- floats

// out[i] = a[i] - b[i] trunc(a[i] / b[i]), exact as fmodf: quotients of up to 22 bits times b fit a
// double. Returns whether all were such.
bool rests(const float* a, const float* b, int64_t n, float* out) {
  constexpr double kMost = 4194304.0;
  double largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double size = __builtin_fabs(static_cast<double>(a[i]) / static_cast<double>(b[i]));
    largest = size < kMost ? largest : kMost;
  }
  if (largest != 0) return false;
  for (int64_t i = 0; i < n; ++i) {
    const double x = a[i], y = b[i];
    const double whole = static_cast<double>(static_cast<int32_t>(x / y));
    out[i] = __builtin_copysignf(static_cast<float>(x - whole * y), a[i]);
  }
  return true;
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
float rounded(float x, DType type) {
  if (type == DType::kF16) return half_to_float(float_to_half(x));
  if (type == DType::kBF16) return bf16_to_float(float_to_bf16(x));
  return x;
}

void run_floats(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply<float>(call, begin, end, f); };
  switch (call.i(0)) {
    case kAdd:
      return go([](float a, float b) { return a + b; });
    case kSub:
      return go([](float a, float b) { return a - b; });
    case kMul:
      return go([](float a, float b) { return a * b; });
    case kDiv:
      return go([](float a, float b) { return a / b; });
    case kFloorDiv:
      return apply_rest(call, begin, end, floor_divide);
    case kTruncDiv: {
      const DType type = call.dst.type;
      return go([type](float a, float b) { return ::truncf(rounded(a / b, type)); });
    }
    case kRemainder:
      return apply_rest(call, begin, end, remainder_of);
    case kFmod:
      return apply_rest(call, begin, end, [](vf, vf, vf rest) { return rest; });
    case kPow:
      return go([](float a, float b) { return ::powf(a, b); });
    case kMin:
      return go([](float a, float b) { return a < b || a != a ? a : b; });
    case kMax:
      return go([](float a, float b) { return a > b || a != a ? a : b; });
    default:
      return go([](float a, float b) { return ::atan2f(a, b); });
  }
}

// ---- whole numbers, which wrap around

uint64_t bits(int64_t x) { return static_cast<uint64_t>(x); }
int64_t whole(uint64_t x) { return static_cast<int64_t>(x); }

struct Division {
  int64_t quotient, rest;
};

// Cut towards 0; by 0 it makes the run fail.
Division divide(const Call& call, int64_t a, int64_t b) {
  if (b == 0) {
    call.fail(FaultKind::kDivision);
    return {0, 0};
  }
  if (b == -1) return {whole(0 - bits(a)), 0};
  return {a / b, a % b};
}

int64_t power(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
  uint64_t result = 1;
  for (uint64_t x = bits(a); b > 0; b >>= 1, x *= x) {
    if ((b & 1) != 0) result *= x;
  }
  return whole(result);
}

void run_whole(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply<int64_t>(call, begin, end, f); };
  const int64_t width = 8 * element_size(call.dst.type);
  switch (call.i(0)) {
    case kAdd:
      return go([](int64_t a, int64_t b) { return whole(bits(a) + bits(b)); });
    case kSub:
      return go([](int64_t a, int64_t b) { return whole(bits(a) - bits(b)); });
    case kMul:
      return go([](int64_t a, int64_t b) { return whole(bits(a) * bits(b)); });
    case kFloorDiv:
      return go([&](int64_t a, int64_t b) {
        const Division d = divide(call, a, b);
        return d.rest != 0 && (d.rest < 0) != (b < 0) ? d.quotient - 1 : d.quotient;
      });
    case kTruncDiv:
      return go([&](int64_t a, int64_t b) { return divide(call, a, b).quotient; });
    case kRemainder:
      return go([&](int64_t a, int64_t b) {
        const int64_t rest = divide(call, a, b).rest;
        return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
      });
    case kFmod:
      return go([&](int64_t a, int64_t b) { return divide(call, a, b).rest; });
    case kPow:
      return go(power);
    case kMin:
      return go([](int64_t a, int64_t b) { return a < b ? a : b; });
    case kMax:
      return go([](int64_t a, int64_t b) { return a > b ? a : b; });
    case kBitAnd:
      return go([](int64_t a, int64_t b) { return a & b; });
    case kBitOr:
      return go([](int64_t a, int64_t b) { return a | b; });
    case kBitXor:
      return go([](int64_t a, int64_t b) { return a ^ b; });
    case kShiftLeft:
      return go(
          [=](int64_t a, int64_t b) { return b < 0 || b >= width ? 0 : whole(bits(a) << b); });
    default:
      return go([=](int64_t a, int64_t b) { return a >> (b < 0 || b >= width ? width - 1 : b); });
  }
}

template <typename T>
void run_test(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { test<T>(call, begin, end, f); };
  switch (call.i(0)) {
    case kEq:
      return go([](T a, T b) { return a == b; });
    case kNe:
      return go([](T a, T b) { return a != b; });
    case kLt:
      return go([](T a, T b) { return a < b; });
    case kLe:
      return go([](T a, T b) { return a <= b; });
    case kGt:
      return go([](T a, T b) { return a > b; });
    case kGe:
      return go([](T a, T b) { return a >= b; });
    case kLogicalAnd:
      return go([](T a, T b) { return (a != 0) & (b != 0); });
    case kLogicalOr:
      return go([](T a, T b) { return (a != 0) | (b != 0); });
    default:
      return go([](T a, T b) { return (a != 0) != (b != 0); });
  }
}

bool is_test(int64_t function) { return function >= kEq && function <= kLogicalXor; }

void run(const Call& call, int64_t begin, int64_t end, char*) {
  const bool floats = is_float(call.src[0]->type);
  if (is_test(call.i(0))) {
    return floats ? run_test<float>(call, begin, end) : run_test<int64_t>(call, begin, end);
  }
  floats ? run_floats(call, begin, end) : run_whole(call, begin, end);
}

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  if (call.n_params < 1 || call.i(0) < 0 || call.i(0) >= kFunctions) {
    return "unknown function number";
  }
  if (a.type != b.type || !is_number(a.type)) {
    return "needs two operands of one type: f32, f16, bf16, i8, i16, i32 or i64";
  }
  if (call.dst.type != (is_test(call.i(0)) ? DType::kI8 : a.type)) {
    return "the result has the type of the operands, i8 for tests";
  }
  if (is_float(a.type) ? call.i(0) >= kBitAnd : call.i(0) == kDiv || call.i(0) == kAtan2) {
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
