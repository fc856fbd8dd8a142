// ARANGE and TIMESTEP_EMBEDDING.
#include <math.h>

#include "kernels/rows.h"

namespace weft::WEFT_TARGET {

void register_generate(KernelTable& table);

namespace {

void run_arange(const Call& call, int64_t begin, int64_t end, char*) {
  const float start = call.f(ArangeSlot::kStart);
  const float step = call.f(ArangeSlot::kStep);
  for (int64_t i = begin; i < end; ++i) {
    store_element(call.dst.data + i * call.dst.nb[0], call.dst.type,
                  start + step * static_cast<float>(i));
  }
}

const char* check_arange(const Call& call) {
  if (!is_float(call.dst.type)) return "the result must be f32, f16 or bf16";
  return n_rows(call.dst) == 1 ? nullptr : "the result must be a row";
}

int64_t arange_items(const Call& call) { return call.dst.ne[0]; }
int64_t arange_grain(const Call&) { return kSmallWork; }

// Sinusoidal embedding: cosines of t * max_period^(-j/half), sines, and a zero for an odd length.
void run_timestep(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& steps = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t half = call.i(TimestepSlot::kDim) / 2;
  const double rate =
      -::log(static_cast<double>(call.i(TimestepSlot::kMaxPeriod))) / static_cast<double>(half);
  for (int64_t row = begin; row < end; ++row) {
    const auto t = static_cast<double>(load_element(steps.data + row * steps.nb[0], steps.type));
    char* out = dst.data + row * dst.nb[1];
    const auto put = [&](int64_t i, double x) {
      store_element(out + i * dst.nb[0], dst.type, static_cast<float>(x));
    };
    for (int64_t j = 0; j < half; ++j) {
      const double angle = t * ::exp(rate * static_cast<double>(j));
      put(j, ::cos(angle));
      put(half + j, ::sin(angle));
    }
    for (int64_t j = 2 * half; j < dst.ne[0]; ++j) put(j, 0);
  }
}

const char* check_timestep(const Call& call) {
  const Tensor& steps = *call.src[0];
  const Tensor& dst = call.dst;
  if (!is_float(steps.type) || !is_float(dst.type)) return "needs f32, f16 or bf16 operands";
  if (call.i(TimestepSlot::kDim) < 0 || call.i(TimestepSlot::kDim) > dst.ne[0])
    return "the embedding is longer than a row";
  if (call.i(TimestepSlot::kMaxPeriod) < 1) return "the longest period must be positive";
  if (dst.ne[1] != steps.ne[0] || dst.ne[2] * dst.ne[3] != 1) return "a row per timestep is needed";
  return nullptr;
}

int64_t timestep_items(const Call& call) { return call.dst.ne[1]; }
// sine and cosine cost some hundred additions
int64_t timestep_grain(const Call& call) { return row_grain(64 * call.dst.ne[0]); }

}  // namespace

void register_generate(KernelTable& table) {
  table[Op::kArange] = {
      .check = check_arange, .items = arange_items, .run = run_arange, .grain = arange_grain};
  table[Op::kTimestepEmbedding] = {.check = check_timestep,
                                   .items = timestep_items,
                                   .run = run_timestep,
                                   .grain = timestep_grain};
}

}  // namespace weft::WEFT_TARGET
