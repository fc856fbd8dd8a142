// MUL_MAT: dst[i3, i2, n, m] = src0[.., m, :] . src1[i3, i2, n, :]; consecutive batches of src1
// share one of src0 (grouped-query attention). src2, if there is one, is a row that is added to
// each row of the result; a parameter record names a function that is applied then.
#include "kernels/elements.h"
#include "kernels/matmul/matmul_activation.h"
#include "kernels/matmul/matmul_lookup.h"
#include "kernels/matmul/product.h"

namespace weft::WEFT_TARGET {

void register_matmul(KernelTable& table);

namespace {

// The weights without their data, which does not exist while a step is planned.
Weights described(const Call& call) {
  const Tensor& w = *call.src[0];
  return {nullptr, 0, 0, w.type, w.ne[0], 1.0f, w.layout};
}

// `n` columns without their data.
Columns described(const Call& call, int64_t n) {
  const Tensor& x = *call.src[1];
  return {nullptr, nullptr, n, x.type, x.nb[0]};
}

// The form that `n` columns are brought to for all rows; nullptr: each chunk reads them anew. With
// several matrices each has its own.
const SharedForm* form_of(const Call& call, int64_t n) {
  const Tensor& w = *call.src[0];
  if (w.ne[2] * w.ne[3] != 1 || w.ne[0] == 0) return nullptr;
  const SharedForm* form = product_of(call).way(w.type, n).form;
  return form != nullptr && form->pays(described(call), described(call, n)) ? form : nullptr;
}

// Columns that panels of floats multiply at a time: what they give stays in the second-level cache
// until functions were applied to it. Tiles of every target divide their number.
constexpr int64_t kPanelRun = 240;
constexpr int64_t kRunStep = 24;

// Whether the product finishes its results.
bool finishes(const Call& call) { return product_of(call).few.finishes && call.src[0]->ne[0] > 0; }

// All columns of src1 that one matrix of src0 multiplies are taken together. An item is a matrix, a
// run of columns (when there are too few rows to share out, or results would leave the cache) and
// kItemRows rows.
struct Work {
  int64_t per2, per3;  // matrices of src1 for one of src0, along dimensions 2 and 3
  int64_t n_columns;
  int64_t column_run, column_runs;
  int64_t row_blocks;
  int64_t matrices;
  const SharedForm* form;

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
    if (n_columns > kPanelRun && finishes(call)) {
      const int64_t runs = (n_columns + kPanelRun - 1) / kPanelRun;
      const int64_t share = (n_columns + runs - 1) / runs;
      column_run = (share + kRunStep - 1) / kRunStep * kRunStep;
    }
    if (wanted > 1) column_run = min64(column_run, max64(48, n_columns / wanted / 48 * 48));
    column_runs = (n_columns + column_run - 1) / column_run;
    form = form_of(call, n_columns);
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
    const char* from = row_data(x, {start, i2, i3});
    char* to = row_data(call.dst, {start, i2, i3});
    for (int64_t i1 = start; i1 < last; ++i1, ++c, from += x.nb[1], to += call.dst.nb[1]) {
      in[c] = from;
      out[c] = reinterpret_cast<float*>(to);
    }
  }
}

// ---- columns that are brought to a form once for all rows

int64_t prepare_units(const Call& call) {
  const Work work(call);
  if (work.form == nullptr) return 0;
  if (work.form->by_depth) return (call.src[0]->ne[0] / 32 + kPartChunks - 1) / kPartChunks;
  return (work.n_columns + kPackUnit - 1) / kPackUnit;
}

void prepare(const Call& call, int64_t begin, int64_t end) {
  const Work work(call);
  const Weights weights = matrix(call, 0, 0);
  const char* in[kPackUnit];
  float* out[kPackUnit];
  const auto make = [&](int64_t first, int64_t n) {
    find_columns(call, work, 0, 0, first, n, in, out);
    Columns columns = described(call, n);
    columns.x = in;
    columns.out = out;
    work.form->find(call.shared, first, work.n_columns, weights.k, columns);
    work.form->make(weights, columns, begin, end);
  };
  if (work.form->by_depth) return make(0, work.n_columns);
  for (int64_t unit = begin; unit < end; ++unit) {
    make(unit * kPackUnit, min64(kPackUnit, work.n_columns - unit * kPackUnit));
  }
}

// For any number of columns up to this one: with fewer it may be another form.
size_t shared(const Call& call) {
  const Tensor& w = *call.src[0];
  const int64_t n = Work(call).n_columns;
  const int64_t few = min64(n, product_of(call).few_columns(w.type));
  size_t most = 0;
  for (const int64_t columns : {min64(n, kFewLookups), few, n}) {
    const SharedForm* form = form_of(call, columns);
    const size_t bytes = form == nullptr ? 0 : form->bytes(columns, w.ne[0]);
    most = bytes > most ? bytes : most;
  }
  return most;
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
  // panels of floats are read where they are, and so are most columns; two for a single column
  if (finishes(call)) return max64(work.n_columns == 1 ? 2 : 1, least);
  const bool once = work.form != nullptr && !work.form->by_depth;
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
  const Work work(call);
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
    Columns columns = described(call, n);
    columns.x = in;
    columns.out = out;
    if (work.form != nullptr) {
      work.form->find(call.shared, first, work.n_columns, weights.k, columns);
    }
    const int64_t first_row = first_block * kItemRows;
    const int64_t last_row = min64(w.ne[1], first_row + blocks * kItemRows);
    if (finishes(call)) columns.finish = finish_of(call, function);
    product_of(call).multiply(weights, first_row, last_row, columns, arena.rest());
    if (call.src[2] != nullptr && !finishes(call)) {
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
  const Columns columns = described(call, n_rows(x));
  return arena.used() + product_of(call).scratch(columns, x.ne[0], call.src[0]->layout);
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
