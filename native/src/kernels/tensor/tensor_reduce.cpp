// REDUCE: one number of all elements along any axes.
//
// Where rows are reduced, an item is an element of the result; else it is a run of columns, and
// rows are added up. Sums of floats are kept in lanes for a short while, then in double. Few long
// reductions are cut into parts that threads share: where depends on the sizes alone, so that any
// number of threads gives the same.
#include <type_traits>

#include "kernels/elementwise/reductions.h"
#include "kernels/numbers.h"

namespace weft::WEFT_TARGET {

void register_tensor_reduce(KernelTable& table);

namespace {

using enum ReduceSlot;
using enum ReduceOp;

constexpr int64_t kWidth = 32;       // partial results of a piece
constexpr int64_t kColumns = 512;    // of an item
constexpr int64_t kRowsShort = 64;   // that are added in float
constexpr int64_t kMostParts = 256;  // of all results together
constexpr int64_t kPartPieces = 64;  // at least, in a part

template <typename T>
struct WiderThan {
  using Type = T;
};
template <>
struct WiderThan<float> {
  using Type = double;
};

uint64_t bits(int64_t x) { return static_cast<uint64_t>(x); }

// Each function has a value that it starts with, and takes one element at a time. Whole numbers
// wrap around.
template <typename T>
struct Sum {
  using Wide = typename WiderThan<T>::Type;
  static T start() { return 0; }
  template <typename U>
  static U add(U a, U b) {
    return a + b;
  }
  static int64_t add(int64_t a, int64_t b) { return static_cast<int64_t>(bits(a) + bits(b)); }
};
template <typename T>
struct Product {
  using Wide = typename WiderThan<T>::Type;
  static T start() { return 1; }
  template <typename U>
  static U add(U a, U b) {
    return a * b;
  }
  static int64_t add(int64_t a, int64_t b) { return static_cast<int64_t>(bits(a) * bits(b)); }
};
template <typename T>
struct Largest {
  using Wide = T;
  static T start() { return static_cast<T>(sizeof(T) == 4 ? -__builtin_inf() : 0); }
  static T add(T a, T b) { return b > a || b != b ? b : a; }
};
template <>
int64_t Largest<int64_t>::start() {
  return INT64_MIN;
}
template <typename T>
struct Smallest {
  using Wide = T;
  static T start() { return static_cast<T>(sizeof(T) == 4 ? __builtin_inf() : 0); }
  static T add(T a, T b) { return b < a || b != b ? b : a; }
};
template <>
int64_t Smallest<int64_t>::start() {
  return INT64_MAX;
}
template <typename T>
struct Any {
  using Wide = T;
  static T start() { return 0; }
  static T add(T a, T b) { return static_cast<T>((a != 0) | (b != 0)); }
};
template <typename T>
struct All {
  using Wide = T;
  static T start() { return 1; }
  static T add(T a, T b) { return static_cast<T>((a != 0) & (b != 0)); }
};

// The source with its reduced dimensions of size 1 kept apart: loops over those that remain.
struct Plan {
  Tensor x;
  bool rows;         // whether dimension 0 is reduced
  int64_t inner[4];  // sizes of the reduced dimensions, 1 for others
  double count;      // elements of a result

  explicit Plan(const Call& call) : x(*call.src[0]), count(1) {
    const int64_t axes = call.i(kAxes);
    rows = (axes & 1) != 0 || x.ne[0] == 1;
    for (int d = 0; d < 4; ++d) {
      inner[d] = (axes >> d & 1) != 0 ? x.ne[d] : 1;
      count *= static_cast<double>(inner[d]);
    }
    // dimensions without a gap between are one
    for (int d = 1; rows && d < 4; ++d) {
      if (inner[d] != x.ne[d] || x.nb[d] != x.nb[0] * inner[0]) break;
      inner[0] *= x.ne[d];
      inner[d] = 1;
    }
  }
};

// Calls work(p) for every row that belongs to a result at `p`.
template <typename F>
void for_rows(const Plan& plan, const char* p, const F& work) {
  for (int64_t i3 = 0; i3 < plan.inner[3]; ++i3) {
    for (int64_t i2 = 0; i2 < plan.inner[2]; ++i2) {
      for (int64_t i1 = 0; i1 < plan.inner[1]; ++i1) {
        work(p + i1 * plan.x.nb[1] + i2 * plan.x.nb[2] + i3 * plan.x.nb[3]);
      }
    }
  }
}

template <typename Op, typename T>
typename Op::Wide reduce_piece(const T* x, int64_t n) {
  if constexpr (std::is_same_v<Op, Sum<float>>) return sum(x, n);
  if (n < kWidth) {
    auto all = static_cast<typename Op::Wide>(Op::start());
    for (int64_t i = 0; i < n; ++i) {
      all = Op::add(all, static_cast<typename Op::Wide>(Op::add(Op::start(), x[i])));
    }
    return all;
  }
  T part[kWidth];
  for (int64_t j = 0; j < kWidth; ++j) part[j] = Op::start();
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    for (int64_t j = 0; j < kWidth; ++j) part[j] = Op::add(part[j], x[i + j]);
  }
  for (int64_t j = 0; i + j < n; ++j) part[j] = Op::add(part[j], x[i + j]);
  auto all = static_cast<typename Op::Wide>(part[0]);
  for (int64_t j = 1; j < kWidth; ++j) {
    all = Op::add(all, static_cast<typename Op::Wide>(part[j]));
  }
  return all;
}

template <typename T>
void put(const Call& call, T value, char* p) {
  store_numbers(&value, 1, p, call.dst.type, 0);
}

// The result's type decides how it is written: tests of floats are whole numbers.
template <typename W>
void put_result(const Call& call, W value, double scale, char* p) {
  if (is_whole(call.dst.type)) return put(call, static_cast<int64_t>(value), p);
  put(call, static_cast<float>(static_cast<double>(value) * scale), p);
}

// Pieces that the rows of a result are cut into, and the parts that share them.
struct Parts {
  int64_t per_row, pieces, parts, per_part;

