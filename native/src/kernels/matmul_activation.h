// The function that MUL_MAT applies to its results: by the kernels of UNARY and MAP, on what is
// still in the cache, so that the bits are those of a step of its own.
#pragma once

#include "kernels/elements.h"

namespace weft::WEFT_TARGET {

class ResultFunction {
 public:
  // The record of a step: see src/weft/graph/params_product.py.
  ResultFunction(const double* params, int n_params) {
    if (n_params < kSlots || params[kFunction] < 0 || params[kFunction] >= kFunctions) return;
    const auto function = static_cast<int>(params[kFunction]);
    is_known_ = true;
    op_ = function == kClamp ? Op::kMap : Op::kUnary;
    params_[0] = kNumbers[function];
    if (function != kClamp) return;
    params_[1] = params[kLow];
    params_[2] = params[kHigh];
  }

  bool is_known() const { return is_known_; }
  // Limits every result to low()..high().
  bool is_clamp() const { return op_ == Op::kMap; }
  float low() const { return static_cast<float>(params_[1]); }
  float high() const { return static_cast<float>(params_[2]); }

  // To elements begin..end of `n` columns.
  void apply(float* const* columns, int64_t begin, int64_t end, int64_t n) const {
    const int64_t stride = n > 1 ? columns[1] - columns[0] : end - begin;
    int64_t together = 1;
    while (together < n && columns[together] == columns[0] + together * stride) ++together;
    apply(columns[0] + begin, end - begin, together == n ? n : 1, stride);
    if (together == n) return;
    for (int64_t c = 1; c < n; ++c) apply(columns[c] + begin, end - begin, 1, stride);
  }

 private:
  enum Slot { kFunction, kLow, kHigh, kSlots };
  static constexpr int kFunctions = 10;
  static constexpr int kClamp = 9;
  // As UNARY and MAP number them.
  static constexpr double kNumbers[kFunctions] = {6, 4, 7, 10, 8, 9, 16, 11, 12, 4};

  void apply(float* data, int64_t rows, int64_t n, int64_t stride) const {
    Tensor t;
    t.ne[0] = rows;
    t.ne[1] = n;
    t.ne[2] = t.ne[3] = 1;
    t.nb[0] = 4;
    t.nb[1] = 4 * stride;
    t.nb[2] = t.nb[3] = t.nb[1] * n;
    t.data = reinterpret_cast<char*>(data);
    Call call;
    call.dst = t;
    call.src[0] = &t;
    call.params = params_;
    call.n_params = 5;
    const Kernel& kernel = table()[op_];
    kernel.run(call, 0, kernel.items(call), nullptr);
  }

  bool is_known_ = false;
  Op op_ = Op::kUnary;
  double params_[5] = {};
};

}  // namespace weft::WEFT_TARGET
