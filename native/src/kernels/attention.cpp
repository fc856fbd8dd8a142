// FLASH_ATTN_EXT: softmax(scale * q k^T + slope * mask) v without storing the scores.
//
// A tile of query rows that share a key and a value head walks over blocks of cells and keeps, per
// row, the maximum, the sum and the weighted values so far (the online softmax of FlashAttention,
// arXiv 2205.14135). Cells that no row of the tile sees are skipped before their keys are read.
#include "kernels/attention.h"

#include "kernels/alibi.h"
#include "kernels/reductions.h"

namespace weft::WEFT_TARGET {

void register_attention(KernelTable& table);

namespace {

// Slots of the parameter record (graph/params.py).
enum Slot { kScale, kMaxBias, kSoftcap, kSlots };

constexpr int64_t kCells = 64;    // in a block
constexpr int64_t kMaxRows = 32;  // in a tile
// Tiles up to this many rows convert keys and values on the fly, bigger ones once per block.
constexpr int64_t kFewRows = 4;

int64_t pad(int64_t n) { return (n + 15) / 16 * 16; }

int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// How the work is cut. Rows of a group: token by token, the heads of a token side by side.
struct Plan {
  int64_t group;   // heads that share a key head and a value head
  int64_t groups;  // of heads
  int64_t rows;    // of a group
  int64_t tile;    // rows of a tile
  int64_t tiles;   // of a group
};

Plan make_plan(const Call& call) {
  const Tensor& q = *call.src[0];
  Plan p;
  p.group = gcd(q.ne[2] / call.src[1]->ne[2], q.ne[2] / call.src[2]->ne[2]);
  p.groups = q.ne[2] / p.group;
  p.rows = p.group * q.ne[1];
  // as large as leaves a tile for every thread
  const int64_t share = p.rows * p.groups * q.ne[3] / max64(1, call.n_threads);
  p.tile = max64(1, min64(share, min64(kMaxRows, p.rows)));
  p.tiles = (p.rows + p.tile - 1) / p.tile;
  return p;
}

// A tile's state and buffers, in scratch. Rows are padded with zeros to whole vectors.
struct Tile {
  float* q;        // [rows][pad(dk)], times the scale
  float* sum;      // [rows][pad(dv)], values weighted so far
  float* weights;  // [rows][kCells]: scores, then their exponentials
  float* mask;     // [rows][kCells]
  float* keys;     // [kCells][pad(dk)]
  float* values;   // [kCells][pad(dv)]
  float* top;      // [rows]
  float* total;    // [rows]
  int64_t* cells;  // [kCells] visible cells of the block, in order
  int64_t* order;  // [kCells] 0, 1, 2, ...
};

size_t lay_out(const Call& call, int64_t rows, char* scratch, Tile* t) {
  const int64_t dk = pad(call.src[0]->ne[0]);
  const int64_t dv = pad(call.src[2]->ne[0]);
  const int64_t sizes[] = {rows * dk,   rows * dv,   rows * kCells, rows * kCells,
                           kCells * dk, kCells * dv, pad(rows),     pad(rows)};
  float* parts[8] = {};
  auto* p = reinterpret_cast<float*>(scratch);
  int64_t used = 0;
  for (int i = 0; i < 8; ++i) {
    if (t != nullptr) parts[i] = p + used;
    used += sizes[i];
  }
  const size_t bytes = static_cast<size_t>(used) * sizeof(float);
  if (t != nullptr) {
    auto* cells = reinterpret_cast<int64_t*>(scratch + bytes);
    *t = {parts[0], parts[1], parts[2], parts[3], parts[4],
          parts[5], parts[6], parts[7], cells,    cells + kCells};
  }
  return bytes + 2 * static_cast<size_t>(kCells) * sizeof(int64_t);
}

size_t scratch_bytes(const Call& call) {
  const Tensor& q = *call.src[0];
  return lay_out(call, min64(kMaxRows, q.ne[1] * q.ne[2]), nullptr, nullptr);
}

// Where rows of keys or values are read: in the cache, or converted in scratch.
struct Rows {
  const char* data;
  int64_t stride;
  DType type;
  const int64_t* index;  // of the row of each visible cell
};

// Rows `cells` of `t`, converted to floats in `buffer` unless they can be read as they are.
Rows read_rows(const Tensor& t, const char* data, const Tile& tile, int64_t n, int64_t n_rows,
               float* buffer) {
  const int64_t width = pad(t.ne[0]);
  const bool whole =
      t.ne[0] % kLanes == 0 && !is_quantized(t.type) && t.nb[0] == element_size(t.type);
  if (whole && (t.type == DType::kF32 || n_rows <= kFewRows)) {
    return {data, t.nb[1], t.type, tile.cells};
  }
  for (int64_t i = 0; i < n; ++i) {
    const char* row = data + tile.cells[i] * t.nb[1];
    float* out = buffer + i * width;
    if (is_quantized(t.type)) {
      table().type(t.type).to_float(row, out, t.ne[0]);
    } else {
      load_floats(row, t.type, t.nb[0], t.ne[0], out);
    }
    for (int64_t d = t.ne[0]; d < width; ++d) out[d] = 0;
  }
  return {reinterpret_cast<const char*>(buffer), width * 4, DType::kF32, tile.order};
}

// One tile of one group: what all its rows share.
struct Job {
  const Call& call;
  Plan plan;
  int64_t group;  // of heads
  int64_t batch;
  int64_t first;   // row of the group
  int64_t n_rows;  // of this tile

