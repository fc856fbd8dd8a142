// The functions of BINARY, and its kernels of whole numbers.
#pragma once

#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

namespace binary {

using enum BinarySlot;
using enum BinaryOp;

static inline bool is_test(BinaryOp function) { return function >= kEq && function <= kLogicalXor; }

// Items begin..end of a call whose operands are whole numbers of one type.
void run_whole(const Call& call, int64_t begin, int64_t end);

// out[i] = f(a[i], b[i]) as 0 or 1, with elements that `at(p, stride, n, buffer)` finds as T.
template <typename T, typename At, typename F>
static inline void test(const Call& call, int64_t begin, int64_t end, const At& at, const F& f) {
  const Operands o(call, 2);
  for_operands(o, begin, end, [&](char* const* p, const int64_t* steps, int64_t n) {
    T buffer_a[kPiece], buffer_b[kPiece];
    int8_t buffer[kPiece];
    const T* a = at(p[1], steps[1], n, buffer_a);
    const T* b = at(p[2], steps[2], n, buffer_b);
    int8_t* out = element_room(p[0], steps[0], buffer);
    for (int64_t i = 0; i < n; ++i) out[i] = f(a[i], b[i]) ? 1 : 0;
    put_elements(out, n, p[0], steps[0]);
  });
}

template <typename T, typename At>
static void run_test(const Call& call, int64_t begin, int64_t end, const At& at) {
  const auto go = [&](const auto& f) { test<T>(call, begin, end, at, f); };
  switch (call.as<BinaryOp>(kOp)) {
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

}  // namespace binary

}  // namespace weft::WEFT_TARGET
