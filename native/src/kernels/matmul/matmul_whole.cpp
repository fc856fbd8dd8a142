// MUL_MAT_INT: dot products of rows of whole numbers, which wrap around.
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_matmul_whole(KernelTable& table);

namespace {

// Of elements S, added up in Sum, whose lowest bits are those of the result.
template <typename S, typename Sum>
Sum dot(const S* a, const S* b, int64_t n) {
  Sum sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<Sum>(a[i]) * static_cast<Sum>(b[i]);
  return sum;
}

// An item: the products of a row of the second source.
template <typename S, typename Sum>
void run_rows(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dst = call.dst;
  const int64_t n = w.ne[0];
  auto* room_w = reinterpret_cast<S*>(scratch);
  auto* room_x = room_w + n;
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(dst, item);
    const S* row = elements_at(broadcast_row(x, at), x.nb[0], n, room_x);
    char* out = row_data(dst, at);
    for (int64_t j = 0; j < dst.ne[0]; ++j) {
      const char* column = broadcast_row(w, {j, at.i2, at.i3});
      const Sum sum = dot<S, Sum>(elements_at(column, w.nb[0], n, room_w), row, n);
      const auto product = static_cast<int64_t>(sum);
      store_numbers(&product, 1, out + j * dst.nb[0], dst.type, dst.nb[0]);
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  with_whole_type(call.src[0]->type, [&](auto s) {
    using S = decltype(s);
    if (call.dst.type == DType::kI64) return run_rows<S, uint64_t>(call, begin, end, scratch);
    if constexpr (sizeof(S) < 8) run_rows<S, uint32_t>(call, begin, end, scratch);
  });
}

const char* check(const Call& call) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dst = call.dst;
  if (!is_whole(w.type) || x.type != w.type) return "needs sources of one type of whole numbers";
  if (!is_whole(dst.type) || element_size(dst.type) < element_size(w.type)) {
    return "the result must be as wide as the sources, or wider";
  }
  if (w.ne[0] != x.ne[0]) return "the rows differ in length";
  if (dst.ne[0] != w.ne[1] || dst.ne[1] != x.ne[1]) return "a product for each pair of rows";
  for (int d = 2; d < 4; ++d) {
    if ((w.ne[d] != 1 && w.ne[d] != dst.ne[d]) || (x.ne[d] != 1 && x.ne[d] != dst.ne[d])) {
      return "matrices do not broadcast to the result";
    }
  }
  return nullptr;
}

int64_t items(const Call& call) { return call.dst.ne[0] == 0 ? 0 : n_rows(call.dst); }
int64_t grain(const Call& call) { return row_grain(call.dst.ne[0] * call.src[0]->ne[0]); }

size_t scratch_bytes(const Call& call) {
  return static_cast<size_t>(2 * call.src[0]->ne[0] * element_size(call.src[0]->type));
}

}  // namespace

void register_matmul_whole(KernelTable& table) {
  table[Op::kMulMatInt] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