  int64_t head(int64_t row) const { return group * plan.group + (first + row) % plan.group; }
  int64_t token(int64_t row) const { return (first + row) / plan.group; }
};

void load_queries(const Job& job, const Tile& t) {
  const Tensor& q = *job.call.src[0];
  const int64_t width = pad(q.ne[0]);
  const float cap = job.call.f(kSoftcap);
  const float scale = cap != 0.0f ? job.call.f(kScale) / cap : job.call.f(kScale);
  for (int64_t r = 0; r < job.n_rows; ++r) {
    float* out = t.q + r * width;
    load_floats(row_data(q, {job.token(r), job.head(r), job.batch}), q.type, q.nb[0], q.ne[0], out);
    multiply(out, scale, out, q.ne[0]);
    for (int64_t d = q.ne[0]; d < width; ++d) out[d] = 0;
    t.top[r] = -__builtin_inff();
    t.total[r] = 0;
  }
  const int64_t sums = job.n_rows * pad(job.call.src[2]->ne[0]);
  for (int64_t i = 0; i < sums; ++i) t.sum[i] = 0;
  for (int64_t i = 0; i < kCells; ++i) t.order[i] = i;
}

// Reads the mask of `n` cells from `first` on and lists the cells that some row sees. The mask of
// those cells ends up packed, in their order.
int64_t find_visible(const Job& job, const Tile& t, int64_t first, int64_t n) {
  const Tensor* mask = job.call.src[3];
  if (mask == nullptr) {
    for (int64_t i = 0; i < n; ++i) t.cells[i] = first + i;
    return n;
  }
  for (int64_t r = 0; r < job.n_rows; ++r) {
    float* out = t.mask + r * kCells;
    if (r > 0 && mask->ne[2] == 1 && job.token(r) == job.token(r - 1)) {
      std::memcpy(out, out - kCells, static_cast<size_t>(n) * sizeof(float));
      continue;
    }
    const char* p =
        row_data(*mask, {job.token(r), job.head(r) % mask->ne[2], job.batch % mask->ne[3]});
    load_floats(p + first * mask->nb[0], mask->type, mask->nb[0], n, out);
  }
  float seen[kCells];
  for (int64_t i = 0; i < kCells; ++i) seen[i] = -__builtin_inff();
  for (int64_t r = 0; r < job.n_rows; ++r) {
    map(seen, t.mask + r * kCells, seen, n, [](vf a, vf b) { return vmax(a, b); });
  }
  int64_t visible = 0;
  for (int64_t i = 0; i < n; ++i) {
    t.cells[visible] = first + i;
    visible += seen[i] != -__builtin_inff();
  }
  if (visible < n) {
    for (int64_t r = 0; r < job.n_rows; ++r) {
      float* m = t.mask + r * kCells;
      for (int64_t i = 0; i < visible; ++i) m[i] = m[t.cells[i] - first];
    }
  }
  return visible;
}

// Turns the scores of a row into weights and brings its running maximum and sum up to date.
void weigh(const Job& job, const Tile& t, int64_t row, int64_t n) {
  float* w = t.weights + row * kCells;
  const float cap = job.call.f(kSoftcap);
  if (cap != 0.0f) {
    map(w, w, n, [cap](vf x) { return tanh(x) * cap; });
  }
  if (job.call.src[3] != nullptr) {
    const float bias = job.call.f(kMaxBias);
    const vf slope = splat(alibi_slope(job.head(row), job.call.src[0]->ne[2], bias));
    // a hidden cell may hold anything, NaN too
    map(w, t.mask + row * kCells, w, n,
        [slope](vf x, vf m) { return m == -__builtin_inff() ? m : x + slope * m; });
  }
  const float top = max_of(w, n, t.top[row]);
  if (top == -__builtin_inff()) {
    for (int64_t i = 0; i < n; ++i) w[i] = 0;
    return;
  }
  const vf high = splat(top);
  map(w, w, n, [high](vf x) { return exp(x - high); });
  if (top > t.top[row]) {
    const float fade = exp(splat(t.top[row] - top))[0];
    const int64_t width = pad(job.call.src[2]->ne[0]);
    multiply(t.sum + row * width, fade, t.sum + row * width, width);
    t.total[row] *= fade;
    t.top[row] = top;
  }
  t.total[row] += static_cast<float>(sum(w, n));
}

void finish(const Job& job, const Tile& t) {
  const Tensor& dst = job.call.dst;
  const Tensor* sinks = job.call.src[4];
  const int64_t width = pad(dst.ne[0]);
  for (int64_t r = 0; r < job.n_rows; ++r) {
    float total = t.total[r];
    float factor = 1;
    if (sinks != nullptr) {
      const float sink = load_element(sinks->data + job.head(r) * sinks->nb[0], sinks->type);
      const float top = sink > t.top[r] ? sink : t.top[r];
      factor = t.top[r] < top ? exp(splat(t.top[r] - top))[0] : 1.0f;
      total = total * factor + exp(splat(sink - top))[0];
    }
    char* out = row_data(dst, {job.head(r), job.token(r), job.batch});
    // nothing visible: zeros
    multiply(t.sum + r * width, total > 0 ? factor / total : 0.0f, reinterpret_cast<float*>(out),
             dst.ne[0]);
  }
}

void run_tile(const Job& job, const Tile& t) {
  const Tensor& q = *job.call.src[0];
  const Tensor& k = *job.call.src[1];
  const Tensor& v = *job.call.src[2];
  const int64_t head = job.group * job.plan.group;
  const char* keys =
      k.data + head / (q.ne[2] / k.ne[2]) * k.nb[2] + job.batch / (q.ne[3] / k.ne[3]) * k.nb[3];
  const char* values =
      v.data + head / (q.ne[2] / v.ne[2]) * v.nb[2] + job.batch / (q.ne[3] / v.ne[3]) * v.nb[3];
  const int64_t dk = (q.ne[0] + kLanes - 1) / kLanes * kLanes;
  const int64_t dv = (v.ne[0] + kLanes - 1) / kLanes * kLanes;
  load_queries(job, t);
  for (int64_t first = 0; first < k.ne[1]; first += kCells) {
    const int64_t n = find_visible(job, t, first, min64(kCells, k.ne[1] - first));
    if (n == 0) continue;
    // the products take four cells at a time
    for (int64_t i = n; i % 4 != 0; ++i) t.cells[i] = t.cells[n - 1];
    const Rows key = read_rows(k, keys, t, n, job.n_rows, t.keys);
    scores(key.type, {t.q, pad(q.ne[0]), job.n_rows}, {key.data, key.stride, key.index, n}, dk,
           t.weights, kCells);
    for (int64_t r = 0; r < job.n_rows; ++r) weigh(job, t, r, n);
    const Rows value = read_rows(v, values, t, n, job.n_rows, t.values);
    add_weighted(value.type, {t.weights, kCells, job.n_rows},
                 {value.data, value.stride, value.index, n}, dv, t.sum, pad(v.ne[0]));
  }
  finish(job, t);
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Plan plan = make_plan(call);
  Tile tile;
  lay_out(call, plan.tile, scratch, &tile);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t first = item % plan.tiles * plan.tile;
    const int64_t group = item / plan.tiles;
    run_tile({call, plan, group % plan.groups, group / plan.groups, first,
              min64(plan.tile, plan.rows - first)},
             tile);
  }
}

int64_t items(const Call& call) {
  if (n_elements(call.dst) == 0) return 0;
  const Plan plan = make_plan(call);
  return plan.tiles * plan.groups * call.src[0]->ne[3];
}

int64_t grain(const Call& call) {
  const Tensor& q = *call.src[0];
  const Tensor& k = *call.src[1];
  const int64_t all = q.ne[1] * q.ne[2] * q.ne[3] * k.ne[1] * (k.ne[0] + call.dst.ne[0]);
  // as many items as make this many products
  constexpr int64_t kEnough = 1 << 15;
  return max64(1, kEnough / max64(1, all / max64(1, items(call))));
}

const char* check_rows(const Tensor& t, const Tensor& q) {
  if (is_quantized(t.type) ? !can_decode(t.type) : !is_float(t.type)) {
    return "keys and values must be f32, f16, bf16 or a block type that can be decoded";
  }
  if (t.ne[2] < 1 || t.ne[3] < 1 || q.ne[2] % t.ne[2] != 0 || q.ne[3] % t.ne[3] != 0) {
    return "the heads or batches of the queries are no multiple of those of keys and values";
  }
  return nullptr;
}

const char* check(const Call& call) {
  const Tensor& q = *call.src[0];
  const Tensor& k = *call.src[1];
  const Tensor& v = *call.src[2];
  const Tensor* mask = call.src[3];
  const Tensor* sinks = call.src[4];
  if (call.n_params < kSlots) return "parameters are missing";
  if (!is_float(q.type)) return "queries must be f32, f16 or bf16";
  if (!is_plain(call.dst)) return "the result must be f32 with contiguous rows";
  if (q.ne[2] < 1 || q.ne[3] < 1) return "there must be a head and a batch";
  if (const char* why = check_rows(k, q)) return why;
  if (const char* why = check_rows(v, q)) return why;
  if (k.ne[0] != q.ne[0]) return "queries and keys differ in length";
  if (v.ne[1] != k.ne[1]) return "keys and values differ in number";
  if (call.dst.ne[0] != v.ne[0] || call.dst.ne[1] != q.ne[2] || call.dst.ne[2] != q.ne[1] ||
      call.dst.ne[3] != q.ne[3]) {
    return "the result does not have the shape value length, heads, tokens, batches";
  }
  if (mask != nullptr) {
    if (!is_float(mask->type)) return "the mask must be f32, f16 or bf16";
    if (mask->ne[0] < k.ne[1] || mask->ne[1] < q.ne[1] || mask->ne[2] < 1 || mask->ne[3] < 1) {
      return "the mask is smaller than the scores";
    }
  }
  if (sinks != nullptr && (!is_float(sinks->type) || sinks->ne[0] < q.ne[2])) {
    return "a floating-point sink per head is needed";
  }
  return nullptr;
}

}  // namespace

void register_attention(KernelTable& table) {
  table[Op::kFlashAttnExt] = {
      .check = check, .items = items, .run = run, .grain = grain, .scratch = scratch_bytes};
}

}  // namespace weft::WEFT_TARGET
