// FLASH_ATTN_EXT: softmax(scale * q k^T + slope * mask) v without storing the scores.
//
// A tile of query rows that share a key and a value head walks over blocks of cells. Per row it
// keeps the maximum, the sum and the weighted values so far (the online softmax of FlashAttention,
// arXiv 2205.14135). Only the rows that see some cell of a block compute it, and cells that no row
// of the tile sees are skipped.
//
// The result of a row depends only on the cells that it sees, their order, and their indices modulo
// kStrip. It does not depend on hidden cells, other rows, the size of tiles or the number of
// threads. So a text is the same to the last bit whatever else is in the cache and the batch.
//
// Where there are too few tiles for the threads, several threads share the chunks of a tile. The
// thread that finishes the last part of a tile adds up all its chunks, in order.
#include "kernels/attention/attention_block.h"

namespace weft::WEFT_TARGET {

void register_attention(KernelTable& table);

namespace {

void start(const Job& job, const Tile& t) {
  const int64_t sums = job.n_rows * pad(job.call.src[2]->ne[0]);
  for (int64_t i = 0; i < sums; ++i) t.sum[i] = t.past_sum[i] = 0;
  for (int64_t i = 0; i < job.n_rows * kStrip; ++i) t.total[i] = 0;
  for (int64_t r = 0; r < job.n_rows; ++r) {
    t.top[r] = t.past_top[r] = kHidden;
    t.past_total[r] = 0;
  }
}

void load_queries(const Job& job, const Tile& t) {
  const Tensor& q = *job.call.src[0];
  const int64_t width = pad(q.ne[0]);
  const float cap = job.call.f(FlashAttnSlot::kLogitSoftcap);
  const float scale =
      cap != 0.0f ? job.call.f(FlashAttnSlot::kScale) / cap : job.call.f(FlashAttnSlot::kScale);
  for (int64_t r = 0; r < job.n_rows; ++r) {
    float* out = t.q + r * width;
    load_short(row_data(q, {job.token(r), job.head(r), job.batch}), q.type, q.nb[0], q.ne[0], out);
    multiply(out, scale, out, q.ne[0]);
    for (int64_t d = q.ne[0]; d < width; ++d) out[d] = 0;
  }
}

// A unit of work: one part of the chunks of a tile, for the groups of a bundle.
//
// Where the rows of a tile see different cells, as those of many sequences do, no row shares its
// keys with another, but all groups share the mask. Then each of the units that have the same rows
// of different groups takes a share of these rows for all groups, so that the mask is inspected
// once and the keys of all groups, which are neighbours in the cache, are read together.
struct Unit {
  const Call& call;
  const Plan& plan;
  int64_t tile;  // its number among all tiles
  int64_t part;
  bool apart;

  Unit(const Call& c, const Plan& p, int64_t item)
      : call(c), plan(p), tile(item % p.all_tiles), part(item / p.all_tiles), apart(false) {
    apart = plan.bundle == 1 && plan.groups > 1 && !many_masks(call) && sees_apart(job(0));
  }

