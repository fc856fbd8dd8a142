// FLASH_ATTN_EXT: softmax(scale * q k^T + slope * mask) v without storing the scores.
//
// A tile of query rows that share a key and a value head walks over blocks of cells and keeps, per
// row, the maximum, the sum and the weighted values so far (the online softmax of FlashAttention,
// arXiv 2205.14135). Cells that no row of the tile sees are skipped before their keys are read.
//
// With too few tiles for the threads, the cells of a tile are cut into parts. Whoever is the last
// to finish a part of a tile adds all of them up, in order, so that the result is always the same.
#include "kernels/attention.h"

#include "kernels/alibi.h"
#include "kernels/attention_mask.h"

namespace weft::WEFT_TARGET {

void register_attention(KernelTable& table);

namespace {

// Slots of the parameter record (graph/params.py).
enum Slot { kScale, kMaxBias, kSoftcap, kSlots };

void start(const Job& job, const Tile& t) {
  for (int64_t r = 0; r < job.n_rows; ++r) {
    t.top[r] = kHidden;
    t.total[r] = 0;
  }
  const int64_t sums = kept_rows(job.n_rows) * pad(job.call.src[2]->ne[0]);
  for (int64_t i = 0; i < sums; ++i) t.sum[i] = 0;
}

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
  }
  const int64_t rows = kept_rows(job.n_rows);
  for (int64_t i = job.n_rows * width; i < rows * width; ++i) t.q[i] = 0;
  for (int64_t r = job.n_rows; r < rows; ++r) t.fade[r] = 0;
  for (int64_t i = 0; i < kCells; ++i) t.order[i] = i;
}

// Turns the scores of a row into weights and brings its running maximum and sum up to date.
void weigh(const Job& job, const Tile& t, int64_t row, const Seen& seen) {
  float* w = t.weights + row * kCells;
  const int64_t n = (seen.n + kLanes - 1) / kLanes * kLanes;
  if (const float cap = job.call.f(kSoftcap); cap != 0.0f) {
    map(w, w, n, [cap](vf x) { return tanh(x) * cap; });
  }
  vf high = splat(t.top[row]);
  if (seen.masked) {
    const bool given = job.call.src[3] != nullptr;
    const float* mask = t.mask + (given ? job.mask_row(row) * kCells : 0);
    const float bias = job.call.f(kMaxBias);
    const vf slope = splat(alibi_slope(job.head(row), job.call.src[0]->ne[2], bias));
    for (int64_t i = 0; i < n; i += kLanes) {
      const vf m = load(mask + i);
      // a hidden cell may hold anything, NaN too
      const vf x = m == kHidden ? m : fma(slope, m, load(w + i));
      store(w + i, x);
      high = vmax(x, high);
    }
  } else {
    for (int64_t i = 0; i < n; i += kLanes) high = vmax(load(w + i), high);
  }
  const float top = hmax(high);
  t.fade[row] = 1;
  if (top == kHidden) {
    for (int64_t i = 0; i < n; ++i) w[i] = 0;
    return;
  }
  if (top > t.top[row]) {
    t.fade[row] = exp(splat(t.top[row] - top))[0];
    t.top[row] = top;
  }
  const vf shift = splat(top);
  vf total{};
  for (int64_t i = 0; i < n; i += kLanes) {
    const vf x = exp(load(w + i) - shift);
    store(w + i, x);
    total += x;
  }
  t.total[row] = t.total[row] * t.fade[row] + hsum(total);
}

// Where the rows of a cache are, for one head.
struct Cache {
  const Tensor& t;
  const char* data;
  int64_t width;  // of a row in scratch

  Cache(const Tensor& cache, const Job& job) : t(cache), width(pad(cache.ne[0])) {
    const Tensor& q = *job.call.src[0];
    const int64_t head = job.group * job.plan.group;
    data =
        t.data + head / (q.ne[2] / t.ne[2]) * t.nb[2] + job.batch / (q.ne[3] / t.ne[3]) * t.nb[3];
  }

  // A row as floats, with zeros behind them.
  void read(int64_t cell, float* out) const {
    const char* row = data + cell * t.nb[1];
    if (is_quantized(t.type)) {
      table().type(t.type).to_float(row, out, t.ne[0]);
    } else {
      load_floats(row, t.type, t.nb[0], t.ne[0], out);
    }
    for (int64_t d = t.ne[0]; d < width; ++d) out[d] = 0;
  }

