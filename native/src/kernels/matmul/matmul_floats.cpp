// Products of float weights, and of any weights decoded to floats: a few columns by dot products of
// rows (float_dots.h), more by tiles (float_tile.h). Both give the same bits. Weights that were
// repacked have kernels of their own (panels_floats.h).
//
// Columns of bf16 are multiplied by the processor's bf16 dot products where it has them. With more
// than a few columns, weights of f16 and f32 are rounded to bf16 for it while they are staged.
#include "kernels/matmul/matmul_floats.h"

#include "kernels/matmul/float_words.h"
#include "kernels/matmul/matmul_bf16.h"
#include "kernels/matmul/matmul_integers.h"
#include "kernels/matmul/panels_halves.h"
#include "kernels/simd/rows_ahead.h"
#include "kernels/simd/tiles.h"

namespace weft::WEFT_TARGET {

namespace {

// The kernels for pairs of bf16, when the columns are such and the weights floats; else nullptr.
const Bf16Kernels* pair_kernels(DType weights, const Columns& columns) {
  const bool are_pairs = columns.type == DType::kBF16 && columns.element_stride == 2;
  return are_pairs && is_float(weights) ? bf16_kernels() : nullptr;
}

// ---- few columns

DotKernel float_dots(DType weights) {
  if (weights == DType::kF16) return dot_rows<FloatRow<DType::kF16>>;
  if (weights == DType::kBF16) return dot_rows<FloatRow<DType::kBF16>>;
  return dot_rows<FloatRow<DType::kF32>>;
}

struct FewScratch {
  char* decoded;   // [kFewRows][kSlabWords] floats
  float* columns;  // [column][k], if they are not read as they are
  size_t used;

  FewScratch(char* scratch, const Columns& columns_of, int64_t k) {
    Arena arena(scratch);
    decoded = arena.take<char>(kFewRows * kSlabWords * 4);
    columns = arena.take<float>(is_plain(columns_of) ? 0 : min64(columns_of.n, kFewColumns) * k);
    used = arena.used();
  }
};

// total (+)= sums, of `n_columns` columns.
void add_slab(const float (*sums)[kFewRows], int64_t n_columns, bool add,
              float (*total)[kFewRows]) {
  for (int64_t c = 0; c < n_columns; ++c) {
    for (int r = 0; r < kFewRows; ++r) total[c][r] = add ? total[c][r] + sums[c][r] : sums[c][r];
  }
}

// ---- many columns

// Words of columns that are worked through for each tile of rows: they stay in the second-level
// cache.
constexpr int64_t kWordsWide = (kLanes == 16 ? 96 : 48) * kSlabWords;
constexpr int64_t kMostColumns = 192;
static_assert(kGroupRows % kTileRows == 0);

// Packed columns are padded so that they do not share cache sets.
constexpr int64_t kPadding = 16;
constexpr int64_t kColumnStride = kSlabWords + kPadding;
constexpr int64_t kColumnBytes = kColumnStride * 4;  // in a slab

struct ManyScratch {
  float* columns;  // [column][kColumnStride]
  float* weights;  // [kTileRows][kWeightStride]
  float* decoded;  // floats of one row that become words
  float* lanes;    // [column][kTileRows] vectors
  float* sums;     // [column][kGroupRows]
  float* staged;   // of panels of 16-bit floats: [2 * kStagedWords][kPanelRows]
  float* panel;    // made of rows: [kStagedWords][kPanelRows]
  size_t used;

