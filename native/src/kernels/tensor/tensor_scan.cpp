// Along one axis: ARG_REDUCE (where the largest or smallest element is), CUMULATE (running sums and
// products), CUMULATE_ARG (where the largest or smallest one so far is).
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_scan(KernelTable& table);

namespace {

// Columns of an item, where the axis is not the innermost.
constexpr int64_t kColumns = 512;

// The lines along an axis: all other dimensions, and where theirs begin.
struct Lines {
  int axis;
  int64_t n;     // elements of a line
  int64_t runs;  // items that a row of columns is cut into
  int64_t items;
  int64_t sizes[4];

  Lines(const Tensor& x, int along) : axis(along), n(x.ne[along]) {
    for (int d = 0; d < 4; ++d) sizes[d] = d == axis ? 1 : x.ne[d];
    runs = axis == 0 ? 1 : (sizes[0] + kColumns - 1) / kColumns;
    items = runs * sizes[1] * sizes[2] * sizes[3];
  }

  // The first column of an item, and its other indices.
  int64_t first(int64_t item) const { return item % runs * kColumns; }
  int64_t columns(int64_t item) const { return min64(kColumns, sizes[0] - first(item)); }
  Index row(int64_t item) const {
    const int64_t r = item / runs;
    const int64_t i2 = r / sizes[1];
    return {r % sizes[1], i2 % sizes[2], i2 / sizes[2]};
  }
  char* start(const Tensor& t, int64_t item) const {
    return row_data(t, row(item)) + (axis == 0 ? 0 : first(item) * t.nb[0]);
  }
};

// ---- ARG_REDUCE: slots largest, axis (-1: among all)

template <bool kLargest, typename T>
bool before(T x, T best) {
  return (kLargest ? x > best : x < best) || (x != x && best == best);
}

void put_index(char* p, int64_t index) { std::memcpy(p, &index, 8); }

// Whether there is a NaN, else the best, of n > 0 elements.
template <bool kLargest, typename T>
struct Best {
  T value;
  bool nan;
};
template <bool kLargest, typename T>
Best<kLargest, T> best_of(const T* v, int64_t n) {
  constexpr int64_t kParts = 32;
  T best[kParts];
  int32_t nans = 0;
  for (int64_t j = 0; j < kParts; ++j) best[j] = v[0];
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
    for (int64_t j = 0; j < kParts; ++j) {
      const T x = v[i + j];
      best[j] = (kLargest ? x > best[j] : x < best[j]) ? x : best[j];
    }
  }
  for (; i < n; ++i) best[0] = (kLargest ? v[i] > best[0] : v[i] < best[0]) ? v[i] : best[0];
  for (int64_t j = 1; j < kParts; ++j) {
    best[0] = (kLargest ? best[j] > best[0] : best[j] < best[0]) ? best[j] : best[0];
  }
  for (int64_t k = 0; k < n; ++k) nans |= v[k] != v[k];
  return {best[0], nans != 0};
}

template <bool kLargest, typename T>
struct Search {
  T best = 0;
  int64_t at = -1;  // none yet

  void row(const char* p, const Tensor& x, int64_t first) {
    T buffer[kPiece];
    for (int64_t i = 0; i < x.ne[0]; i += kPiece) {
      const int64_t n = min64(kPiece, x.ne[0] - i);
      const T* v = numbers_at(p + i * x.nb[0], x.type, x.nb[0], n, buffer);
      if (best != best) return;  // the first NaN is it
      const Best<kLargest, T> piece = best_of<kLargest>(v, n);
      if (at >= 0 && !piece.nan && !before<kLargest>(piece.value, best)) continue;
      int64_t j = 0;
      while (piece.nan ? v[j] == v[j] : v[j] != piece.value) ++j;
      best = v[j];
      at = first + i + j;
    }
  }
};

template <bool kLargest, typename T>
void search_columns(const Call& call, const Lines& lines, int64_t item) {
  const Tensor& x = *call.src[0];
  const int64_t n = lines.columns(item);
  T best[kColumns], buffer[kColumns];
  int64_t at[kColumns];
  const char* p = lines.start(x, item);
  for (int64_t k = 0; k < lines.n; ++k) {
    const T* v = numbers_at(p + k * x.nb[lines.axis], x.type, x.nb[0], n, buffer);
    for (int64_t i = 0; i < n; ++i) {
      if (k == 0 || before<kLargest>(v[i], best[i])) {
        best[i] = v[i];
        at[i] = k;
      }
    }
  }
  char* out = lines.start(call.dst, item);
  for (int64_t i = 0; i < n; ++i) put_index(out + i * call.dst.nb[0], at[i]);
}