  Parts(const Plan& plan, int64_t results) : parts(1) {
    per_row = (plan.inner[0] + kPiece - 1) / kPiece;
    pieces = per_row * plan.inner[1] * plan.inner[2] * plan.inner[3];
    if (plan.rows && results > 0) {
      parts = max64(1, min64(pieces / kPartPieces, kMostParts / results));
    }
    per_part = (pieces + parts - 1) / parts;
  }
};

// The `n` elements of a row from `row` on.
template <typename Op, typename T>
void reduce_row(const Plan& plan, const char* row, int64_t n, typename Op::Wide& all) {
  if constexpr (std::is_same_v<Op, Sum<float>>) {
    if (is_plain(plan.x)) {
      all += sum(reinterpret_cast<const float*>(row), n);
      return;
    }
  }
  T buffer[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = min64(kPiece, n - i);
    const char* p = row + i * plan.x.nb[0];
    all = Op::add(all,
                  reduce_piece<Op>(numbers_at(p, plan.x.type, plan.x.nb[0], count, buffer), count));
  }
}

// Pieces `first` .. `last` of the rows that belong to the result at `p`.
template <typename Op, typename T>
typename Op::Wide reduce_pieces(const Plan& plan, const Parts& parts, const char* p, int64_t first,
                                int64_t last) {
  auto all = static_cast<typename Op::Wide>(Op::start());
  for (int64_t row = first / parts.per_row; row * parts.per_row < last; ++row) {
    const int64_t i2 = row / plan.inner[1];
    const char* start = p + row % plan.inner[1] * plan.x.nb[1] + i2 % plan.inner[2] * plan.x.nb[2] +
                        i2 / plan.inner[2] * plan.x.nb[3];
    const int64_t from = max64(first - row * parts.per_row, 0) * kPiece;
    const int64_t to = min64((last - row * parts.per_row) * kPiece, plan.inner[0]);
    reduce_row<Op, T>(plan, start + from * plan.x.nb[0], to - from, all);
  }
  return all;
}

template <typename Op, typename T>
void run_rows(const Call& call, const Plan& plan, double scale, int64_t begin, int64_t end) {
  using Wide = typename Op::Wide;
  const Parts parts(plan, n_elements(call.dst));
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(call.dst, item);
    auto all = static_cast<Wide>(Op::start());
    if (parts.parts > 1) {
      for (int64_t i = 0; i < parts.parts; ++i) {
        Wide part;
        std::memcpy(&part, call.shared + 8 * (item * parts.parts + i), sizeof part);
        all = Op::add(all, part);
      }
    } else {
      for_rows(plan, row_data(plan.x, at),
               [&](const char* row) { reduce_row<Op, T>(plan, row, plan.inner[0], all); });
    }
    put_result(call, all, scale, row_data(call.dst, at));
  }
}

template <typename Op, typename T>
void run_parts(const Call& call, const Plan& plan, int64_t begin, int64_t end) {
  const Parts parts(plan, n_elements(call.dst));
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t item = unit / parts.parts;
    const int64_t first = unit % parts.parts * parts.per_part;
    const int64_t last = min64(first + parts.per_part, parts.pieces);
    const char* p = row_data(plan.x, row_index(call.dst, item));
    const auto part = first < last ? reduce_pieces<Op, T>(plan, parts, p, first, last)
                                   : static_cast<typename Op::Wide>(Op::start());
    std::memcpy(call.shared + 8 * unit, &part, sizeof part);
  }
}

int64_t column_runs(const Tensor& dst) { return (dst.ne[0] + kColumns - 1) / kColumns; }

