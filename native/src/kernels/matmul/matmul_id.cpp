// MUL_MAT_ID (experts, columns, ids): dst[token, slot] = expert ids[token, slot] times the column
// of that token and slot (or of the token, when src1 has one column a token).
//
// With few tokens an item is one column and some rows. With many, an item is some rows of every
// expert: the columns are grouped by expert, so that its weights are read once. An id that names no
// expert gives zeros, since kernels cannot fail at run time.
#include "kernels/matmul/product.h"

namespace weft::WEFT_TARGET {

void register_matmul_id(KernelTable& table);

namespace {

// Where the experts are not all in memory, the executor adds a source with the address of each;
// nullptr for those that this run of the step leaves out.
constexpr int kAddresses = 3;

int64_t n_chosen(const Call& call) { return call.src[2]->ne[0] * call.src[2]->ne[1]; }

int64_t row_blocks(const Call& call) { return (call.src[0]->ne[1] + kItemRows - 1) / kItemRows; }

// Grouping pays once experts are likely to be chosen several times.
bool is_grouped(const Call& call) { return n_chosen(call) > 2 * call.src[0]->ne[2]; }

int64_t items(const Call& call) {
  return row_blocks(call) * (is_grouped(call) ? 1 : n_chosen(call));
}

int64_t grain(const Call& call) {
  if (is_grouped(call)) return 1;
  return min64(row_blocks(call), max64(1, (1 << 15) / (kItemRows * max64(1, call.src[0]->ne[0]))));
}

// The expert of the chosen column `i`, or -1.
int64_t expert_of(const Call& call, int64_t i) {
  const Tensor& ids = *call.src[2];
  const int64_t token = i / ids.ne[0];
  int32_t id;
  std::memcpy(&id, ids.data + (i - token * ids.ne[0]) * ids.nb[0] + token * ids.nb[1], 4);
  return id >= 0 && id < call.src[0]->ne[2] ? id : -1;
}

const char* column_in(const Call& call, int64_t i) {
  const Tensor& x = *call.src[1];
  const int64_t n_used = call.src[2]->ne[0];
  const int64_t token = i / n_used;
  return row_data(x, {(i - token * n_used) % x.ne[1], token, 0});
}

float* column_out(const Call& call, int64_t i) {
  const int64_t n_used = call.src[2]->ne[0];
  const int64_t token = i / n_used;
  return reinterpret_cast<float*>(row_data(call.dst, {i - token * n_used, token, 0}));
}

// Rows begin..end of one expert for some columns; expert -1 gives zeros, and an expert that this
// run leaves out leaves its columns as they are.
void multiply_expert(const Call& call, int64_t expert, int64_t begin, int64_t end,
                     const Columns& columns, float scale, char* scratch) {
  const Tensor& w = *call.src[0];
  if (expert < 0) {
    for (int64_t c = 0; c < columns.n; ++c) {
      std::memset(columns.out[c] + begin, 0, static_cast<size_t>(end - begin) * 4);
    }
    return;
  }
  const char* data = w.data + expert * stored_matrix_stride(w);
  if (const Tensor* table = call.src[kAddresses]; table != nullptr) {
    data = reinterpret_cast<const char* const*>(table->data)[expert];
  }
  if (data == nullptr) return;  // another run of the step has it
  const Weights weights = {data, stored_row_stride(w), w.nb[0], w.type, w.ne[0], scale, w.layout};
  product_of(call).multiply(weights, begin, end, columns, scratch);
}

void run_single(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& x = *call.src[1];
  const float scale = tensor_scale(*call.src[0]);
  const int64_t blocks = row_blocks(call);
  for (int64_t item = begin; item < end;) {
    const int64_t chosen = item / blocks;
    const int64_t first = item - chosen * blocks;
    const int64_t n = min64(end - item, blocks - first);
    const char* in = column_in(call, chosen);
    float* out = column_out(call, chosen);
    multiply_expert(call, expert_of(call, chosen), first * kItemRows,
                    min64(call.dst.ne[0], (first + n) * kItemRows), {&in, &out, 1, x.type, x.nb[0]},
                    scale, scratch);
    item += n;
  }
}

struct Groups {
  const char** in;  // columns, expert by expert; those of no expert last
  float** out;
  int64_t* start;  // of each expert's columns, n_expert + 2 of them

