// LINEAR_SCAN: y[i] = a[i] y[i - 1] + b[i] along dimension 1; lanes are elements of rows.
#include "kernels/elements.h"
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

void register_linear_scan(KernelTable& table);

namespace {

// An item is up to kVectors vectors of the rows of a matrix: so many that none waits for the one
// before it.
constexpr int kVectors = 4;
constexpr int64_t kItem = kVectors * kLanes;

int64_t blocks_of(const Call& call) { return (call.dst.ne[0] + kItem - 1) / kItem; }

// Where an item begins in a tensor: its matrix, and the first element of its rows.
float* begin_of(const Tensor& t, int64_t i2, int64_t i3, int64_t first) {
  return reinterpret_cast<float*>(row_data(t, {0, i2, i3})) + first;
}

// `n` elements of all rows; `n` is at most kCount kLanes, and just that where kCount is above 1.
template <int kCount>
void walk(const Call& call, int64_t i2, int64_t i3, int64_t first, int64_t n) {
  const auto get = [n](const float* p) {
    if constexpr (kCount > 1) return load(p);
    return load_part(p, n);
  };
  const int64_t steps[3] = {call.src[0]->nb[1] / 4, call.src[1]->nb[1] / 4, call.dst.nb[1] / 4};
  const float* a = begin_of(*call.src[0], i2, i3, first);
  const float* b = begin_of(*call.src[1], i2, i3, first);
  const float* h = begin_of(*call.src[2], i2, i3, first);
  float* y = begin_of(call.dst, i2, i3, first);
  vf state[kCount];
  for (int v = 0; v < kCount; ++v) state[v] = get(h + v * kLanes);
  for (int64_t i = 0; i < call.dst.ne[1]; ++i) {
    for (int v = 0; v < kCount; ++v) {
      state[v] = fma(get(a + v * kLanes), state[v], get(b + v * kLanes));
      kCount > 1 ? store(y + v * kLanes, state[v]) : store_part(y, state[v], n);
    }
    a += steps[0];
    b += steps[1];
    y += steps[2];
  }
}

void run(const Call& call, int64_t begin, int64_t end, char*) {
  const Tensor& dst = call.dst;
  const int64_t blocks = blocks_of(call);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t matrix = item / blocks, i2 = matrix % dst.ne[2], i3 = matrix / dst.ne[2];
    int64_t first = (item - matrix * blocks) * kItem;
    const int64_t last = min64(first + kItem, dst.ne[0]);
    if (last - first == kItem) {
      walk<kVectors>(call, i2, i3, first, kItem);
      continue;
    }
    for (; first < last; first += kLanes) {
      walk<1>(call, i2, i3, first, min64(kLanes, last - first));
    }
  }
}

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  for (int i = 0; i < 3; ++i) {
    if (!is_f32_rows(*call.src[i])) return "needs f32 sources with contiguous rows";
  }
  if (!is_f32_rows(call.dst)) return "needs an f32 result with contiguous rows";
  if (!same_shape(a, *call.src[1]) || !same_shape(a, call.dst)) {
    return "factors, summands and result differ in shape";
  }
  return has_shape(*call.src[2], a.ne[0], 1, a.ne[2], a.ne[3])
             ? nullptr
             : "the first state must have one row for each matrix";
}

int64_t items(const Call& call) { return blocks_of(call) * call.dst.ne[2] * call.dst.ne[3]; }

int64_t grain(const Call& call) {
  return row_grain(min64(kItem, call.dst.ne[0]) * max64(1, call.dst.ne[1]));
}

}  // namespace

void register_linear_scan(KernelTable& table) {
  table[Op::kLinearScan] = {.check = check, .items = items, .run = run, .grain = grain};
}

}  // namespace weft::WEFT_TARGET