// Among all elements: rows in parts that threads share.
constexpr int64_t kMostParts = 64, kPartBytes = 16;
int64_t rows_of_part(const Tensor& x) {
  const int64_t rows = n_rows(x);
  return max64(row_grain(x.ne[0]), (rows + kMostParts - 1) / kMostParts);
}
int64_t search_parts(const Call& call) {
  if (call.i(ArgReduceSlot::kAxis) >= 0) return 0;
  const Tensor& x = *call.src[0];
  return (n_rows(x) + rows_of_part(x) - 1) / rows_of_part(x);
}

template <bool kLargest, typename T>
void search_some(const Call& call, int64_t begin, int64_t end) {
  const Tensor& x = *call.src[0];
  const int64_t rows = rows_of_part(x);
  for (int64_t part = begin; part < end; ++part) {
    Search<kLargest, T> search;
    for (int64_t row = part * rows; row < min64((part + 1) * rows, n_rows(x)); ++row) {
      search.row(row_data(x, row_index(x, row)), x, row * x.ne[0]);
    }
    std::memcpy(call.shared + part * kPartBytes, &search, sizeof search);
  }
}

template <bool kLargest, typename T>
void run_search(const Call& call, int64_t begin, int64_t end) {
  const Tensor& x = *call.src[0];
  if (call.i(ArgReduceSlot::kAxis) < 0) {
    Search<kLargest, T> all;
    for (int64_t i = 0; i < search_parts(call); ++i) {
      Search<kLargest, T> part;
      std::memcpy(&part, call.shared + i * kPartBytes, sizeof part);
      if (part.at >= 0 && (all.at < 0 || before<kLargest>(part.best, all.best))) all = part;
    }
    return put_index(call.dst.data, all.at);
  }
  const Lines lines(x, static_cast<int>(call.i(ArgReduceSlot::kAxis)));
  for (int64_t item = begin; item < end; ++item) {
    if (lines.axis != 0) {
      search_columns<kLargest, T>(call, lines, item);
      continue;
    }
    Search<kLargest, T> search;
    search.row(lines.start(x, item), x, 0);
    put_index(lines.start(call.dst, item), search.at);
  }
}

void run_arg(const Call& call, int64_t begin, int64_t end, char*) {
  const bool largest = call.i(ArgReduceSlot::kLargest) != 0;
  if (is_float(call.src[0]->type)) {
    largest ? run_search<true, float>(call, begin, end)
            : run_search<false, float>(call, begin, end);
  } else {
    largest ? run_search<true, int64_t>(call, begin, end)
            : run_search<false, int64_t>(call, begin, end);
  }
}

void prepare_arg(const Call& call, int64_t begin, int64_t end) {
  const bool largest = call.i(ArgReduceSlot::kLargest) != 0;
  if (is_float(call.src[0]->type)) {
    largest ? search_some<true, float>(call, begin, end)
            : search_some<false, float>(call, begin, end);
  } else {
    largest ? search_some<true, int64_t>(call, begin, end)
            : search_some<false, int64_t>(call, begin, end);
  }
}
size_t shared_arg(const Call&) { return kMostParts * kPartBytes; }

int64_t items_arg(const Call& call) {
  if (call.i(ArgReduceSlot::kAxis) < 0) return 1;
  return Lines(*call.src[0], static_cast<int>(call.i(ArgReduceSlot::kAxis))).items;
}

const char* check_arg(const Call& call) {
  const Tensor& x = *call.src[0];
  if (call.i(ArgReduceSlot::kAxis) < -1 || call.i(ArgReduceSlot::kAxis) > 3)
    return "an axis is -1 .. 3";
  if (!is_number(x.type) || call.dst.type != DType::kI64) return "needs numbers and an i64 result";
  for (int d = 0; d < 4; ++d) {
    const bool reduced = call.i(ArgReduceSlot::kAxis) < 0 || call.i(ArgReduceSlot::kAxis) == d;
    if (call.dst.ne[d] != (reduced ? 1 : x.ne[d])) return "the result has other sizes";
  }
  return nullptr;
}

