// ARGMAX, CROSS_ENTROPY_LOSS.
#include <math.h>

#include "kernels/elementwise/reductions.h"

namespace weft::WEFT_TARGET {

void register_reduce(KernelTable& table);

namespace {

// One number from everything is one item: there is no step that could join the parts of threads.
int64_t one_item(const Call&) { return 1; }

int64_t source_grain(const Call& call) { return row_grain(call.src[0]->ne[0]); }

// ---- ARGMAX: of equals the last, as in ggml -----------------------------------------------------

int64_t last_largest(const Tensor& a, const char* p) {
  float top = -__builtin_inff();
  for (int64_t i = 0; i < a.ne[0]; i += kPiece) {
    float buffer[kPiece];
    const int64_t n = min64(kPiece, a.ne[0] - i);
    top = max_of(as_floats(a, p + i * a.nb[0], n, buffer), n, top);
  }
  for (int64_t i = a.ne[0] - 1; i > 0; --i) {
    if (load_element(p + i * a.nb[0], a.type) == top) return i;
  }
  return 0;
}

void run_argmax(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  for (int64_t row = begin; row < end; ++row) {
    const auto best = static_cast<int32_t>(last_largest(a, row_data(a, row_index(a, row))));
    std::memcpy(call.dst.data + row * call.dst.nb[0], &best, 4);
  }
}

const char* check_argmax(const Call& call) {
  const Tensor& a = *call.src[0];
  if (!is_float(a.type) || call.dst.type != DType::kI32) return "needs floats and an i32 result";
  if (a.ne[0] > INT32_MAX) return "indices exceed 32 bits";
  if (call.dst.ne[0] != n_rows(a) || n_rows(call.dst) != 1) {
    return "the result must be a row with an index per row of the source";
  }
  return nullptr;
}

int64_t argmax_items(const Call& call) { return n_rows(*call.src[0]); }

// ---- CROSS_ENTROPY_LOSS: -mean over rows of sum(labels * log_softmax(logits)) -------------------

double row_loss(const float* logits, const float* labels, int64_t n) {
  const float top = max_of(logits, n, -__builtin_inff());
  const vf t = splat(top);
  const double total = sum_of(logits, n, [t](vf x) { return exp(x - t); }, -__builtin_inff());
  const double shift = static_cast<double>(top) + ::log(total);
  double loss = 0;
  for (int64_t i = 0; i < n; ++i) {
    loss -= static_cast<double>(labels[i]) * (static_cast<double>(logits[i]) - shift);
  }
  return loss;
}

void run_loss(const Call& call, int64_t begin, int64_t end, char*) {
  if (begin >= end) return;
  const Tensor& logits = *call.src[0];
  const Tensor& labels = *call.src[1];
  double total = 0;
  for (int64_t row = 0; row < n_rows(logits); ++row) {
    const Index index = row_index(logits, row);
    total += row_loss(reinterpret_cast<const float*>(row_data(logits, index)),
                      reinterpret_cast<const float*>(row_data(labels, index)), logits.ne[0]);
  }
  const auto mean = static_cast<float>(total / static_cast<double>(n_rows(logits)));
  std::memcpy(call.dst.data, &mean, 4);
}

const char* check_loss(const Call& call) {
  const Tensor& logits = *call.src[0];
  const Tensor& labels = *call.src[1];
  if (!is_plain(logits) || !is_plain(labels)) return "needs f32 sources with contiguous rows";
  if (!same_shape(logits, labels)) return "logits and labels differ in shape";
  if (call.dst.type != DType::kF32 || n_elements(call.dst) != 1)
    return "the result must be one f32";
  return nullptr;
}

}  // namespace

void register_reduce(KernelTable& table) {
  table[Op::kArgmax] = {
      .check = check_argmax, .items = argmax_items, .run = run_argmax, .grain = source_grain};
  table[Op::kCrossEntropyLoss] = {.check = check_loss, .items = one_item, .run = run_loss};
}

}  // namespace weft::WEFT_TARGET