template <typename Op, typename T>
void run_columns(const Call& call, const Plan& plan, double scale, int64_t begin, int64_t end) {
  const int64_t runs = column_runs(call.dst);
  using Wide = typename Op::Wide;
  for (int64_t item = begin; item < end; ++item) {
    const Index at = row_index(call.dst, item / runs);
    const int64_t first = item % runs * kColumns;
    const int64_t n = min64(kColumns, call.dst.ne[0] - first);
    T part[kColumns], buffer[kColumns];
    Wide all[kColumns];
    for (int64_t i = 0; i < n; ++i) part[i] = Op::start();
    for (int64_t i = 0; i < n; ++i) all[i] = static_cast<Wide>(Op::start());
    int64_t rows = 0;
    const auto flush = [&] {
      for (int64_t i = 0; i < n; ++i) {
        all[i] = Op::add(all[i], static_cast<Wide>(part[i]));
        part[i] = Op::start();
      }
      rows = 0;
    };
    for_rows(plan, row_data(plan.x, at) + first * plan.x.nb[0], [&](const char* p) {
      const T* x = numbers_at(p, plan.x.type, plan.x.nb[0], n, buffer);
      for (int64_t i = 0; i < n; ++i) part[i] = Op::add(part[i], x[i]);
      if (++rows == kRowsShort) flush();
    });
    flush();
    char* out = row_data(call.dst, at) + first * call.dst.nb[0];
    for (int64_t i = 0; i < n; ++i) put_result(call, all[i], scale, out + i * call.dst.nb[0]);
  }
}

template <typename Op, typename T>
void run_function(const Call& call, int64_t begin, int64_t end, bool parts) {
  const Plan plan(call);
  if (parts) return run_parts<Op, T>(call, plan, begin, end);
  const double scale = call.as<ReduceOp>(kOp) == kMean ? 1.0 / plan.count : 1.0;
  plan.rows ? run_rows<Op, T>(call, plan, scale, begin, end)
            : run_columns<Op, T>(call, plan, scale, begin, end);
}

template <typename T>
void run_of(const Call& call, int64_t begin, int64_t end, bool parts) {
  switch (call.as<ReduceOp>(kOp)) {
    case kSum:
    case kMean:
      return run_function<Sum<T>, T>(call, begin, end, parts);
    case kMax:
      return run_function<Largest<T>, T>(call, begin, end, parts);
    case kMin:
      return run_function<Smallest<T>, T>(call, begin, end, parts);
    case kProd:
      return run_function<Product<T>, T>(call, begin, end, parts);
    case kAny:
      return run_function<Any<T>, T>(call, begin, end, parts);
    default:
      return run_function<All<T>, T>(call, begin, end, parts);
  }
}

void run_any(const Call& call, int64_t begin, int64_t end, bool parts) {
  is_float(call.src[0]->type) ? run_of<float>(call, begin, end, parts)
                              : run_of<int64_t>(call, begin, end, parts);
}

void run(const Call& call, int64_t begin, int64_t end, char*) { run_any(call, begin, end, false); }

int64_t prepare_units(const Call& call) {
  const int64_t results = n_elements(call.dst);
  const int64_t parts = Parts(Plan(call), results).parts;
  return parts > 1 ? results * parts : 0;
}
void prepare(const Call& call, int64_t begin, int64_t end) { run_any(call, begin, end, true); }
size_t shared(const Call&) { return 8 * kMostParts; }

int64_t items(const Call& call) {
  return n_rows(call.dst) * (Plan(call).rows ? 1 : column_runs(call.dst));
}

int64_t grain(const Call& call) {
  if (prepare_units(call) > 0) return 1;
  const int64_t each = n_elements(*call.src[0]) / max64(1, items(call));
  return row_grain(each);
}

const char* check(const Call& call) {
  const Tensor& x = *call.src[0];
  if (!call.is_one<ReduceOp>(kOp)) return "unknown function number";
  if (!is_number(x.type)) return "needs f32, f16, bf16, i8, i16, i32 or i64";
  const auto function = call.as<ReduceOp>(kOp);
  const bool sums = function == kSum || function == kProd;
  DType wanted = x.type;
  if (function >= kAny) wanted = DType::kI8;
  if (sums && is_whole(x.type)) wanted = DType::kI64;
  const bool floats = is_float(wanted) && is_float(call.dst.type);
  if (call.dst.type != wanted && !floats) return "the result has another type";
  if (function == kMean && is_whole(x.type)) return "means are of floats";
  for (int d = 0; d < 4; ++d) {
    if (call.dst.ne[d] != ((call.i(kAxes) >> d & 1) != 0 ? 1 : x.ne[d])) {
      return "the result has not the sizes that remain";
    }
  }
  return nullptr;
}

}  // namespace

void register_tensor_reduce(KernelTable& table) {
  table[Op::kReduce] = {.check = check,
                        .items = items,
                        .run = run,
                        .grain = grain,
                        .prepare_units = prepare_units,
                        .prepare = prepare,
                        .shared = shared};
}

}  // namespace weft::WEFT_TARGET