  explicit ManyScratch(char* scratch) {
    Arena arena(scratch);
    columns = arena.take<float>(kWordsWide / kSlabWords * kColumnStride);
    weights = arena.take<float>(kTileRows * kWeightStride);
    decoded = arena.take<float>(2 * kSlabWords);
    lanes = arena.take<float>(kMostColumns * kTileRows * kLanes);
    sums = arena.take<float>(kMostColumns * kGroupRows);
    staged = arena.take<float>(2 * kStagedWords * kPanelRows);
    panel = arena.take<float>(kStagedWords * kPanelRows);
    used = arena.used();
  }
};

int64_t n_vectors(int64_t elements, int64_t pair) {
  return (elements + pair * kLanes - 1) / (pair * kLanes);
}

// Sums of a slab of up to kGroupRows rows to columns left..right of the result, `row` on.
void put_group(const float* sums, int64_t rows, const Columns& columns, int64_t left, int64_t right,
               bool add, float scale, int64_t row) {
  typedef float vt __attribute__((vector_size(kTileRows * 4)));
  for (int64_t c = left; c < right; ++c, sums += kGroupRows) {
    float* out = columns.out[c] + row;
    if (c + 8 < right) __builtin_prefetch(columns.out[c + 8] + row, 1);
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      vt v = load_as<vt>(sums + r);
      if (add) v = load_as<vt>(out + r) + v;
      v = v * scale;
      std::memcpy(out + r, &v, sizeof v);
    }
    for (; r < rows; ++r) out[r] = (add ? out[r] + sums[r] : sums[r]) * scale;
  }
}

// Elements of a slab, where it begins, and its columns.
struct Slab {
  int64_t start;
  int64_t n;
  const float* columns;
  int64_t stride;
};

// Whether columns left..right, each the whole of a slab, can be read where they are.
bool are_in_place(const Columns& columns, int64_t left, int64_t right, int64_t k, int64_t pair) {
  const int64_t size = 4 / pair;
  const bool are_words =
      columns.type == (pair == 1 ? DType::kF32 : DType::kBF16) && columns.element_stride == size;
  const int64_t stride = right - left > 1 ? columns.x[left + 1] - columns.x[left] : 0;
  bool in_place =
      are_words && k <= kSlabWords * pair && k % (pair * kLanes) == 0 && stride == k * size;
  for (int64_t c = left; c < right && in_place; ++c) {
    in_place = columns.x[c] == columns.x[left] + (c - left) * stride;
  }
  return in_place;
}

// Columns left..right of a slab, packed if they cannot be read as they are: when they are deeper,
// they lie so that they would share cache sets.
Slab find_slab(const Columns& columns, int64_t left, int64_t right, int64_t start, int64_t k,
               int64_t pair, const ManyScratch& s) {
  const int64_t n = min64(kSlabWords * pair, k - start);
  if (columns.packed != nullptr) {
    const char* slab = columns.packed + start / (kSlabWords * pair) * columns.packed_step;
    return {start, n, reinterpret_cast<const float*>(slab) + left * kColumnStride, kColumnStride};
  }
  if (are_in_place(columns, left, right, k, pair)) {
    return {start, n, reinterpret_cast<const float*>(columns.x[left]), k / pair};
  }
  const int64_t padded = min64(kSlabWords, n_vectors(k, pair) * kLanes) + kPadding;
  for (int64_t c = left; c < right; ++c) {
    load_words(columns.type, columns.element_stride, columns.x[c], start, n, pair, s.decoded,
               s.columns + (c - left) * padded);
  }
  return {start, n, s.columns, padded};
}

// Asks for the columns of a run, which the first tile of rows finds far away.
void fetch_run(const Slab& slab, int64_t first, int64_t n_columns, int64_t word, int64_t words) {
  for (int64_t c = first; c < min64(first + kRunColumns, n_columns); ++c) {
    const float* from = slab.columns + c * slab.stride + word;
    for (int64_t i = 0; i < words; i += 16) __builtin_prefetch(from + i, 0, 2);
  }
}

// A tile of rows times `n_columns` columns of a slab.
void multiply_slab(const Weights& w, int64_t row, int64_t rows, const Slab& slab, int64_t n_columns,
                   const TileKernels& kernels, int64_t pair, bool is_first, const ManyScratch& s,
                   float* sums) {
  const int64_t step = kDeepWords * pair;
  const int64_t piece = step / unit_elements(w.type) * w.element_stride;
  const int64_t runs = (n_columns + kRunColumns - 1) / kRunColumns;
  for (int64_t k = 0; k < slab.n; k += step) {
    const int64_t n = min64(step, slab.n - k);
    const int64_t start = slab.start + k;
    for (int64_t r = 0; r < rows; ++r) {
      load_words(w.type, w.element_stride, w.data + (row + r) * w.row_stride, start, n, pair,
                 s.decoded, s.weights + r * kWeightStride);
    }
    // the same rows further on, or those below
    const bool last = k + step >= slab.n;
    const char* next =
        w.data + row * w.row_stride + start / unit_elements(w.type) * w.element_stride;
    RowsAhead<3> ahead(last ? next - k / step * piece + kTileRows * w.row_stride : next + piece,
                       w.row_stride, piece, kTileRows, runs);
    const TilePart part = {n_vectors(n, pair), k == 0, last};
    for (int64_t c = 0; c < n_columns; c += kRunColumns) {
      ahead.step();
      if (is_first) fetch_run(slab, c + 2 * kRunColumns, n_columns, k / pair, n / pair);
      kernels.of[min64(kRunColumns, n_columns - c) - 1](
          s.weights, slab.columns + c * slab.stride + k / pair, slab.stride, part,
          s.lanes + c * kTileRows * kLanes, sums + c * kGroupRows);
    }
  }
}

// Splits `n` into the fewest equal parts of at most `most`; returns the size of a part.
int64_t even_share(int64_t n, int64_t most) {
  const int64_t shares = (n + most - 1) / most;
  return (n + shares - 1) / shares;
}

// The same for columns of a product, in whole runs.
int64_t columns_at_once(int64_t n, int64_t k, int64_t pair) {
  const int64_t stride = min64(kSlabWords, n_vectors(k, pair) * kLanes) + kPadding;
  const int64_t room = kWordsWide / kSlabWords * kColumnStride / stride;
  const int64_t most = min64(kMostColumns, room) / kRunColumns * kRunColumns;
  return (even_share(n, most) + kRunColumns - 1) / kRunColumns * kRunColumns;
}

void multiply_many(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                   const TileKernels& kernels, int64_t pair, char* scratch) {
  const ManyScratch s(scratch);
  const int64_t wide = columns_at_once(columns.n, w.k, pair);
  for (int64_t left = 0; left < columns.n; left += wide) {
    const int64_t right = min64(columns.n, left + wide);
    for (int64_t k = 0; k < w.k; k += kSlabWords * pair) {
      const Slab slab = find_slab(columns, left, right, k, w.k, pair, s);
      const float scale = k + slab.n == w.k ? w.scale : 1.0f;
      for (int64_t r = begin; r < end; r += kTileRows) {
        const int64_t in_group = (r - begin) % kGroupRows;
        multiply_slab(w, r, min64(kTileRows, end - r), slab, right - left, kernels, pair,
                      r == begin, s, s.sums + in_group);
        const int64_t done = min64(in_group + kTileRows, end - r + in_group);
        if (done == kGroupRows || r + kTileRows >= end) {
          put_group(s.sums, done, columns, left, right, k > 0, scale, r - in_group);
        }
      }
    }
  }
}

// ---- panels

// The words of panels of a type: `pair` elements of columns are a word, and `words` of depth are
// taken at a time, as floats where there is a `stage`.
struct PanelWords {
  PanelKernels kernels;
  int64_t elements = 1;  // of a panel's word
  int64_t pair = 1;
  int64_t words = kPanelDepth;
  void (*stage)(const float* panel, int64_t words, float* to) = nullptr;
};

template <DType kType>
PanelWords staged_words() {
  return {panel_kernels<FloatWords, HalfWords<kType>>(), 2, 1, kStagedWords, stage_panel<kType>};
}

// Pairs of depth at a time: as much memory as staged floats, or, for tiles, half of it, which stays
// in the first-level cache.
constexpr int64_t kPairWords = (kTiles ? 1 : 2) * kStagedWords;

PanelWords panel_words(DType weights, const Columns& columns) {
  if (weights == DType::kF32) return {panel_kernels<FloatWords>()};
  const Bf16Kernels* pairs = pair_kernels(weights, columns);
  if (pairs != nullptr && weights == DType::kF16) {
    return {pairs->half_panels, 2, 2, kPairWords, pairs->stage_halves};
  }
  if (pairs != nullptr) return {pairs->panels, 2, 2, kTiles ? kPairWords : kPanelDepth};
  return weights == DType::kF16 ? staged_words<DType::kF16>() : staged_words<DType::kBF16>();
}

// Words of depth of the panel whose rows begin at `rows`, made at `to`. Processors do not see that
// so many rows are read on; those at `ahead`, which come next, are asked for meanwhile.
const float* gathered(const Weights& w, const char* rows, int64_t words, const char* ahead,
                      float* to) {
  constexpr int64_t kLineWords = 16;
  const InterleavedFormat& format = *interleaved_format(w.type);
  for (int64_t i = 0; i < words; i += kLineWords) {
    for (int64_t r = 0; r < kPanelRows; ++r) {
      __builtin_prefetch(ahead + r * w.row_stride + i * 4, 0, 2);
    }
    interleave_rows(format, rows + i * 4, w.row_stride, min64(kLineWords, words - i),
                    reinterpret_cast<char*>(to + i * kPanelRows));
  }
  return to;
}

const float* panel_of(const Weights& w, int64_t row) {
  return reinterpret_cast<const float*>(w.data + row * w.row_stride);
}

// Columns left..right that are multiplied together, and where they can be read as they are.
struct Run {
  int64_t right;
  const float* columns = nullptr;  // nullptr: they are packed first
  int64_t stride = 0;              // words from column to column
};

// The columns from `left` on. Panels read words of columns one by one, so that a column may begin
// anywhere and have any length.
Run find_run(const Columns& columns, int64_t left, int64_t k, int64_t pair) {
  const int64_t size = 4 / pair;
  const bool are_words = columns.packed == nullptr && columns.element_stride == size &&
                         columns.type == (pair == 1 ? DType::kF32 : DType::kBF16);
  if (!are_words || reinterpret_cast<uintptr_t>(columns.x[left]) % 4 != 0) {
    // more of them than there is room for to pack them: what is staged is for as many as can be
    const int64_t wide = columns.packed != nullptr ? even_share(columns.n, kStagedColumns)
                                                   : columns_at_once(columns.n, k, pair);
    return {min64(columns.n, left + wide)};
  }
  const int64_t most = min64(columns.n, left + even_share(columns.n, kStagedColumns));
  Run run = {left + 1, reinterpret_cast<const float*>(columns.x[left])};
  if (run.right == most) return run;
  const int64_t stride = columns.x[left + 1] - columns.x[left];
  if (stride % 4 != 0) return run;
  while (run.right < most && columns.x[run.right] - columns.x[run.right - 1] == stride) ++run.right;
  run.stride = stride / 4;
  return run;
}

// Rows behind the last whole panel, which stay rows and are added up as such.
void multiply_tail(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                   char* scratch) {
  if (begin == end) return;
  // tiles round weights that meet bf16, dot products do not
  const bool rounds = w.type != DType::kBF16 && pair_kernels(w.type, columns) != nullptr;
  if (columns.n <= kFewColumns && !rounds) {
    multiply_float_dots(w, begin, end, columns, scratch);
  } else {
    multiply_float_tiles(w, begin, end, columns, scratch);
  }
  const Finish& finish = columns.finish;
  if (finish.bias == nullptr && !finish.limits) return;
  for (int64_t c = 0; c < columns.n; ++c) {
    float* out = columns.out[c];
    for (int64_t r = begin; r < end; ++r) {
      float y = finish.bias == nullptr ? out[r] : out[r] + finish.bias[r];
      if (finish.limits && y < finish.low) y = finish.low;
      if (finish.limits && y > finish.high) y = finish.high;
      out[r] = y;
    }
  }
}

// The end of the whole panels of rows that begin with one and go up to `end`.
int64_t whole_panels(int64_t end) { return end / kPanelRows * kPanelRows; }

// `words` words of a panel, asked for while `n` columns are multiplied by `depth` words of another.
RowsAhead<2> panel_ahead(const float* panel, int64_t words, int64_t n, int64_t depth) {
  const int64_t steps = column_groups(n) * ((depth + kAheadWords - 1) / kAheadWords);
  const int64_t bytes = words * kPanelRows * 4;
  return {reinterpret_cast<const char*>(panel), bytes, bytes, 1, steps};
}

// Panels, and the rows behind them. `ordered`: rows that become panels of `words` words of depth on
// the way.
void multiply_panels(const Weights& w, int64_t begin, int64_t last_row, const Columns& columns,
                     const PanelWords& way, bool ordered, char* scratch) {
  const int64_t end = whole_panels(last_row);
  multiply_tail(w, end, last_row, columns, scratch);
  const ManyScratch s(scratch);
  for (int64_t left = 0; left < columns.n;) {
    const Run run = find_run(columns, left, w.k, way.pair);
    for (int64_t k = 0; k < w.k; k += kSlabWords * way.pair) {
      const Slab slab = run.columns == nullptr
                            ? find_slab(columns, left, run.right, k, w.k, way.pair, s)
                            : Slab{k, min64(kSlabWords * way.pair, w.k - k),
                                   run.columns + k / way.pair, run.stride};
      for (int64_t i = 0; i < slab.n; i += way.words * way.elements) {
        const int64_t words = min64(way.words, (slab.n - i) / way.elements);
        const bool last = k + i + words * way.elements == w.k;
        const Finish finish = last ? columns.finish : Finish{};
        for (int64_t r = begin; r < end; r += kPanelRows) {
          const int64_t first = (k + i) / way.elements;
          const float* panel = panel_of(w, r) + first * kPanelRows;
          if (ordered) {
            const char* rows = w.data + r * w.row_stride + first * 4;
            const bool below = r + kPanelRows < end;
            const char* ahead = below ? rows + kPanelRows * w.row_stride
                                      : rows + (begin - r) * w.row_stride + words * 4;
            panel = gathered(w, rows, words, ahead, s.panel);
          }
          const int64_t depth = words * way.elements / way.pair;
          const int64_t n = run.right - left;
          RowsAhead<2> ahead;
          const bool asks = !ordered && column_groups(n) >= kAheadGroups && depth >= kLeastAhead;
          if (asks) {
            // the same part of the panel below, or the next part of the first one
            const bool below = r + kPanelRows < end || last;
            const float* next = below ? panel_of(w, r + kPanelRows) + first * kPanelRows
                                      : panel_of(w, begin) + (first + words) * kPanelRows;
            ahead = panel_ahead(next, words, n, depth);
          }
          if (way.stage != nullptr) {
            way.stage(panel, words, s.staged);
            panel = s.staged;
          }
          const PanelPart part = {
              panel,  slab.columns + i / way.pair, slab.stride, depth, k + i == 0,
              finish, asks ? &ahead : nullptr};
          way.kernels.columns(part, n, columns.out + left, r);
        }
      }
    }
    left = run.right;
  }
}

}  // namespace