  Groups(Arena& arena, int64_t n_columns, int64_t n_expert)
      : in(arena.take<const char*>(n_columns)),
        out(arena.take<float*>(n_columns)),
        start(arena.take<int64_t>(n_expert + 3)) {}
};

void run_grouped(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Tensor& x = *call.src[1];
  const int64_t n_expert = call.src[0]->ne[2];
  const int64_t n = n_chosen(call);
  const float scale = tensor_scale(*call.src[0]);
  Arena arena(scratch);
  const Groups groups(arena, n, n_expert);
  // counting sort; start[e + 2] counts, then start[e + 1] is the next place of expert e
  const auto slot = [&](int64_t i) {
    const int64_t expert = expert_of(call, i);
    return expert < 0 ? n_expert : expert;
  };
  for (int64_t e = 0; e < n_expert + 3; ++e) groups.start[e] = 0;
  for (int64_t i = 0; i < n; ++i) ++groups.start[slot(i) + 2];
  for (int64_t e = 2; e < n_expert + 3; ++e) groups.start[e] += groups.start[e - 1];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t at = groups.start[slot(i) + 1]++;
    groups.in[at] = column_in(call, i);
    groups.out[at] = column_out(call, i);
  }
  const int64_t last_row = min64(call.dst.ne[0], end * kItemRows);
  for (int64_t e = 0; e <= n_expert; ++e) {
    const int64_t first = groups.start[e];
    const Columns columns = {groups.in + first, groups.out + first, groups.start[e + 1] - first,
                             x.type, x.nb[0]};
    multiply_expert(call, e < n_expert ? e : -1, begin * kItemRows, last_row, columns, scale,
                    arena.rest());
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  (is_grouped(call) ? run_grouped : run_single)(call, begin, end, scratch);
}

size_t scratch(const Call& call) {
  const Tensor& x = *call.src[1];
  Arena arena(nullptr);
  const Groups groups(arena, n_chosen(call), call.src[0]->ne[2]);
  const Columns columns = {nullptr, nullptr, n_chosen(call), x.type, x.nb[0]};
  return arena.used() + product_of(call).scratch(columns, x.ne[0], call.src[0]->layout);
}

const char* check(const Call& call) {
  const Tensor& w = *call.src[0];
  const Tensor& x = *call.src[1];
  const Tensor& ids = *call.src[2];
  const Tensor& dst = call.dst;
  if (const char* why = check_product(w, x, dst); why != nullptr) return why;
  if (w.layout == Layout::kLookup) return "experts are not looked up";
  if (ids.type != DType::kI32) return "the expert ids must be i32";
  if (w.ne[3] != 1 || x.ne[3] != 1 || dst.ne[3] != 1 || ids.ne[2] != 1 || ids.ne[3] != 1) {
    return "experts have no batches";
  }
  if (x.ne[2] != ids.ne[1]) return "a row of ids for each token is needed";
  if (x.ne[1] == 0 || ids.ne[0] % x.ne[1] != 0) {
    return "a column for each expert of a token, or one that they share, is needed";
  }
  if (dst.ne[0] != w.ne[1] || dst.ne[1] != ids.ne[0] || dst.ne[2] != ids.ne[1]) {
    return "the result has not the shape of the product";
  }
  return nullptr;
}

}  // namespace

void register_matmul_id(KernelTable& table) {
  table[Op::kMulMatId] = {.check = check,
                          .items = items,
                          .run = run,
                          .grain = grain,
                          .scratch = scratch,
                          .takes_interleaved = true};
}

}  // namespace weft::WEFT_TARGET
