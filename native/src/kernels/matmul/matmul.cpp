// MUL_MAT: dst[i3, i2, n, m] = src0[.., m, :] . src1[i3, i2, n, :]; consecutive batches of src1
// share one of src0 (grouped-query attention). src2, if there is one, is a row that is added to
// each row of the result; a parameter record names a function that is applied then.
#include "kernels/elements.h"
#include "kernels/matmul/matmul_activation.h"
#include "kernels/matmul/matmul_floats.h"
#include "kernels/matmul/matmul_integers.h"
#include "kernels/matmul/matmul_lookup.h"

namespace weft::WEFT_TARGET {

void register_matmul(KernelTable& table);

namespace {

// All columns of src1 that one matrix of src0 multiplies are taken together. An item is a matrix, a
// run of columns (only when there are too few rows to share out) and kItemRows rows.
struct Work {
  int64_t per2, per3;  // matrices of src1 for one of src0, along dimensions 2 and 3
  int64_t n_columns;
  int64_t column_run, column_runs;
  int64_t row_blocks;
  int64_t matrices;

  explicit Work(const Call& call) {
    const Tensor& w = *call.src[0];
    const Tensor& x = *call.src[1];
    per2 = x.ne[2] / max64(1, w.ne[2]);
    per3 = x.ne[3] / max64(1, w.ne[3]);
    n_columns = x.ne[1] * per2 * per3;
    row_blocks = (w.ne[1] + kItemRows - 1) / kItemRows;
    matrices = w.ne[2] * w.ne[3];
    // tiles of every target divide 48
    const int64_t shares = 4 * int64_t{call.n_threads};
    const int64_t wanted = shares / max64(1, row_blocks * matrices);
    column_run = max64(1, n_columns);
    if (wanted > 1) column_run = min64(column_run, max64(48, n_columns / wanted / 48 * 48));
    column_runs = (n_columns + column_run - 1) / column_run;
  }
};

Weights matrix(const Call& call, int64_t w2, int64_t w3) {
  const Tensor& w = *call.src[0];
  const int64_t stride = stored_matrix_stride(w);
  const bool own = w.layout == Layout::kLevels;
  const char* data = w.data + w2 * stride + w3 * (own ? w.ne[2] * stride : w.nb[3]);
  return {data, stored_row_stride(w), w.nb[0], w.type, w.ne[0], tensor_scale(w), w.layout};
}

// Where columns first..first+n of those for matrix (w2, w3) are, and their results.
void find_columns(const Call& call, const Work& work, int64_t w2, int64_t w3, int64_t first,
                  int64_t n, const char** in, float** out) {
  const Tensor& x = *call.src[1];
  for (int64_t c = 0; c < n;) {
    const int64_t batch = (first + c) / x.ne[1];
    const int64_t start = first + c - batch * x.ne[1];
    const int64_t last = min64(x.ne[1], start + n - c);
    const int64_t i2 = w2 * work.per2 + batch % work.per2;
    const int64_t i3 = w3 * work.per3 + batch / work.per2;
    for (int64_t i1 = start; i1 < last; ++i1, ++c) {
      in[c] = row_data(x, {i1, i2, i3});
      out[c] = reinterpret_cast<float*>(row_data(call.dst, {i1, i2, i3}));
    }
  }
}

// ---- columns that are packed once for all rows

// Below this many elements packing them costs less than waiting for each other.
constexpr int64_t kWorthSharing = 1 << 17;

// The weights without their data, which does not exist while a step is planned.
Weights described(const Call& call) {
  const Tensor& w = *call.src[0];
  return {nullptr, 0, 0, w.type, w.ne[0], 1.0f, w.layout};
}

bool is_float_product(const Call& call) {
  return !is_integer_product(call.src[0]->type, call.src[1]->type);
}

// With several matrices each packs its own.
bool is_shared(const Call& call) {
  const Work work(call);
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Weights weights = described(call);
  if (work.matrices != 1 || w.ne[0] == 0) return false;
  if (is_looked_up(weights, work.n_columns)) return true;
  if (w.ne[0] * work.n_columns < kWorthSharing) return false;
  if (is_float_product(call)) {
    return are_floats_packed(weights, {nullptr, nullptr, work.n_columns, x.type, x.nb[0]});
  }
  return is_packed(weights, x.type, work.n_columns);
}

// Where the columns from number `first` on are packed.
void find_packed(const Call& call, int64_t first, Columns& columns) {
  if (!is_float_product(call)) {
    columns.packed = packed_column(call.shared, first, call.src[0]->ne[0]);
    return;
  }
  const auto bytes = static_cast<int64_t>(packed_float_bytes());
  columns.packed = call.shared + first * bytes;
  columns.packed_step = Work(call).n_columns * bytes;
}

// The tables of a part of the depth stay in the cache for the rows of a chunk.
bool is_looked_up(const Call& call) { return is_looked_up(described(call), Work(call).n_columns); }

int64_t prepare_units(const Call& call) {
  if (!is_shared(call)) return 0;
  if (is_looked_up(call)) return (call.src[0]->ne[0] / 32 + kTableChunks - 1) / kTableChunks;
  return (Work(call).n_columns + kPackUnit - 1) / kPackUnit;
}

void prepare_tables(const Call& call, const Weights& weights, int64_t begin, int64_t end) {
  const Work work(call);
  const char* in[kFewLookups];
  float* out[kFewLookups];
  find_columns(call, work, 0, 0, 0, work.n_columns, in, out);
  const Tensor& x = *call.src[1];
  make_tables({in, out, work.n_columns, x.type, x.nb[0]}, begin * kTableChunks,
              min64(end * kTableChunks, weights.k / 32), call.shared);
}

void prepare(const Call& call, int64_t begin, int64_t end) {
  const Work work(call);
  const Tensor& x = *call.src[1];
  const Weights weights = matrix(call, 0, 0);
  if (is_looked_up(weights, work.n_columns)) return prepare_tables(call, weights, begin, end);
  for (int64_t unit = begin; unit < end; ++unit) {
    const char* in[kPackUnit];
    float* out[kPackUnit];
    const int64_t first = unit * kPackUnit;
    const int64_t n = min64(kPackUnit, work.n_columns - first);
    find_columns(call, work, 0, 0, first, n, in, out);
    Columns columns = {in, out, n, x.type, x.nb[0]};
    find_packed(call, first, columns);
    if (is_float_product(call)) {
      pack_floats(weights, columns, columns.packed_step, const_cast<char*>(columns.packed));
    } else {
      pack_all(weights, columns, const_cast<char*>(columns.packed));
    }
  }
}

size_t shared(const Call& call) {
  const Tensor& w = *call.src[0];
  const int64_t n = Work(call).n_columns;
  size_t packed = is_shared(call) ? packed_bytes(n, w.ne[0]) : 0;
  if (packed != 0 && is_float_product(call)) {
    packed = static_cast<size_t>(n * packed_float_slabs(w.ne[0])) * packed_float_bytes();
  }
  if (w.layout != Layout::kLookup) return packed;
  const size_t tables = lookup_table_bytes(min64(n, kFewLookups), w.ne[0]);
  return packed > tables ? packed : tables;
}

int64_t items(const Call& call) {
  const Work work(call);
  return work.matrices * work.column_runs * work.row_blocks;
}

int64_t grain(const Call& call) {
  const Work work(call);
  const int64_t products = kItemRows * call.src[0]->ne[0] * work.column_run;
  // packed columns stay in the cache for the rows of a chunk; a few columns, and tables, are taken
  // up again for every chunk
  const int64_t rows = work.n_columns >= 32 ? 4 : 1;
  const int64_t least = (1 << 15) / max64(1, products);
  const Weights weights = described(call);
  // panels of floats are read where they are, and so are most columns; two for a single column
  if (multiply_finishes(weights)) return max64(work.n_columns == 1 ? 2 : 1, least);
  const bool once = is_shared(call) && !is_looked_up(call);
  const int64_t share = once ? 1 : work.row_blocks / (4 * call.n_threads);
  return max64(max64(rows, share), least);
}

Finish finish_of(const Call& call, const ResultFunction& function) {
  const Tensor* bias = call.src[2];
  return {bias == nullptr ? nullptr : reinterpret_cast<const float*>(bias->data),
          function.is_clamp(), function.low(), function.high()};
}

// Adds elements begin..end of the bias to those of every column, which are in the cache.
void add_bias(const Tensor& bias, int64_t begin, int64_t end, float* const* out, int64_t n) {
  const float* values = reinterpret_cast<const float*>(bias.data) + begin;
  for (int64_t c = 0; c < n; ++c) {
    map(out[c] + begin, values, out[c] + begin, end - begin, [](vf y, vf b) { return y + b; });
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Work work(call);
  const bool is_prepared = is_shared(call);
  const ResultFunction function(call);
  Arena arena(scratch);
  auto** in = arena.take<const char*>(work.column_run);
  auto** out = arena.take<float*>(work.column_run);
  for (int64_t item = begin; item < end;) {
    const int64_t outer = item / work.row_blocks;
    const int64_t first_block = item - outer * work.row_blocks;
    const int64_t blocks = min64(end - item, work.row_blocks - first_block);
    const int64_t number = outer / work.column_runs;
    const int64_t first = (outer - number * work.column_runs) * work.column_run;
    const int64_t n = min64(work.column_run, work.n_columns - first);
    const int64_t w3 = number / w.ne[2];
    const int64_t w2 = number - w3 * w.ne[2];
    find_columns(call, work, w2, w3, first, n, in, out);
    const Weights weights = matrix(call, w2, w3);
    Columns columns = {in, out, n, x.type, x.nb[0]};
    if (is_prepared && is_looked_up(weights, work.n_columns)) {
      columns.tables = call.shared;
    } else if (is_prepared) {
      find_packed(call, first, columns);
    }
    const int64_t first_row = first_block * kItemRows;
    const int64_t last_row = min64(w.ne[1], first_row + blocks * kItemRows);
    const bool finishes = multiply_finishes(weights);
    if (finishes) columns.finish = finish_of(call, function);
    multiply(weights, first_row, last_row, columns, arena.rest());
    if (call.src[2] != nullptr && !finishes) {
      add_bias(*call.src[2], first_row, last_row, out, n);
    }
    if (function.is_known() && !columns.finish.limits && n > 0) {
      function.apply(out, first_row, last_row, n);
    }
    item += blocks;
  }
}

// For any number of columns up to this one: sizes may be smaller in a run.
size_t scratch(const Call& call) {
  const Tensor& x = *call.src[1];
  Arena arena(nullptr);
  arena.take<const char*>(n_rows(x));
  arena.take<float*>(n_rows(x));
  return arena.used() + multiply_scratch(call.src[0]->type,
                                         {nullptr, nullptr, n_rows(x), x.type, x.nb[0]}, x.ne[0],
                                         call.src[0]->layout);
}

const char* check(const Call& call) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& dst = call.dst;
  if (const char* why = check_product(w, x, dst); why != nullptr) return why;
  for (int d = 2; d < 4; ++d) {
    if (w.ne[d] == 0 ? x.ne[d] != 0 : x.ne[d] % w.ne[d] != 0) {
      return "the batches of the first source do not repeat to those of the second";
    }
  }
  if (dst.ne[0] != w.ne[1] || dst.ne[1] != x.ne[1] || dst.ne[2] != x.ne[2] ||
      dst.ne[3] != x.ne[3]) {
    return "the result has not the shape of the product";
  }
  const Tensor* bias = call.src[2];
  if (bias != nullptr && (!is_plain(*bias) || bias->ne[0] != dst.ne[0] || n_rows(*bias) != 1)) {
    return "the bias must be a row of f32, as long as those of the result";
  }
  if (call.n_params > 0 && !ResultFunction(call).is_known()) {
    return "unknown function of the result";
  }
  return nullptr;
}

}  // namespace

void register_matmul(KernelTable& table) {
  table[Op::kMulMat] = {.check = check,
                        .items = items,
                        .run = run,
                        .grain = grain,
                        .scratch = scratch,
                        .prepare_units = prepare_units,
                        .prepare = prepare,
                        .shared = shared,
                        .takes_interleaved = true};
}

}  // namespace weft::WEFT_TARGET