  // The cells of a block as few rows read them: in place, or as floats in `buffer`.
  Picked pick(const Tile& tile, int64_t n, int64_t n_rows, float* buffer, DType& type) const {
    type = t.type;
    const DTypeInfo& info = dtype_info(t.type);
    const int64_t bytes = t.ne[0] / info.block * info.block_size;
    const Picked stored = {data, t.nb[1], tile.cells, n, bytes, kCells};
    const bool whole = t.ne[0] % kLanes == 0 && t.nb[0] == info.block_size;
    if (whole && reads_in_place(type, n_rows)) return stored;
    for (int64_t i = 0; i < n; ++i) {
      stored.prefetch(stored.row(i));
      read(tile.cells[i], buffer + i * width);
    }
    type = DType::kF32;
    return {reinterpret_cast<const char*>(buffer), width * 4, tile.order, n, width * 4, 0};
  }
};

void attend_few(const Job& job, const Tile& t, const Cache& key, const Cache& value, Seen seen) {
  const int64_t lanes = kLanes;
  const int64_t dk = (key.t.ne[0] + lanes - 1) / lanes * lanes;
  const int64_t dv = (value.t.ne[0] + lanes - 1) / lanes * lanes;
  // the products take up to kLanes cells at a time
  for (int64_t i = seen.n; i % kLanes != 0; ++i) t.cells[i] = t.cells[seen.n - 1];
  const int64_t rows = seen.end - seen.first;
  DType type;
  const Picked keys = key.pick(t, seen.n, rows, t.keys, type);
  scores(type, {t.q + seen.first * key.width, key.width, rows}, keys, dk,
         t.weights + seen.first * kCells, kCells);
  for (int64_t r = seen.first; r < seen.end; ++r) weigh(job, t, r, seen);
  const Picked values = value.pick(t, seen.n, rows, t.values, type);
  add_weighted(type, {t.weights + seen.first * kCells, kCells, rows}, values, dv,
               t.fade + seen.first, t.sum + seen.first * value.width, value.width);
}

void attend_many(const Job& job, const Tile& t, const Cache& key, const Cache& value, Seen seen) {
  const int64_t first = seen.first / kTileRows * kTileRows;
  // whole strips of rows: `weigh` must see every row that the products fill
  const int64_t rows = (seen.end + kTileRows - 1) / kTileRows * kTileRows - first;
  for (int64_t i = 0; i < seen.n; i += 8) {
    for (int64_t j = 0; j < 8; ++j) {
      key.read(t.cells[min64(i + j, seen.n - 1)], t.turn + j * key.width);
    }
    turn_eight(t.turn, key.width, key.width, t.keys + i, kCells);
  }
  const int64_t lanes = (seen.n + kLanes - 1) / kLanes * kLanes;
  multiply_block<false>(t.q + first * key.width, key.width, rows, t.keys, kCells, key.t.ne[0],
                        lanes, t.fade + first, t.weights + first * kCells, kCells);
  for (int64_t r = first; r < min64(first + rows, job.n_rows); ++r) weigh(job, t, r, seen);
  for (int64_t i = 0; i < seen.n; ++i) value.read(t.cells[i], t.values + i * value.width);
  multiply_block<true>(t.weights + first * kCells, kCells, rows, t.values, value.width, seen.n,
                       (value.t.ne[0] + kLanes - 1) / kLanes * kLanes, t.fade + first,
                       t.sum + first * value.width, value.width);
}

// One unit: a part of the cells of a tile, for the groups of a bundle.
struct Unit {
  const Call& call;
  const Plan& plan;
  int64_t tile;  // among all tiles
  int64_t part;

  Unit(const Call& c, const Plan& p, int64_t item)
      : call(c), plan(p), tile(item % p.all_tiles), part(item / p.all_tiles) {}

  int64_t bundle() const { return tile / plan.tiles % plan.bundles; }
  int64_t n_groups() const { return min64(plan.bundle, plan.groups - bundle() * plan.bundle); }
  Job job(int64_t group) const {
    const int64_t first = tile % plan.tiles * plan.tile;
    return {call,
            plan,
            bundle() * plan.bundle + group,
            tile / plan.tiles / plan.bundles,
            first,
            min64(plan.tile, plan.rows - first)};
  }
  int64_t kept() const { return kept_rows(plan.tile); }
  // Where a group's results of a part are.
  float* results(int64_t of_part, int64_t group) const {
    const int64_t size = part_floats(call, kept());
    const int64_t unit = of_part * plan.all_tiles + tile;
    return reinterpret_cast<float*>(call.shared) + (unit * plan.bundle + group) * size;
  }
};