// ---- the ways

void multiply_float_dots(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                         char* scratch) {
  const FewScratch s(scratch, columns, w.k);
  const bool is_row = is_float(w.type) && w.element_stride == element_size(w.type);
  const bool pairs = is_row && w.type == DType::kBF16 && pair_kernels(w.type, columns) != nullptr;
  const DotKernel dot = pairs    ? pair_kernels(w.type, columns)->dot
                        : is_row ? float_dots(w.type)
                                 : dot_rows<FloatRow<DType::kF32>>;
  const int64_t column_size = pairs ? 2 : 4;
  const int64_t slab = pairs ? 2 * kSlabWords : kSlabWords;
  const char* x[kFewColumns];
  for (int64_t c = 0; c < columns.n; ++c) {
    x[c] = columns.x[c];
    if (pairs || is_plain(columns)) continue;
    load_row(columns.type, columns.element_stride, columns.x[c], 0, w.k, s.columns + c * w.k);
    x[c] = reinterpret_cast<const char*>(s.columns + c * w.k);
  }
  for (int64_t r = begin; r < end; r += kFewRows) {
    const int64_t n_rows = min64(kFewRows, end - r);
    const char* data = w.data + r * w.row_stride;
    float total[kFewColumns][kFewRows];
    for (int64_t k = 0; k < w.k; k += slab) {
      const int64_t n = min64(slab, w.k - k);
      // the rows after these, in the order of addresses: a slab of theirs would lie in pieces
      const char* ahead = data + kFewRows * (w.row_stride + k * w.element_stride);
      FewRows rows = {data + k * w.element_stride, w.row_stride, n_rows, ahead};
      if (!is_row) {
        rows = {s.decoded, kSlabWords * 4, n_rows, s.decoded};
        for (int64_t i = 0; i < n_rows; ++i) {
          load_row(w.type, w.element_stride, data + i * w.row_stride, k, n,
                   reinterpret_cast<float*>(s.decoded) + i * kSlabWords);
        }
      }
      const char* at[kFewColumns];
      for (int64_t c = 0; c < columns.n; ++c) at[c] = x[c] + k * column_size;
      float sums[kFewColumns][kFewRows] = {};
      dot(rows, at, columns.n, n, sums);
      add_slab(sums, columns.n, k > 0, total);
    }
    for (int64_t c = 0; c < columns.n; ++c) {
      put_rows(total[c], n_rows, w.scale, false, columns.out[c] + r);
    }
  }
}

