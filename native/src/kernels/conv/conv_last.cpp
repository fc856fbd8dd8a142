// CONV_2D_LAST: convolution of data with channels innermost, dense or with a kernel a channel.
//
// Dense: a block of positions and a part of the output channels are an item. Tiles of them are
// summed up in registers (conv_last_tile.h), panel of weights by panel, so that a panel is read
// from the first cache for all tiles of the block.
#include "kernels/conv/conv_last.h"

#include "kernels/conv/conv_last_depthwise.h"
#include "kernels/conv/conv_last_squares.h"
#include "kernels/conv/conv_last_tile.h"

namespace weft::WEFT_TARGET {

void register_conv_last(KernelTable& table);

namespace {

constexpr int64_t kPanelChannels = kPanel * kLanes;
constexpr int64_t kNear = 6144;   // weights of several panels that the first cache has room for
constexpr int64_t kSlab = 16384;  // weights of a part that are in the second cache at a time

// How the work is cut. With a scale, whose weights are of one image, blocks are of one, too.
struct Cut {
  int64_t positions;  // of an image, or of all
  int64_t images;
  int64_t block, blocks;  // positions of one; of all images
  int64_t panels, parts;  // panels of a part
  // Threads begin in shares of the items of their own. So each reads its share of what is more,
  // which it has mostly written itself: of the data (all parts of a block, then the next block), or
  // of the weights (all blocks of a part).
  bool by_blocks;

  Cut(const LastPlan& p, int n_threads) {
    const int64_t all = (p.out_channels + kPanelChannels - 1) / kPanelChannels;
    const int64_t wanted = 8 * int64_t{n_threads};
    images = p.scaled ? p.batches : 1;
    positions = p.positions / images;
    block = kBlockRows;
    // for many threads, but not so few positions that weights are fetched more than used
    while (block > 2 * kTileRows && blocks_of_all() * all < wanted / 2) block /= 2;
    by_blocks = p.positions * (p.channels + p.out_channels) > p.depth() * p.out_channels;
    blocks = blocks_of_all();
    if (by_blocks && blocks < 4 * n_threads) {
      // as many for each thread
      blocks = round_up(blocks, n_threads);
      block = max64(1, min64(block, (p.positions + blocks - 1) / blocks));
      blocks = blocks_of_all();
    }
    if (n_threads > 1 && blocks < wanted) {
      // of one size: a last one of few positions would leave its thread without work
      const int64_t of_image = max64(1, blocks / max64(1, images));
      block = max64(1, (positions + of_image - 1) / of_image);
      blocks = blocks_of_all();
    }
    const int64_t cuts = blocks >= wanted ? 1 : (wanted + blocks - 1) / max64(1, blocks);
    panels = max64(1, all / max64(1, min64(all, cuts)));
    parts = (all + panels - 1) / panels;
  }
  int64_t items() const { return blocks * parts; }
  int64_t blocks_of_all() const { return (positions + block - 1) / block * images; }
  int64_t image_of(int64_t number) const { return number / (blocks / images); }
  int64_t first(int64_t number) const {
    return image_of(number) * positions + number % (blocks / images) * block;
  }
  int64_t size(int64_t number) const {
    return min64(block, positions - number % (blocks / images) * block);
  }
  int64_t block_of(int64_t item) const { return by_blocks ? item / parts : item % blocks; }
  int64_t part_of(int64_t item) const { return by_blocks ? item % parts : item / blocks; }
};

struct Scratch {
  const float** rows;      // [runs][kBlockRows]
  float** out;             // [kBlockRows]
  const float** residual;  // [kBlockRows]
  float* bias;
  float* panel;
  float* zeros;
  float* edges;  // [kBlockRows][runs][run]: merged runs that lie partly outside
  size_t used;

