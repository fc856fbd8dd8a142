// The function that MUL_MAT applies to its results: by the kernels of UNARY and MAP, on what is
// still in the cache, so that the bits are those of a step of its own.
#pragma once

#include "kernels/elements.h"

namespace weft::WEFT_TARGET {

class ResultFunction {
 public:
  // That of the step's record, if it has one.
  explicit ResultFunction(const Call& call) {
    using enum ActivationSlot;
    if (call.n_params == 0 || !call.is_one<Activation>(kOp)) return;
    const auto function = call.as<Activation>(kOp);
    is_known_ = true;
    if (function != Activation::kClamp) {
      put(UnarySlot::kOp, static_cast<double>(unary_of(function)));
      return;
    }
    op_ = Op::kMap;
    put(MapSlot::kOp, static_cast<double>(MapOp::kClamp));
    put(MapSlot::kA, call.number(kLow));
    put(MapSlot::kB, call.number(kHigh));
  }

  bool is_known() const { return is_known_; }
  // Limits every result to low()..high().
  bool is_clamp() const { return op_ == Op::kMap; }
  float low() const { return at(MapSlot::kA); }
  float high() const { return at(MapSlot::kB); }

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
  static UnaryOp unary_of(Activation function) {
    switch (function) {
      case Activation::kRelu:
        return UnaryOp::kRelu;
      case Activation::kTanh:
        return UnaryOp::kTanh;
      case Activation::kSigmoid:
        return UnaryOp::kSigmoid;
      case Activation::kSilu:
        return UnaryOp::kSilu;
      case Activation::kGelu:
        return UnaryOp::kGelu;
      case Activation::kGeluQuick:
        return UnaryOp::kGeluQuick;
      case Activation::kGeluErf:
        return UnaryOp::kGeluErf;
      case Activation::kHardswish:
        return UnaryOp::kHardswish;
      default:
        return UnaryOp::kHardsigmoid;
    }
  }

  template <typename Slot>
  void put(Slot slot, double value) {
    params_[static_cast<int>(slot)] = value;
  }
  float at(MapSlot slot) const { return static_cast<float>(params_[static_cast<int>(slot)]); }

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
    call.n_params = kRoom;
    const Kernel& kernel = table()[op_];
    kernel.run(call, 0, kernel.items(call), nullptr);
  }

  bool is_known_ = false;
  Op op_ = Op::kUnary;
  static constexpr int kRoom = 5;
  static_assert(kRoom >= static_cast<int>(UnarySlot::kSlots) &&
                kRoom >= static_cast<int>(MapSlot::kSlots));
  double params_[kRoom] = {};
};

}  // namespace weft::WEFT_TARGET