void multiply_float_tiles(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                          char* scratch) {
  if (const Bf16Kernels* pairs = pair_kernels(w.type, columns); pairs != nullptr) {
    multiply_many(w, begin, end, columns, pairs->tiles, 2, scratch);
  } else {
    multiply_many(w, begin, end, columns, tile_kernels<MultiplyFloats>(), 1, scratch);
  }
}

void multiply_panel_column(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                           char* scratch) {
  const int64_t whole = whole_panels(end);
  multiply_tail(w, whole, end, columns, scratch);
  const PanelWords way = panel_words(w.type, columns);
  const FewScratch s(scratch, columns, w.k);
  const auto* x = reinterpret_cast<const float*>(columns.x[0]);
  const int64_t depth = w.k / way.elements;
  if (way.pair == 1 && !is_plain(columns)) {
    load_row(columns.type, columns.element_stride, columns.x[0], 0, w.k, s.columns);
    x = s.columns;
  }
  int64_t r = begin;
  for (; r + 2 * kPanelRows <= whole; r += 2 * kPanelRows) {
    way.kernels.column[1](panel_of(w, r), x, depth, columns.finish, columns.out[0], r);
  }
  if (r < whole) way.kernels.column[0](panel_of(w, r), x, depth, columns.finish, columns.out[0], r);
}