  Scratch(const LastPlan& p, char* memory) {
    Pieces pieces(memory);
    rows = pieces.take<const float*>(p.runs * kBlockRows);
    out = pieces.take<float*>(kBlockRows);
    residual = pieces.take<const float*>(kBlockRows);
    bias = pieces.take<float>(round_up(p.out_channels, kPanelChannels));
    panel = pieces.take<float>(max64(kNear, kPanelDeep * kPanelChannels));
    zeros = pieces.take<float>(p.run);
    edges = pieces.take<float>(
        p.merged && (p.x.padding > 0 || p.x.behind > 0) ? kBlockRows * p.depth() : 0);
    used = static_cast<size_t>(pieces.next - memory) + 64;
  }
};

// Places `step` bytes apart from `x` on; zeros for those not to be seen.
void put_places(const float** rows, const float* zeros, int64_t n, Range seen, const float* x,
                int64_t step) {
  for (int64_t i = 0; i < seen.begin; ++i) rows[i] = zeros;
  const char* place = reinterpret_cast<const char*>(x) + seen.begin * step;
  for (int64_t i = seen.begin; i < seen.end; ++i, place += step) {
    rows[i] = reinterpret_cast<const float*>(place);
  }
  for (int64_t i = max64(seen.begin, seen.end); i < n; ++i) rows[i] = zeros;
}

// Finds the inputs that a run of positions of a row of outputs sees through the taps of one row.
void see_taps(const LastPlan& p, const float** rows, const float* zeros, int64_t batch, int64_t iy,
              int64_t ox, int64_t n) {
  const bool there = iy >= 0 && iy < p.y.in;
  for (int64_t k = 0; k < p.x.taps; ++k, rows += kBlockRows) {
    const int64_t offset = p.x.offset(k) + ox * p.x.stride;
    const Range seen = there ? inside(n, p.x.stride, offset, p.x.in) : Range{0, 0};
    put_places(rows, zeros, n, seen, there ? p.at(batch, iy, offset) : nullptr,
               p.x.stride * p.x.step);
  }
}

// Likewise with all taps along x as one run; runs that lie partly outside are copied.
void see_merged(const LastPlan& p, const float** rows, const float* zeros, float* edges,
                int64_t batch, int64_t iy, int64_t ox, int64_t n) {
  const bool there = iy >= 0 && iy < p.y.in;
  const int64_t left = ox * p.x.stride - p.x.padding;
  const Range seen = there ? inside(n, p.x.stride, left, p.x.in - p.x.taps + 1) : Range{n, n};
  put_places(rows, zeros, n, seen, there ? p.at(batch, iy, left) : nullptr, p.x.stride * p.x.step);
  if (!there) return;
  for (int64_t i = 0; i < n; ++i) {
    if (i == seen.begin) i = seen.end;
    if (i >= n) break;
    const int64_t ix = left + i * p.x.stride;
    const Range taps = inside(p.x.taps, 1, ix, p.x.in);
    float* edge = edges + i * p.depth();
    fill_zeros(edge, p.run);
    if (taps.begin < taps.end) {
      std::memcpy(edge + taps.begin * p.channels, p.at(batch, iy, ix + taps.begin),
                  static_cast<size_t>((taps.end - taps.begin) * p.channels) * sizeof(float));
    }
    rows[i] = edge;
  }
}

// Where positions first .. first+n of all outputs are, and what they see.
void see(const Call& call, const LastPlan& p, const Scratch& s, int64_t first, int64_t n) {
  const Tensor* residual = call.src[3];
  for (int64_t i = 0; i < n;) {
    const int64_t line = (first + i) / p.x.out;
    const int64_t ox = first + i - line * p.x.out;
    const int64_t batch = line / p.y.out, oy = line - batch * p.y.out;
    const int64_t count = min64(p.x.out - ox, n - i);
    for (int64_t ky = 0; ky < p.y.taps; ++ky) {
      const int64_t iy = oy * p.y.stride + p.y.offset(ky);
      if (p.merged) {
        see_merged(p, s.rows + ky * kBlockRows + i, s.zeros, s.edges + i * p.depth() + ky * p.run,
                   batch, iy, ox, count);
      } else {
        see_taps(p, s.rows + ky * p.x.taps * kBlockRows + i, s.zeros, batch, iy, ox, count);
      }
    }
    const Index at = {ox, oy, batch};
    char* out = row_data(call.dst, at);
    for (int64_t j = 0; j < count; ++j, out += call.dst.nb[1]) {
      s.out[i + j] = reinterpret_cast<float*>(out);
    }
    if (residual != nullptr) {
      const Range all = {0, count};
      const auto* more = reinterpret_cast<const float*>(row_data(*residual, at));
      put_places(s.residual + i, nullptr, count, all, more, residual->nb[1]);
    }
    i += count;
  }
}

// Weights of channels that do not fill their vectors, with zeros behind.
void pack(const float* from, int64_t step, const float* scale, int64_t n, int64_t width,
          int64_t deep, float* to) {
  for (int64_t k = 0; k < deep; ++k, from += step, to += width) {
    const float factor = scale == nullptr ? 1 : scale[k];
    for (int64_t i = 0; i < width; ++i) to[i] = i < n ? from[i] * factor : 0;
  }
}

void fill_bias(const Tensor* bias, int64_t from, int64_t to, float* out) {
  fill_zeros(out, round_up(to - from, kPanelChannels));
  if (bias == nullptr) return;
  std::memcpy(out, bias->data + from * 4, static_cast<size_t>(to - from) * sizeof(float));
}

// Asks for rows of weights: they are too far from each other for the processor to see them coming.
void fetch(const float* weights, int64_t step, int64_t width, int64_t begin, int64_t end) {
  for (int64_t k = begin; k < end; ++k) {
    // weights may begin inside a cache line
    const auto* from = reinterpret_cast<const char*>(weights + k * step);
    const char* last = from + width * static_cast<int64_t>(sizeof(float));
    for (from -= reinterpret_cast<uintptr_t>(from) % 64; from < last; from += 64) {
      __builtin_prefetch(from, 0, 2);
    }
  }
}

// Positions of a block and output channels `begin` to `end`, `scale` of their image. `next`: the
// first of those that come after them, else -1.
void multiply(const Call& call, const LastPlan& p, const Scratch& s, const float* scale,
              int64_t begin, int64_t end, int64_t next, int64_t n) {
  const auto* weights = reinterpret_cast<const float*>(call.src[1]->data);
  LastTile t = {};
  t.panel = s.panel;
  t.step = p.out_channels;
  t.low = p.low;
  t.high = p.high;
  t.function = p.function;
  const int64_t width = end - begin;
  const int64_t deepest = max64(kPanelDeep / 4, min64(kPanelDeep, kSlab / width));
  const int64_t runs = max64(1, deepest / p.run);
  const int64_t pieces = (p.run + deepest - 1) / deepest;
  const int64_t piece = (p.run + pieces - 1) / pieces;
  const int64_t panels = (width + kPanelChannels - 1) / kPanelChannels;
  // as many vectors for each, or one more: a panel of a single one would wait for its sums
  const int64_t least = (width + kLanes - 1) / kLanes / panels;
  const int64_t larger_panels = (width + kLanes - 1) / kLanes - least * panels;
  const auto begin_of = [&](int64_t panel) {
    return (least * panel + min64(panel, larger_panels)) * kLanes;
  };
  const int64_t count = (n + kTileRows - 1) / kTileRows;
  for (int64_t first = 0; first < p.runs; first += runs) {
    t.runs = min64(runs, p.runs - first);
    for (t.from = 0; t.from < p.run; t.from += piece) {
      t.run = min64(piece, p.run - t.from);
      t.scale = scale == nullptr ? nullptr : scale + t.from;
      t.last = first + t.runs == p.runs && t.from + t.run == p.run;
      const bool begins = first == 0 && t.from == 0;
      const int64_t deep = t.runs * t.run;
      const float* slab = weights + (first * p.run + t.from) * t.step + begin;
      // all panels stay near where they are small: what is written is then side by side, too
      const bool near = deep * panels * kPanelChannels <= kNear;
      const int64_t turns = near ? 1 : panels;
      // the next weights, a share between any two tiles
      const float* ahead = t.last ? weights + max64(0, next) : slab + deep * t.step;
      const int64_t wide = t.last ? min64(width, p.out_channels - next) : width;
      const int64_t rows = !t.last ? deep : next < 0 ? 0 : min64(runs, p.runs) * piece;
      Shares fetched(rows, turns * count);
      for (int64_t turn = 0; turn < turns; ++turn) {
        for (Shares tiles(n, count); tiles.more(); tiles.next()) {
          t.rows = s.rows + first * kBlockRows + tiles.begin;
          t.out = s.out + tiles.begin;
          t.residual = call.src[3] == nullptr ? nullptr : s.residual + tiles.begin;
          for (int64_t panel = turn; panel < (near ? panels : turn + 1); ++panel) {
            const int64_t at = begin_of(panel);
            const int64_t channels = min64(begin_of(panel + 1), width) - at;
            const int64_t vectors = (channels + kLanes - 1) / kLanes;
            t.channel = begin + at;
            t.lanes = channels - (vectors - 1) * kLanes;
            t.bias = begins ? s.bias + at : nullptr;
            t.weights = slab + at;
            t.panel = s.panel + (near ? at * deep : 0);
            bool fresh = tiles.begin == 0;
            if (fresh && t.lanes < kLanes) {
              pack(t.weights, t.step, t.scale, channels, vectors * kLanes, deep, t.panel);
              fresh = false;
            }
            (fresh ? last_tile_of<true>(tiles.size(), vectors)
                   : last_tile_of<false>(tiles.size(), vectors))(t);
          }
          fetch(ahead, t.step, wide, fetched.begin, fetched.begin + fetched.size());
          fetched.next();
        }
      }
    }
  }
}

void run(const Call& call, int64_t begin, int64_t end, char* scratch) {
  const LastPlan p(call);
  if (p.depthwise) return run_depthwise(call, p, begin, end, scratch);
  if (const Squares squares(p, call.n_threads); squares.pay()) {
    return run_squares(call, squares, begin, end, scratch);
  }
  const Cut cut(p, call.n_threads);
  const Scratch s(p, scratch);
  fill_zeros(s.zeros, p.run);
  int64_t of_block = -1, of_part = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t part = cut.part_of(item), block = cut.block_of(item);
    const int64_t n = cut.size(block);
    if (block != of_block) see(call, p, s, cut.first(block), n);
    of_block = block;
    const int64_t from = part * cut.panels * kPanelChannels;
    const int64_t to = min64(from + cut.panels * kPanelChannels, p.out_channels);
    if (part != of_part) fill_bias(call.src[2], from, to, s.bias);
    of_part = part;
    // this thread most likely goes on with the next item, whether it has claimed it or not
    const int64_t after = item + 1 < cut.items() ? cut.part_of(item + 1) : part;
    const int64_t next = after == part ? -1 : after * cut.panels * kPanelChannels;
    const float* scale = p.scaled ? reinterpret_cast<const float*>(
                                        row_data(*call.src[4], Index{0, 0, cut.image_of(block)}))
                                  : nullptr;
    multiply(call, p, s, scale, from, to, next, n);
  }
}

int64_t items(const Call& call) {
  const LastPlan p(call);
  if (p.positions == 0 || p.out_channels == 0) return 0;
  if (p.depthwise) return depthwise_items(p, call.n_threads);
  const Squares squares(p, call.n_threads);
  return squares.pay() ? squares.items() : Cut(p, call.n_threads).items();
}

int64_t grain(const Call& call) {
  const LastPlan p(call);
  if (p.depthwise) return row_grain(depthwise_work(p, call.n_threads) / 8);
  if (Squares(p, call.n_threads).pay()) return 1;
  const Cut cut(p, call.n_threads);
  return row_grain(p.depth() * cut.block * cut.panels * kPanelChannels / 8);
}

size_t scratch_bytes(const Call& call) {
  const LastPlan p(call);
  if (p.depthwise) return depthwise_scratch(p);
  const Squares squares(p, call.n_threads);
  return squares.pay() ? SquareScratch(squares, nullptr).used : Scratch(p, nullptr).used;
}

int64_t prepare_units(const Call& call) {
  const LastPlan p(call);
  const Squares squares(p, call.n_threads);
  return squares.pay() && p.positions > 0 ? p.channels : 0;
}

size_t shared(const Call& call) {
  const LastPlan p(call);
  const Squares squares(p, call.n_threads);
  return squares.pay() ? squares_weights(squares) : 0;
}

const char* check(const Call& call) {
  const Tensor& x = *call.src[0];
  const Tensor& kernel = *call.src[1];
  const Tensor& dst = call.dst;
  if (!steps_are_legal<ConvLastSlot>(call, 2)) return kBadSteps;
  if (!is_count(call, ConvLastSlot::kGroups, 1)) return "groups must be 1 or more";
  if (!call.is_one<Activation>(ConvLastSlot::kFunction)) return "unknown function number";
  for (int d = 0; d < 2; ++d) {
    if (!is_count(call, ConvLastSlot::kPaddingAfter, 0, d)) return kBadSteps;
  }
  if (!is_f32_rows(x) || !is_f32_rows(dst)) return "data and result must be rows of f32 channels";
  if (!is_packed_f32(kernel)) return "needs an f32 kernel without gaps";
  const LastPlan p(call);
  const bool fits = p.depthwise ? call.i(ConvLastSlot::kGroups) == x.ne[0] && kernel.ne[1] == 1 &&
                                      kernel.ne[0] == x.ne[0]
                                : kernel.ne[1] == x.ne[0];
  if (!fits || kernel.ne[0] != dst.ne[0] || x.ne[3] != dst.ne[3]) {
    return "kernel, data and result differ in channels or batches";
  }
  for (const Axis& a : {p.x, p.y}) {
    const int64_t room = a.in + a.padding + a.behind - a.dilation * (a.taps - 1) - 1;
    if (a.taps < 1 || room < 0 || a.out != room / a.stride + 1)
      return "the result has another size";
  }
  const Tensor* bias = call.src[2];
  if (bias != nullptr && (!is_packed_f32(*bias) || !has_shape(*bias, dst.ne[0]))) {
    return "needs an f32 bias for each channel";
  }
  const Tensor* residual = call.src[3];
  if (residual != nullptr && (!is_f32_rows(*residual) || !same_shape(*residual, dst))) {
    return "the residual must be f32 and of the result's shape";
  }
  const Tensor* scale = call.src[4];
  if (scale == nullptr) return nullptr;
  if (p.depthwise || p.x.taps * p.y.taps != 1) return "with a scale, one tap and one group";
  if (!is_packed_f32(*scale) || !has_shape(*scale, x.ne[0], 1, 1, x.ne[3])) {
    return "needs an f32 factor for each channel of an image";
  }
  return nullptr;
}

}  // namespace

void register_conv_last(KernelTable& table) {
  table[Op::kConv2dLast] = {.check = check,
                            .items = items,
                            .run = run,
                            .grain = grain,
                            .scratch = scratch_bytes,
                            .prepare_units = prepare_units,
                            .prepare = prepare_squares,
                            .shared = shared};
}

}  // namespace weft::WEFT_TARGET