  int64_t bundle() const { return tile / plan.tiles % plan.bundles; }
  int64_t n_groups() const {
    return apart ? plan.groups : min64(plan.bundle, plan.groups - bundle() * plan.bundle);
  }
  // The rows that it has of each group, at most.
  int64_t rows() const { return apart ? (plan.tile + plan.groups - 1) / plan.groups : plan.tile; }
  Job job(int64_t group) const {
    const int64_t share = apart ? bundle() : 0;
    const int64_t tile_first = tile % plan.tiles * plan.tile;
    const int64_t end = min64(tile_first + plan.tile, plan.rows);
    const int64_t first = min64(tile_first + share * rows(), end);
    const int64_t first_group = apart ? 0 : bundle() * plan.bundle;
    return {call,
            plan,
            first_group + group,
            tile / plan.tiles / plan.bundles,
            first,
            min64(rows(), end - first),
            first_group,
            n_groups()};
  }
};

void attend(const Unit& unit, const Tile& tile) {
  const int64_t cells = unit.call.src[1]->ne[1];
  const int64_t n_groups = unit.n_groups();
  for (int64_t g = 0; g < n_groups; ++g) {
    const Job job = unit.job(g);
    const Tile t = of_group(unit.call, tile, g, unit.rows());
    start(job, t);
    load_queries(job, t);
  }
  // The groups of a bundle share their mask.
  const Job any = unit.job(0);
  start_sights(any, tile);
  const Share share(any, tile, unit.part);
  for (int64_t first = 0; first < cells; first += kCells) {
    Block block = inspect_block(any, tile, first, min64(kCells, cells - first));
    if (block.seen == 0) continue;
    if (share.has(tile, block)) {
      open_block(any, tile, &block);
      for (int64_t g = 0; g < n_groups; ++g) {
        attend_block(share, unit.job(g), of_group(unit.call, tile, g, unit.rows()), block);
      }
    }
    leave_block(tile, block);
  }
  for (int64_t g = 0; g < n_groups; ++g) {
    const Job job = unit.job(g);
    const Tile t = of_group(unit.call, tile, g, unit.rows());
    for (int64_t r = 0; r < job.n_rows; ++r) {
      const Sight& s = tile.sees(r);
      if (s.count != 0 && share.has(s.chunk)) end_chunk(job, t, r, s.chunk);
    }
  }
}

// Writes the result of the rows, from the sums of all their chunks.
void finish(const Job& job, const Tile& t) {
  const Tensor& dst = job.call.dst;
  const Tensor* sinks = job.call.src[4];
  const int64_t width = pad(dst.ne[0]);
  for (int64_t r = 0; r < job.n_rows; ++r) {
    float total = t.past_total[r];
    float factor = 1;
    if (sinks != nullptr) {
      const float sink = load_element(sinks->data + job.head(r) * sinks->nb[0], sinks->type);
      const Weight weight = weight_of(splat(sink));
      const float top = weight.n[0] > t.past_top[r] ? weight.n[0] : t.past_top[r];
      factor = power_of_two(t.past_top[r] - top);
      total = total * factor + weight.p[0] * power_of_two(weight.n[0] - top);
    }
    char* out = row_data(dst, {job.head(r), job.token(r), job.batch});
    // A row that sees nothing becomes zeros.
    multiply(t.past_sum + r * width, total > 0 ? factor / total : 0.0f,
             reinterpret_cast<float*>(out), dst.ne[0]);
  }
}

// Adds up the chunks that all units of a tile have left in shared memory. t.sight is behind the
// last block.
void collect(const Job& job, const Tile& t) {
  start(job, t);
  const int64_t width = pad(job.call.dst.ne[0]);
  for (int64_t r = 0; r < job.n_rows; ++r) {
    const Sight& sight = t.sees(r);
    const int64_t chunks = sight.chunk + (sight.count != 0);
    for (int64_t c = 0; c < chunks; ++c) {
      const ChunkSums s = shared_of(job, r, c);
      add_chunk(past_of(job, t, r), s.sum, *s.top, *s.total, width);
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const Plan plan = make_plan(call);
  for (int64_t item = begin; item < end; ++item) {
    const Unit unit(call, plan, item);
    if (unit.job(0).n_rows == 0) continue;
    Tile tile;
    lay_out(call, unit.rows(), unit.rows() * unit.n_groups(), scratch, &tile);
    attend(unit, tile);
    if (plan.parts > 1) {
      // The last unit to count itself sees the sums that the others wrote before they did.
      const int32_t finished = __atomic_add_fetch(call.tickets + unit.tile, 1, __ATOMIC_ACQ_REL);
      if (finished != plan.parts) continue;
    }
    for (int64_t g = 0; g < unit.n_groups(); ++g) {
      const Job job = unit.job(g);
      const Tile t = of_group(call, tile, g, unit.rows());
      if (plan.parts > 1) collect(job, t);
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
  const int64_t products = q.ne[1] * q.ne[2] * q.ne[3] * k.ne[1] * (k.ne[0] + call.dst.ne[0]);
  constexpr int64_t kEnough = 1 << 15;  // products that are worth a thread
  return max64(1, kEnough / max64(1, products / max64(1, items(call))));
}

const char* check_rows(const Tensor& t, const Tensor& q) {
  if (is_quantized(t.type) ? !can_decode(t.type) : !is_float(t.type)) {
    return "keys and values must be f32, f16, bf16 or a block type that can be decoded";
  }
  const bool batches_fit = t.ne[3] == 0 ? q.ne[3] == 0 : q.ne[3] % t.ne[3] == 0;
  if (t.ne[2] < 1 || q.ne[2] % t.ne[2] != 0 || !batches_fit) {
    return "the heads and batches of the queries must be multiples of those of keys and values";
  }
  return nullptr;
}

const char* check(const Call& call) {
  const Tensor& q = *call.src[0];
  const Tensor& k = *call.src[1];
  const Tensor& v = *call.src[2];
  const Tensor* mask = call.src[3];
  const Tensor* sinks = call.src[4];
  if (!is_float(q.type)) return "queries must be f32, f16 or bf16";
  if (!is_plain(call.dst)) return "the result must be f32 with contiguous rows";
  if (q.ne[2] < 1) return "the queries must have at least one head";
  if (const char* why = check_rows(k, q)) return why;
  if (const char* why = check_rows(v, q)) return why;
  if (k.ne[0] != q.ne[0]) return "queries and keys differ in length";
  if (v.ne[1] != k.ne[1]) return "keys and values differ in number";
  if (call.dst.ne[0] != v.ne[0] || call.dst.ne[1] != q.ne[2] || call.dst.ne[2] != q.ne[1] ||
      call.dst.ne[3] != q.ne[3]) {
    return "the result must be [value length, heads, tokens, batches]";
  }
  if (mask != nullptr) {
    if (!is_float(mask->type)) return "the mask must be f32, f16 or bf16";
    if (mask->ne[0] < k.ne[1] || mask->ne[1] < q.ne[1] || mask->ne[2] < 1 ||
        mask->ne[3] < min64(1, q.ne[3])) {
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