// ---- CUMULATE

template <bool kProduct>
double step(double a, double b) {
  return kProduct ? a * b : a + b;
}
template <bool kProduct>
int64_t step(int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  return static_cast<int64_t>(kProduct ? x * y : x + y);
}

// Lines that are added up side by side, so that one does not wait for its last sum.
constexpr int64_t kTogether = 4;

// Lines `item` and those behind it, of elements side by side that are T.
template <bool kProduct, typename T, typename A>
void cumulate_together(const Lines& lines, const Tensor& x, const Tensor& dst, int64_t item) {
  const T* in[kTogether];
  T* out[kTogether];
  A all[kTogether];
  for (int64_t k = 0; k < kTogether; ++k) {
    in[k] = reinterpret_cast<const T*>(lines.start(x, item + k));
    out[k] = reinterpret_cast<T*>(lines.start(dst, item + k));
    all[k] = kProduct ? 1 : 0;
  }
  for (int64_t i = 0; i < lines.n; ++i) {
    for (int64_t k = 0; k < kTogether; ++k) {
      all[k] = step<kProduct>(all[k], static_cast<A>(in[k][i]));
      out[k][i] = static_cast<T>(all[k]);
    }
  }
}

// T: what elements are computed with; A: what is kept.
template <bool kProduct, typename T, typename A>
void run_cumulate_of(const Call& call, int64_t begin, int64_t end) {
  const Tensor& x = *call.src[0];
  const Tensor& dst = call.dst;
  const Lines lines(x, static_cast<int>(call.i(CumulateSlot::kAxis)));
  constexpr A kStart = kProduct ? 1 : 0;
  constexpr int64_t kSize = sizeof(T);
  T buffer[kPiece], results[kPiece];
  for (int64_t item = begin; item < end; ++item) {
    if (lines.axis == 0 && item + kTogether <= end && x.nb[0] == kSize &&
        lies_as<T>(dst.type, dst.nb[0]) && element_size(x.type) == kSize) {
      cumulate_together<kProduct, T, A>(lines, x, dst, item);
      item += kTogether - 1;
      continue;
    }
    const char* p = lines.start(x, item);
    char* out = lines.start(dst, item);
    if (lines.axis == 0) {
      A all = kStart;
      for (int64_t i = 0; i < lines.n; i += kPiece) {
        const int64_t n = min64(kPiece, lines.n - i);
        const T* v = numbers_at(p + i * x.nb[0], x.type, x.nb[0], n, buffer);
        for (int64_t j = 0; j < n; ++j) {
          all = step<kProduct>(all, static_cast<A>(v[j]));
          results[j] = static_cast<T>(all);
        }
        store_numbers(results, n, out + i * dst.nb[0], dst.type, dst.nb[0]);
      }
      continue;
    }
    const int64_t n = lines.columns(item);
    A all[kColumns];
    for (int64_t i = 0; i < n; ++i) all[i] = kStart;
    for (int64_t k = 0; k < lines.n; ++k) {
      const T* v = numbers_at(p + k * x.nb[lines.axis], x.type, x.nb[0], n, buffer);
      for (int64_t i = 0; i < n; ++i) {
        all[i] = step<kProduct>(all[i], static_cast<A>(v[i]));
        results[i] = static_cast<T>(all[i]);
      }
      store_numbers(results, n, out + k * dst.nb[lines.axis], dst.type, dst.nb[0]);
    }
  }
}

void run_cumulate(const Call& call, int64_t begin, int64_t end, char*) {
  const bool product = call.as<CumulateOp>(CumulateSlot::kOp) == CumulateOp::kProd;
  if (is_float(call.src[0]->type)) {
    product ? run_cumulate_of<true, float, double>(call, begin, end)
            : run_cumulate_of<false, float, double>(call, begin, end);
  } else {
    product ? run_cumulate_of<true, int64_t, int64_t>(call, begin, end)
            : run_cumulate_of<false, int64_t, int64_t>(call, begin, end);
  }
}

int64_t items_cumulate(const Call& call) {
  return Lines(*call.src[0], static_cast<int>(call.i(CumulateSlot::kAxis))).items;
}

