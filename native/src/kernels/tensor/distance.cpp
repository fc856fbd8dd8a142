// CDIST: the p-norm of the difference of each row of one matrix from each row of another.
#include "kernels/elements.h"
#include "kernels/elementwise/reductions.h"
#include "kernels/simd/functions.h"

namespace weft::WEFT_TARGET {

void register_distance(KernelTable& table);

namespace {

// The sum that the differences |a[i] - b[i]| of a piece add to a norm.
double part_of(const float* d, int64_t n, double p) {
  if (p == 1) return sum(d, n);
  if (p == 2) return sum_squares(d, n);
  if (p == 0) {
    double count = 0;
    for (int64_t i = 0; i < n; ++i) count += d[i] != 0 ? 1 : 0;
    return count;
  }
  const vf power = splat(static_cast<float>(p));
  return sum_of(d, n, [=](vf x) { return pow(x, power); });
}

// The larger one, or a NaN.
double larger(double a, double b) { return a > b || a != a ? a : b; }

double norm(const float* a, const float* b, int64_t n, double p) {
  const bool largest = p == static_cast<double>(__builtin_inff());
  float differences[kPiece];
  double total = 0;
  for (int64_t first = 0; first < n; first += kPiece) {
    const int64_t count = min64(kPiece, n - first);
    map(a + first, b + first, differences, count, [](vf x, vf y) { return vabs(x - y); });
    if (largest) {
      for (int64_t i = 0; i < count; ++i) {
        total = larger(static_cast<double>(differences[i]), total);
      }
    } else {
      total += part_of(differences, count, p);
    }
  }
  if (largest || p == 0 || p == 1) return total;
  return p == 2 ? __builtin_sqrt(total) : __builtin_pow(total, 1 / p);
}

// An item: the distances of a row of the first source.
void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& dst = call.dst;
  const double p = call.number(CdistSlot::kP);
  auto* room_a = reinterpret_cast<float*>(scratch);
  auto* room_b = room_a + a.ne[0];
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(dst, item);
    const int64_t i2 = at.i2 % a.ne[2], i3 = at.i3 % a.ne[3];
    const float* x = as_floats(a, row_data(a, {at.i1, i2, i3}), a.ne[0], room_a);
    char* out = row_data(dst, at);
    for (int64_t j = 0; j < dst.ne[0]; ++j) {
      const char* row = row_data(b, {j, at.i2 % b.ne[2], at.i3 % b.ne[3]});
      const double distance = norm(x, as_floats(b, row, b.ne[0], room_b), a.ne[0], p);
      store_element(out + j * dst.nb[0], dst.type, static_cast<float>(distance));
    }
  }
}

const char* check(const Call& call) {
  const Tensor& a = *call.src[0];
  const Tensor& b = *call.src[1];
  const Tensor& dst = call.dst;
  if (!is_float(a.type) || b.type != a.type || dst.type != a.type) {
    return "needs rows and a result of one type: f32, f16 or bf16";
  }
  if (!(call.number(CdistSlot::kP) >= 0)) return "the norm must be 0 or more";
  if (a.ne[0] != b.ne[0]) return "the rows differ in length";
  if (dst.ne[0] != b.ne[1] || dst.ne[1] != a.ne[1]) return "a distance for each pair of rows";
  for (int d = 2; d < 4; ++d) {
    if ((a.ne[d] != 1 && a.ne[d] != dst.ne[d]) || (b.ne[d] != 1 && b.ne[d] != dst.ne[d])) {
      return "matrices do not broadcast to the result";
    }
  }
  return nullptr;
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0] * call.src[0]->ne[0]); }

size_t scratch_bytes(const Call& call) {
  return static_cast<size_t>(2 * call.src[0]->ne[0]) * sizeof(float);
}

}  // namespace

void register_distance(KernelTable& table) {
  table[Op::kCdist] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
