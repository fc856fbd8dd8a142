// SOLVE_TRI: X with A X = B, A lower triangular, by forward substitution.
#include "kernels/matmul/column_blocks.h"

namespace weft::WEFT_TARGET {

void register_solve(KernelTable& table);

namespace {

// A [n, n], B and X [k, n] of one batch; columns of X are independent.
struct System {
  int64_t n;
  const char* a;
  int64_t a_row;
  const char* b;
  int64_t b_row;
  char* x;
  int64_t x_row;

  float coefficient(int64_t i, int64_t j) const {
    return load_element(a + i * a_row + j * 4, DType::kF32);
  }
};

// kVectors vectors of columns from column `c` on.
template <int kVectors>
void solve_vectors(const System& s, int64_t c) {
  for (int64_t i = 0; i < s.n; ++i) {
    const auto* b = reinterpret_cast<const float*>(s.b + i * s.b_row) + c;
    vf rest[kVectors];
    for (int v = 0; v < kVectors; ++v) rest[v] = load(b + v * kLanes);
    for (int64_t j = 0; j < i; ++j) {
      const vf a = splat(-s.coefficient(i, j));
      const auto* x = reinterpret_cast<const float*>(s.x + j * s.x_row) + c;
      for (int v = 0; v < kVectors; ++v) rest[v] = fma(a, load(x + v * kLanes), rest[v]);
    }
    const vf diagonal = splat(s.coefficient(i, i));
    auto* out = reinterpret_cast<float*>(s.x + i * s.x_row) + c;
    for (int v = 0; v < kVectors; ++v) store(out + v * kLanes, rest[v] / diagonal);
  }
}

void solve_column(const System& s, int64_t c) {
  for (int64_t i = 0; i < s.n; ++i) {
    float rest = load_element(s.b + i * s.b_row + c * 4, DType::kF32);
    for (int64_t j = 0; j < i; ++j) {
      rest -= s.coefficient(i, j) * load_element(s.x + j * s.x_row + c * 4, DType::kF32);
    }
    store_element(s.x + i * s.x_row + c * 4, DType::kF32, rest / s.coefficient(i, i));
  }
}

int64_t panels(const Tensor& b) { return (b.ne[0] + kPanel - 1) / kPanel; }

// An item: kPanel columns of one batch.
void run(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const int64_t per_batch = panels(b);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t batch = item / per_batch;
    const Index at = {0, batch % b.ne[2], batch / b.ne[2]};
    const System s = {.n = a.ne[0],
                      .a = row_data(a, at),
                      .a_row = a.nb[1],
                      .b = row_data(b, at),
                      .b_row = b.nb[1],
                      .x = row_data(call.dst, at),
                      .x_row = call.dst.nb[1]};
    int64_t c = (item - batch * per_batch) * kPanel;
    const int64_t last = min64(c + kPanel, b.ne[0]);
    if (last - c == kPanel) {
      solve_vectors<kPanelVectors>(s, c);
      continue;
    }
    for (; c + kLanes <= last; c += kLanes) solve_vectors<1>(s, c);
    for (; c < last; ++c) solve_column(s, c);
  }
}

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  using enum SolveTriSlot;
  if (call.i(kLeft) == 0 || call.i(kLower) == 0 || call.i(kUni) != 0) {
    return "only left, lower, non-unit systems are defined";
  }
  const Tensor* all[3] = {&a, &b, &call.dst};
  for (const Tensor* t : all) {
    if (t->type != DType::kF32) return "needs f32";
    if (t->nb[0] != 4) return "rows must be contiguous";
  }
  if (a.ne[0] != a.ne[1] || a.ne[1] != b.ne[1] || a.ne[2] != b.ne[2] || a.ne[3] != b.ne[3]) {
    return "needs square matrices, one for each right side";
  }
  return same_shape(b, call.dst) ? nullptr : "result and right side differ in shape";
}

int64_t items(const Call& call) {
  const Tensor& b = *call.src[1];
  return panels(b) * b.ne[2] * b.ne[3];
}

int64_t grain(const Call& call) {
  const Tensor& b = *call.src[1];
  return work_grain(b.ne[1] * b.ne[1] / 2 * min64(kPanel, b.ne[0]));
}

}  // namespace

void register_solve(KernelTable& table) {
  table[Op::kSolveTri] = {.check = check, .items = items, .run = run, .grain = grain};
}

}  // namespace weft::WEFT_TARGET