const char* check_cumulate(const Call& call) {
  const Tensor& x = *call.src[0];
  if (call.i(CumulateSlot::kAxis) < 0 || call.i(CumulateSlot::kAxis) > 3)
    return "an axis is 0 .. 3";
  if (!is_number(x.type)) return "needs f32, f16, bf16, i8, i16, i32 or i64";
  if (call.dst.type != (is_whole(x.type) ? DType::kI64 : x.type)) {
    return "the result has the type of floats, i64 for whole numbers";
  }
  return same_shape(call.dst, x) ? nullptr : "result and source differ in shape";
}

// ---- CUMULATE_ARG

// Whether an element takes the place of the best so far: also one like it, and any NaN.
template <bool kLargest, typename T>
bool overtakes(T x, T best) {
  return x != x || (best == best && (kLargest ? x >= best : x <= best));
}

template <bool kLargest, typename T>
void run_places(const Call& call, int64_t begin, int64_t end) {
  const Tensor& x = *call.src[0];
  const Tensor& dst = call.dst;
  const Lines lines(x, static_cast<int>(call.i(ArgReduceSlot::kAxis)));
  T buffer[kPiece], best[kColumns];
  int64_t at[kColumns];
  for (int64_t item = begin; item < end; ++item) {
    const char* p = lines.start(x, item);
    char* out = lines.start(dst, item);
    if (lines.axis == 0) {
      for (int64_t first = 0; first < lines.n; first += kPiece) {
        const int64_t n = min64(kPiece, lines.n - first);
        const T* v = numbers_at(p + first * x.nb[0], x.type, x.nb[0], n, buffer);
        for (int64_t i = 0; i < n; ++i) {
          if (first + i == 0 || overtakes<kLargest>(v[i], best[0])) {
            best[0] = v[i];
            at[0] = first + i;
          }
          put_index(out + (first + i) * dst.nb[0], at[0]);
        }
      }
      continue;
    }
    const int64_t n = lines.columns(item);
    for (int64_t k = 0; k < lines.n; ++k) {
      const T* v = numbers_at(p + k * x.nb[lines.axis], x.type, x.nb[0], n, buffer);
      for (int64_t i = 0; i < n; ++i) {
        if (k == 0 || overtakes<kLargest>(v[i], best[i])) {
          best[i] = v[i];
          at[i] = k;
        }
        put_index(out + k * dst.nb[lines.axis] + i * dst.nb[0], at[i]);
      }
    }
  }
}

void run_cumulate_arg(const Call& call, int64_t begin, int64_t end, char*) {
  const bool largest = call.i(ArgReduceSlot::kLargest) != 0;
  if (is_float(call.src[0]->type)) {
    largest ? run_places<true, float>(call, begin, end)
            : run_places<false, float>(call, begin, end);
  } else {
    largest ? run_places<true, int64_t>(call, begin, end)
            : run_places<false, int64_t>(call, begin, end);
  }
}

int64_t items_cumulate_arg(const Call& call) {
  return Lines(*call.src[0], static_cast<int>(call.i(ArgReduceSlot::kAxis))).items;
}

const char* check_cumulate_arg(const Call& call) {
  const Tensor& x = *call.src[0];
  const int64_t axis = call.i(ArgReduceSlot::kAxis);
  if (axis < 0 || axis > 3) return "an axis is 0 .. 3";
  if (!is_number(x.type) || call.dst.type != DType::kI64) return "needs numbers and an i64 result";
  return same_shape(call.dst, x) ? nullptr : "result and source differ in shape";
}

template <typename Slot>
int64_t grain(const Call& call) {
  const int64_t axis = max64(0, call.i(Slot::kAxis));
  return row_grain(call.src[0]->ne[axis] * (axis == 0 ? 1 : min64(kColumns, call.dst.ne[0])));
}

}  // namespace

void register_tensor_scan(KernelTable& table) {
  table[Op::kArgReduce] = {.check = check_arg,
                           .items = items_arg,
                           .run = run_arg,
                           .grain = grain<ArgReduceSlot>,
                           .prepare_units = search_parts,
                           .prepare = prepare_arg,
                           .shared = shared_arg};
  table[Op::kCumulateArg] = {.check = check_cumulate_arg,
                             .items = items_cumulate_arg,
                             .run = run_cumulate_arg,
                             .grain = grain<ArgReduceSlot>};
  table[Op::kCumulate] = {.check = check_cumulate,
                          .items = items_cumulate,
                          .run = run_cumulate,
                          .grain = grain<CumulateSlot>};
}

}  // namespace weft::WEFT_TARGET
