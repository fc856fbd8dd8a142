// HADAMARD multiplies blocks of rows by the orthonormal Hadamard matrix, by butterflies: for each
// power of two h below the length of a block, x[i] and x[i + h] become their sum and difference.
#include <utility>

#include "kernels/elements.h"
#include "kernels/layout.h"

namespace weft::WEFT_TARGET {

void register_hadamard(KernelTable& table);

namespace {

// Lane i of the result is lane i ^ h.
template <int h, int... lane>
vf swapped(vf v, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(v, v, (lane ^ h)...);
}

// The butterflies of each vector, with the distances h to kLanes / 2.
template <int h, int kVectors>
void inside(vf (&v)[kVectors]) {
  if constexpr (h < kLanes) {
    vf sign;
    for (int i = 0; i < kLanes; ++i) sign[i] = (i & h) != 0 ? -1.0f : 1.0f;
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i)
      v[i] = fma(v[i], sign, swapped<h>(v[i], std::make_integer_sequence<int, kLanes>()));
    inside<2 * h>(v);
  }
}

// The butterflies between vectors, with the distances h to kVectors / 2.
template <int h, int kVectors>
void between(vf (&v)[kVectors]) {
  if constexpr (h < kVectors) {
#pragma GCC unroll 4
    for (int i = 0; i < kVectors; ++i) {
      if ((i & h) != 0) continue;
      const vf a = v[i];
      const vf b = v[i + h];
      v[i] = a + b;
      v[i + h] = a - b;
    }
    between<2 * h>(v);
  }
}

// The butterflies of the first kVectors vectors, times `factor`; `out` may be `x`.
template <int kVectors>
void short_block(const float* x, float* out, vf factor) {
  vf v[kVectors];
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) v[i] = load(x + i * kLanes) * factor;
  inside<1>(v);
  between<1>(v);
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) store(out + i * kLanes, v[i]);
}

// The butterflies between vectors that are h, 2 h, ... (kVectors / 2) h numbers apart.
template <int kVectors>
void pass(float* x, int64_t n, int64_t h) {
  for (int64_t first = 0; first < n; first += kVectors * h) {
    for (int64_t i = first; i < first + h; i += kLanes) {
      vf v[kVectors];
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) v[j] = load(x + i + j * h);
      between<1>(v);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) store(x + i + j * h, v[j]);
    }
  }
}

// A block of n numbers, a power of two from kLanes on; `out` may be `x`.
void block(const float* x, float* out, int64_t n, vf factor) {
  if (n == kLanes) return short_block<1>(x, out, factor);
  if (n == 2 * kLanes) return short_block<2>(x, out, factor);
  int64_t h = 4 * kLanes;
  for (int64_t i = 0; i < n; i += h) short_block<4>(x + i, out + i, factor);
  for (; 4 * h <= n; h *= 4) pass<4>(out, n, h);
  if (h < n) pass<2>(out, n, h);
}

// A block that is shorter than a vector.
void narrow_block(const float* x, float* out, int64_t n, float factor) {
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor;
  for (int64_t h = 1; h < n; h *= 2) {
    for (int64_t i = 0; i < n; ++i) {
      if ((i & h) != 0) continue;
      const float a = out[i];
      const float b = out[i + h];
      out[i] = a + b;
      out[i + h] = a - b;
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const Tensor& dst = call.dst;
  const int64_t n = call.i(HadamardSlot::kN);
  const auto factor = static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(n)));
  auto* buffer = reinterpret_cast<float*>(scratch);
  RowCursor row(dst, begin);
  for (int64_t r = begin; r < end; ++r, row.next()) {
    const Index index = *row;
    const float* x = as_floats(a, row_data(a, index), dst.ne[0], buffer);
    float* out = float_room(dst, row_data(dst, index), buffer);
    for (int64_t i = 0; i < dst.ne[0]; i += n) {
      if (n < kLanes) {
        narrow_block(x + i, out + i, n, factor);
      } else {
        block(x + i, out + i, n, splat(factor));
      }
    }
    put_floats(dst, row_data(dst, index), dst.ne[0], out);
  }
}

const char* check(const Call& call) {
  if (const char* why = check_float_map(call)) return why;
  const int64_t n = call.i(HadamardSlot::kN);
  if (!is_count(call, HadamardSlot::kN, 2) || (n & (n - 1)) != 0 || call.dst.ne[0] % n != 0) {
    return "the length of the blocks must be a power of two that divides the rows";
  }
  return nullptr;
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0]); }

}  // namespace

void register_hadamard(KernelTable& table) {
  table[Op::kHadamard] = {.check = check,
                          .items = items,
                          .run = run,
                          .grain = grain,
                          .scratch = row_scratch,
                          .by_rows = true};
}

}  // namespace weft::WEFT_TARGET
