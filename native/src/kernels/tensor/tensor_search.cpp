// SEARCH_SORTED (rows, values): how many elements of a sorted row are below each value.
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_search(KernelTable& table);

namespace {

// Counts the elements below `value` among `n` in ascending order, a NaN last. With `kRight`,
// elements that equal the value count, too.
template <bool kRight, typename T>
int64_t count_below(const char* row, DType type, int64_t stride, int64_t n, T value) {
  int64_t begin = 0, end = n;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    T x;
    load_numbers(row + middle * stride, type, 0, 1, &x);
    if (kRight ? x > value : x >= value) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

template <bool kRight, typename T>
void search(const Call& call, int64_t begin, int64_t end) {
  const Tensor& rows = *call.src[0];
  const Tensor& values = *call.src[1];
  for_pieces(call.dst, begin, end, [&](const Piece& p) {
    T buffer[kPiece];
    const T* v = numbers_at(element(values, p), values.type, values.nb[0], p.n, buffer);
    const char* row = broadcast_row(rows, p.row);
    char* out = element(call.dst, p);
    for (int64_t i = 0; i < p.n; ++i) {
      const int64_t n = count_below<kRight>(row, rows.type, rows.nb[0], rows.ne[0], v[i]);
      std::memcpy(out + i * call.dst.nb[0], &n, 8);
    }
  });
}

template <typename T>
void run_of(const Call& call, int64_t begin, int64_t end) {
  call.i(SearchSortedSlot::kRight) != 0 ? search<true, T>(call, begin, end)
                                        : search<false, T>(call, begin, end);
}

void run(const Call& call, int64_t begin, int64_t end, char*) {
  is_float(call.src[0]->type) ? run_of<float>(call, begin, end) : run_of<int64_t>(call, begin, end);
}

const char* check(const Call& call) {
  const Tensor& rows = *call.src[0];
  const Tensor& values = *call.src[1];
  if (!is_number(rows.type) || values.type != rows.type || call.dst.type != DType::kI64) {
    return "needs rows and values of one type of numbers, and an i64 result";
  }
  if (!same_shape(call.dst, values)) return "the result has the sizes of the values";
  for (int d = 1; d < 4; ++d) {
    if (rows.ne[d] != values.ne[d] && n_rows(rows) != 1) {
      return "needs one row, or a row for each row of values";
    }
  }
  return nullptr;
}

}  // namespace

void register_tensor_search(KernelTable& table) {
  table[Op::kSearchSorted] = {
      .check = check, .items = element_items, .run = run, .grain = element_grain};
}

}  // namespace weft::WEFT_TARGET
