// BINARY of whole numbers, which wrap around.
#include "kernels/tensor/tensor_binary.h"

namespace weft::WEFT_TARGET::binary {

namespace {

// The type in which sums and products of T are computed: unsigned, and at least as wide as int.
template <typename T>
struct Bits {
  using Type = uint32_t;
};
template <>
struct Bits<int64_t> {
  using Type = uint64_t;
};

template <typename T>
typename Bits<T>::Type bits(T x) {
  return static_cast<typename Bits<T>::Type>(x);
}

// out[i] = f(a[i], b[i])
template <typename T, typename F>
void apply(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 2);
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    T buffer_a[kPiece], buffer_b[kPiece], buffer[kPiece];
    const T* a = elements_at(p[1], steps[1], n, buffer_a);
    const T* b = elements_at(p[2], steps[2], n, buffer_b);
    T* out = element_room(p[0], steps[0], buffer);
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(f(a[i], b[i]));
    put_elements(out, n, p[0], steps[0]);
  });
}

// ---- divisions

struct Division {
  int64_t quotient, rest;  // cut towards 0
};
struct NarrowDivision {
  int32_t quotient, rest;
};

Division divide(int64_t a, int64_t b) {
  if (b == 0) return {0, 0};
  if (b == -1) return {static_cast<int64_t>(0 - bits(a)), 0};
  return {a / b, a % b};
}

// Through double, which a quotient of 32 bits fits, and without a branch: loops of it become
// vectors.
NarrowDivision divide(int32_t a, int32_t b) {
  const bool plain = (b != 0) & (b != -1);
  const auto cut =
      static_cast<int32_t>(static_cast<double>(a) / static_cast<double>(plain ? b : 1));
  const auto quotient = static_cast<uint32_t>(cut);
  const auto rest = static_cast<int32_t>(bits(a) - quotient * bits(b));
  const auto negated = static_cast<int32_t>(0 - bits(a));
  return {plain ? cut : negated, plain ? rest : 0};
}

template <typename T>
bool has_zero(const T* x, int64_t n) {
  bool zero = false;
  for (int64_t i = 0; i < n; ++i) zero |= x[i] == 0;
  return zero;
}

bool fits_narrow(const int64_t* x, int64_t n) {
  uint64_t high = 0;
  for (int64_t i = 0; i < n; ++i) high |= bits(x[i]) + 0x80000000u;
  return high >> 32 == 0;
}

// out[i] = f(division of a[i] by b[i], b[i]); f is of both widths.
template <typename T, typename F>
void apply_division(const Call& call, int64_t begin, int64_t end, const F& f) {
  const Operands o(call, 2);
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    T buffer_a[kPiece], buffer_b[kPiece], buffer[kPiece];
    const T* a = elements_at(p[1], steps[1], n, buffer_a);
    const T* b = elements_at(p[2], steps[2], n, buffer_b);
    T* out = element_room(p[0], steps[0], buffer);
    if (has_zero(b, n)) call.fail(FaultKind::kDivision);
    if constexpr (sizeof(T) == 8) {
      if (!fits_narrow(a, n) || !fits_narrow(b, n)) {
        for (int64_t i = 0; i < n; ++i) out[i] = f(divide(a[i], b[i]), b[i]);
        return put_elements(out, n, p[0], steps[0]);
      }
    }
    int32_t narrow_a[kPiece], narrow_b[kPiece], results[kPiece];
    for (int64_t i = 0; i < n; ++i) narrow_a[i] = static_cast<int32_t>(a[i]);
    for (int64_t i = 0; i < n; ++i) narrow_b[i] = static_cast<int32_t>(b[i]);
    for (int64_t i = 0; i < n; ++i) {
      results[i] = f(divide(narrow_a[i], narrow_b[i]), narrow_b[i]);
    }
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(results[i]);
    put_elements(out, n, p[0], steps[0]);
  });
}

template <typename D, typename T>
bool turns(const D& d, T b) {
  return (d.rest != 0) & ((d.rest < 0) != (b < 0));
}

template <typename T>
void run_division(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply_division<T>(call, begin, end, f); };
  switch (call.as<BinaryOp>(kOp)) {
    case kFloorDiv:
      return go([](const auto& d, auto b) {
        return static_cast<decltype(b)>(d.quotient - static_cast<decltype(b)>(turns(d, b)));
      });
    case kTruncDiv:
      return go([](const auto& d, auto) { return d.quotient; });
    case kRemainder:
      return go([](const auto& d, auto b) { return turns(d, b) ? d.rest + b : d.rest; });
    default:
      return go([](const auto& d, auto) { return d.rest; });
  }
}

// ---- the others

template <typename T>
T power(T a, T b) {
  if (b < 0) return static_cast<T>(a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0);
  typename Bits<T>::Type result = 1;
  auto left = bits(b);
  for (auto x = bits(a); left > 0; left >>= 1, x *= x) {
    if ((left & 1) != 0) result *= x;
  }
  return static_cast<T>(result);
}

template <typename T>
void run_of(const Call& call, int64_t begin, int64_t end) {
  const auto go = [&](const auto& f) { apply<T>(call, begin, end, f); };
  constexpr int64_t kWidth = 8 * sizeof(T);
  switch (call.as<BinaryOp>(kOp)) {
    case kAdd:
      return go([](T a, T b) { return bits(a) + bits(b); });
    case kSub:
      return go([](T a, T b) { return bits(a) - bits(b); });
    case kMul:
      return go([](T a, T b) { return bits(a) * bits(b); });
    case kFloorDiv:
    case kTruncDiv:
    case kRemainder:
    case kFmod:
      return run_division<T>(call, begin, end);
    case kPow:
      return go(power<T>);
    case kMin:
      return go([](T a, T b) { return a < b ? a : b; });
    case kMax:
      return go([](T a, T b) { return a > b ? a : b; });
    case kBitAnd:
      return go([](T a, T b) { return a & b; });
    case kBitOr:
      return go([](T a, T b) { return a | b; });
    case kBitXor:
      return go([](T a, T b) { return a ^ b; });
    case kShiftLeft:
      return go(
          [](T a, T b) { return b < 0 || b >= kWidth ? 0 : bits(a) << static_cast<uint32_t>(b); });
    case kShiftRight:
      return go(
          [](T a, T b) { return a >> (b < 0 || b >= kWidth ? static_cast<T>(kWidth - 1) : b); });
    default:
      return run_test<T>(call, begin, end, elements_at<T>);
  }
}

}  // namespace

void run_whole(const Call& call, int64_t begin, int64_t end) {
  with_whole_type(call.src[0]->type, [&](auto one) { run_of<decltype(one)>(call, begin, end); });
}

}  // namespace weft::WEFT_TARGET::binary