void multiply_float_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                           char* scratch) {
  multiply_panels(w, begin, end, columns, panel_words(w.type, columns), false, scratch);
}

void multiply_ordered_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                             char* scratch) {
  PanelWords way = panel_words(w.type, columns);
  way.words = kStagedWords;
  multiply_panels(w, begin, end, columns, way, true, scratch);
}

int64_t few_float_dots(DType) { return kFewColumns; }
int64_t one_column(DType) { return 1; }

// ---- packed columns

constexpr SharedForm kPackedFloats = {
    .by_depth = false,
    .pays =
        [](const Weights& w, const Columns& columns) {
          const int64_t pair = pair_kernels(w.type, columns) != nullptr ? 2 : 1;
          const bool are_words = columns.element_stride == 4 / pair &&
                                 columns.type == (pair == 1 ? DType::kF32 : DType::kBF16);
          if (w.layout != Layout::kRows && are_words) return false;  // panels read them in place
          return columns.n > kFewColumns && w.k > kSlabWords * pair && is_worth_sharing(w, columns);
        },
    .bytes =
        [](int64_t n_columns, int64_t k) {
          return static_cast<size_t>(n_columns * ((k + kSlabWords - 1) / kSlabWords) *
                                     kColumnBytes);
        },
    .find =
        [](char* shared, int64_t first, int64_t n_columns, int64_t, Columns& columns) {
          columns.packed = shared + first * kColumnBytes;
          columns.packed_step = n_columns * kColumnBytes;
        },
    .make =
        [](const Weights& w, const Columns& columns, int64_t, int64_t) {
          const int64_t pair = pair_kernels(w.type, columns) != nullptr ? 2 : 1;
          // for bf16 columns whose elements have gaps; others are words of pairs as they are
          float decoded[2 * kSlabWords];
          for (int64_t c = 0; c < columns.n; ++c) {
            char* at = const_cast<char*>(columns.packed) + c * kColumnBytes;
            for (int64_t k = 0; k < w.k; k += kSlabWords * pair, at += columns.packed_step) {
              load_words(columns.type, columns.element_stride, columns.x[c], k,
                         min64(kSlabWords * pair, w.k - k), pair, decoded,
                         reinterpret_cast<float*>(at));
            }
          }
        }};

bool takes_float_panels(DType weights, DType columns) {
  const bool are_pairs = weights == DType::kBF16 || weights == DType::kF16;
  const bool pairs = are_pairs && columns == DType::kBF16 && bf16_kernels() != nullptr;
  return is_float(weights) && (pairs || columns == DType::kF32 || columns == DType::kF16);
}

size_t multiply_floats_scratch(const Columns& columns, int64_t k, Layout layout) {
  const size_t few = FewScratch(nullptr, columns, k).used;
  const int64_t most = layout == Layout::kOrdered       ? 0
                       : layout == Layout::kInterleaved ? 1
                                                        : kFewColumns;
  if (columns.n <= most) return few;
  const size_t many = ManyScratch(nullptr).used;
  return many > few ? many : few;
}

}  // namespace weft::WEFT_TARGET