void attend(const Unit& unit, const Tile& tile) {
  const int64_t begin = unit.part * unit.plan.part_cells;
  const int64_t end = min64(begin + unit.plan.part_cells, unit.call.src[1]->ne[1]);
  const int64_t n_groups = unit.n_groups();
  for (int64_t g = 0; g < n_groups; ++g) {
    const Tile t = of_group(unit.call, tile, g, unit.kept());
    start(unit.job(g), t);
    load_queries(unit.job(g), t);
  }
  for (int64_t first = begin; first < end; first += kCells) {
    const int64_t n = min64(kCells, end - first);
    for (int64_t g = 0; g < n_groups; ++g) {
      const Job job = unit.job(g);
      const Tile t = of_group(unit.call, tile, g, unit.kept());
      const Cache key(*unit.call.src[1], job);
      const Cache value(*unit.call.src[2], job);
      const Seen seen = find_visible(job, t, first, n);
      if (seen.n == 0) continue;
      if (unit.plan.few()) {
        attend_few(job, t, key, value, seen);
      } else {
        attend_many(job, t, key, value, seen);
      }
    }
  }
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

void put_results(const Job& job, const Tile& t, float* p) {
  const int64_t sums = job.n_rows * pad(job.call.dst.ne[0]);
  std::memcpy(p, t.sum, static_cast<size_t>(sums) * sizeof(float));
  std::memcpy(p + sums, t.top, static_cast<size_t>(job.n_rows) * sizeof(float));
  std::memcpy(p + sums + job.n_rows, t.total, static_cast<size_t>(job.n_rows) * sizeof(float));
}

// Adds the sums of a part to those of the parts before it.
void add_results(const Job& job, const float* sums, const Tile& t) {
  const int64_t width = pad(job.call.dst.ne[0]);
  const float* tops = sums + job.n_rows * width;
  const float* totals = tops + job.n_rows;
  for (int64_t r = 0; r < job.n_rows; ++r) {
    if (tops[r] == kHidden) continue;
    const float top = tops[r] > t.top[r] ? tops[r] : t.top[r];
    const vf before = splat(exp(splat(t.top[r] - top))[0]);
    const vf now = splat(exp(splat(tops[r] - top))[0]);
    map(t.sum + r * width, sums + r * width, t.sum + r * width, width,
        [before, now](vf a, vf b) { return fma(b, now, a * before); });
    t.total[r] = t.total[r] * before[0] + totals[r] * now[0];
    t.top[r] = top;
  }
}

// Leaves a unit's results for the last unit of its tile; true if this is the last.
bool hand_over(const Unit& unit, const Tile& tile) {
  for (int64_t g = 0; g < unit.n_groups(); ++g) {
    const Tile t = of_group(unit.call, tile, g, unit.kept());
    put_results(unit.job(g), t, unit.results(unit.part, g));
  }
  // the last one sees what the others wrote before they counted
  const int32_t done = __atomic_add_fetch(unit.call.tickets + unit.tile, 1, __ATOMIC_ACQ_REL);
  return done == unit.plan.parts;
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Plan plan = make_plan(call);
  Tile tile;
  const int64_t rows = kept_rows(plan.tile);
  lay_out(call, rows, rows * plan.bundle, scratch, &tile);
  for (int64_t item = begin; item < end; ++item) {
    const Unit unit(call, plan, item);
    attend(unit, tile);
    if (plan.parts > 1 && !hand_over(unit, tile)) continue;
    for (int64_t g = 0; g < unit.n_groups(); ++g) {
      const Job job = unit.job(g);
      const Tile t = of_group(call, tile, g, rows);
      if (plan.parts > 1) {
        start(job, t);
        for (int64_t p = 0; p < plan.parts; ++p) add_results(job, unit.results(p, g), t);
      }
      finish(job, t);
    }
  }
}

int64_t items(const Call& call) {
  if (n_elements(call.dst) == 0) return 0;
  const Plan plan = make_plan(call);
  return plan.all_tiles * plan.parts;
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
  table[Op::kFlashAttnExt] = {.check = check,
                              .items = items,
                              .run = run,
                              .grain = grain,
                              .scratch = attention_scratch,
                              .shared = attention_shared,
                              .tickets = attention_tickets};
}

}  // namespace weft::WEFT_TARGET
