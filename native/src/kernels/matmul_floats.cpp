// Products of float weights, and of any weights decoded to floats: a few columns by dot products of
// rows (float_dots.h), more by tiles (float_tile.h).
//
// Columns of bf16 are multiplied by the processor's bf16 dot products where it has them. With more
// than a few columns, weights of f16 and f32 are rounded to bf16 for it while they are staged.
#include "kernels/matmul_floats.h"

#include "kernels/matmul_bf16.h"

namespace weft::WEFT_TARGET {

namespace {

// Floats of a weight row that are decoded at a time for a dot product.
constexpr int64_t kDecoded = 1024;

// Elements start..start+n of a row as floats.
void load_row(DType type, int64_t element_stride, const char* row, int64_t start, int64_t n,
              float* out) {
  if (is_float(type)) {
    load_floats(row + start * element_stride, type, element_stride, n, out);
  } else {
    table().type(type).to_float(row + start / unit_elements(type) * unit_bytes(type), out, n);
  }
}

bool is_plain(const Columns& columns) {
  return columns.type == DType::kF32 && columns.element_stride == 4;
}

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

void dot_decoded(const Weights& w, const FewRows& rows, const char* const* x, int64_t n_columns,
                 float* decoded, float (*sums)[kFewRows]) {
  const char* at[kFewColumns];
  for (int64_t k = 0; k < w.k; k += kDecoded) {
    const int64_t n = min64(kDecoded, w.k - k);
    for (int64_t i = 0; i < rows.rows; ++i) {
      load_row(w.type, w.element_stride, rows.w + i * rows.stride, k, n, decoded + i * kDecoded);
    }
    for (int64_t c = 0; c < n_columns; ++c) at[c] = x[c] + k * 4;
    const FewRows piece = {reinterpret_cast<const char*>(decoded), kDecoded * 4, rows.rows};
    dot_rows<FloatRow<DType::kF32>>(piece, at, n_columns, n, sums);
  }
}

void multiply_few(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                  char* scratch) {
  Arena arena(scratch);
  auto* decoded = arena.take<float>(kFewRows * kDecoded);
  const bool is_row = is_float(w.type) && w.element_stride == element_size(w.type);
  DotKernel direct = is_row ? float_dots(w.type) : nullptr;
  const char* x[kFewColumns];
  const bool pairs = is_row && w.type == DType::kBF16 && pair_kernels(w.type, columns) != nullptr;
  if (pairs) direct = pair_kernels(w.type, columns)->dot;
  for (int64_t c = 0; c < columns.n; ++c) {
    x[c] = columns.x[c];
    if (!pairs && !is_plain(columns)) {
      auto* values = arena.take<float>(w.k);
      load_row(columns.type, columns.element_stride, columns.x[c], 0, w.k, values);
      x[c] = reinterpret_cast<const char*>(values);
    }
  }
  for (int64_t r = begin; r < end; r += kFewRows) {
    const FewRows rows = {w.data + r * w.row_stride, w.row_stride, min64(kFewRows, end - r)};
    float sums[kFewColumns][kFewRows] = {};
    if (direct != nullptr) {
      direct(rows, x, columns.n, w.k, sums);
    } else {
      dot_decoded(w, rows, x, columns.n, decoded, sums);
    }
    for (int64_t c = 0; c < columns.n; ++c) {
      put_rows(sums[c], rows.rows, w.scale, false, columns.out[c] + r);
    }
  }
}

// ---- many columns

// Columns that are packed at a time, so that kDeepWords of each stay in the second-level cache. A
// multiple of every target's kTileLanes.
constexpr int64_t kColumnsWide = 192;
constexpr int64_t kPackedWords = kColumnsWide * kDeepWords;

// Rows whose sums are kept while the depth is worked through.
constexpr int64_t kRowsTall = 1024;

// Rows of sums that are written to the result together: a cache line.
constexpr int64_t kGroupRows = 16;
static_assert(kGroupRows % kTileRows == 0 && kColumnsWide % kTileLanes == 0);

// How a product of floats is cut. `pair`: elements of a word.
struct Blocks {
  int64_t pair;
  int64_t words;    // of a row
  int64_t columns;  // of a block; the last may have less
  int64_t deep;     // words that are packed at a time

  Blocks(int64_t n, int64_t k, int64_t elements) : pair(elements), words((k + pair - 1) / pair) {
    const int64_t blocks = (n + kColumnsWide - 1) / kColumnsWide;
    columns = ((n + blocks - 1) / blocks + kTileLanes - 1) / kTileLanes * kTileLanes;
    // all of it, if it fits: then weights are read row by row
    const int64_t all = (words + kDeepWords - 1) / kDeepWords * kDeepWords;
    deep = columns * all <= kPackedWords ? all : kDeepWords;
  }
};

struct ManyScratch {
  float* panels;   // [slab][tile of columns][word][lane]
  float* weights;  // [kTileRows][kWeightStride]
  float* staged;   // [kLanes][kDeepWords], and decoded floats of one row
  float* sums;     // [tile of rows][column][kTileRows]
  size_t used;

  explicit ManyScratch(char* scratch) {
    Arena arena(scratch);
    panels = arena.take<float>(kPackedWords);
    weights = arena.take<float>(kTileRows * kWeightStride);
    staged = arena.take<float>(kLanes * kDeepWords + 2 * kDeepWords);
    sums = arena.take<float>(kRowsTall * kColumnsWide);
    used = arena.used();
  }
};

// Elements start..start+n of a row as words; `decoded` has room for n floats.
void load_words(DType type, int64_t element_stride, const char* row, int64_t start, int64_t n,
                int64_t pair, float* decoded, float* words) {
  if (pair == 1) {
    load_row(type, element_stride, row, start, n, words);
    return;
  }
  if (n % 2 != 0) words[n / 2] = 0.0f;
  if (type == DType::kBF16 && element_stride == 2) {
    std::memcpy(words, row + 2 * start, static_cast<size_t>(2 * n));
    return;
  }
  load_row(type, element_stride, row, start, n, decoded);
  table().type(DType::kBF16).from_float(decoded, words, n);
}

// Columns left..left+n, at most kLanes, to lanes of a panel `stride` lanes wide.
void pack_vector(const Columns& columns, int64_t left, int64_t n, int64_t start, int64_t elements,
                 const Blocks& blocks, int64_t stride, const ManyScratch& s, float* panel) {
  const int64_t words = (elements + blocks.pair - 1) / blocks.pair;
  const DType in_words = blocks.pair == 1 ? DType::kF32 : DType::kBF16;
  const bool in_place = columns.type == in_words &&
                        columns.element_stride == element_size(in_words) &&
                        words * blocks.pair == elements;
  const float* rows[kLanes];
  for (int64_t c = 0; c < kLanes; ++c) {
    float* staged = s.staged + c * kDeepWords;
    rows[c] = staged;
    if (c >= n) {
      std::memset(staged, 0, static_cast<size_t>(words) * 4);
    } else if (in_place) {
      rows[c] = reinterpret_cast<const float*>(columns.x[left + c] + start * (4 / blocks.pair));
    } else {
      load_words(columns.type, columns.element_stride, columns.x[left + c], start, elements,
                 blocks.pair, s.staged + kLanes * kDeepWords, staged);
    }
  }
  pack_lanes(rows, words, stride, panel);
}

int tile_vectors(int64_t columns) {
  return columns >= kTileLanes ? kTileVectors : static_cast<int>((columns + kLanes - 1) / kLanes);
}

// Columns left..right, words first..end of each.
void pack_columns(const Columns& columns, int64_t left, int64_t right, int64_t first, int64_t end,
                  int64_t k, const Blocks& blocks, const ManyScratch& s) {
  float* slab = s.panels;
  for (int64_t at = first; at < end; at += kDeepWords, slab += blocks.columns * kDeepWords) {
    const int64_t start = at * blocks.pair;
    const int64_t elements = min64(kDeepWords * blocks.pair, k - start);
    float* panel = slab;
    for (int64_t c = left; c < right; c += kTileLanes, panel += kTileLanes * kDeepWords) {
      const int vectors = tile_vectors(right - c);
      for (int i = 0; i < vectors; ++i) {
        const int64_t from = c + i * kLanes;
        pack_vector(columns, from, min64(kLanes, right - from), start, elements, blocks,
                    vectors * kLanes, s, panel + i * kLanes);
      }
    }
  }
}

// A tile of weights.
void stage_weights(const Weights& w, int64_t row, int64_t rows, int64_t start, int64_t elements,
                   int64_t pair, const ManyScratch& s) {
  for (int64_t r = 0; r < rows; ++r) {
    const char* data = w.data + (row + r) * w.row_stride;
    load_words(w.type, w.element_stride, data, start, elements, pair, s.staged,
               s.weights + r * kWeightStride);
  }
}

// Sums of up to kGroupRows rows to columns left..right of the result, `row` on.
void put_group(const float* sums, int64_t rows, const Columns& columns, int64_t left, int64_t right,
               int64_t tile_sums, float scale, int64_t row) {
  typedef float vt __attribute__((vector_size(kTileRows * 4)));
  for (int64_t c = left; c < right; ++c, sums += kTileRows) {
    float* out = columns.out[c] + row;
    if (c + 8 < right) __builtin_prefetch(columns.out[c + 8] + row, 1);
    const float* from = sums;
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows, from += tile_sums) {
      const vt v = load_as<vt>(from) * scale;
      std::memcpy(out + r, &v, sizeof v);
    }
    for (int64_t i = 0; r + i < rows; ++i) out[r + i] = from[i] * scale;
  }
}

// Rows begin..end, at most kRowsTall, of columns left..right.
void multiply_block(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                    int64_t left, int64_t right, const TileKernels& kernels, const Blocks& blocks,
                    const ManyScratch& s) {
  const int64_t pair = blocks.pair;
  const int64_t step = kDeepWords * pair;
  const int64_t piece = step / unit_elements(w.type) * w.element_stride;
  const int64_t next = blocks.deep > kDeepWords ? piece : kTileRows * w.row_stride;
  const int64_t tile_sums = blocks.columns * kTileRows;
  for (int64_t packed = 0; packed < blocks.words; packed += blocks.deep) {
    const int64_t packed_end = min64(packed + blocks.deep, blocks.words);
    pack_columns(columns, left, right, packed, packed_end, w.k, blocks, s);
    float* sums = s.sums;
    for (int64_t r = begin; r < end; r += kTileRows, sums += tile_sums) {
      const float* panels = s.panels;
      for (int64_t k = packed; k < packed_end; k += kDeepWords) {
        const int64_t words = min64(kDeepWords, packed_end - k);
        stage_weights(w, r, min64(kTileRows, end - r), k * pair, min64(step, w.k - k * pair), pair,
                      s);
        // the same rows further on, or those below
        Ahead ahead = {w.data + r * w.row_stride + k / kDeepWords * piece + next, w.row_stride,
                       piece / kAheadSteps};
        for (int64_t c = 0; c < right - left; c += kTileLanes) {
          kernels.of[tile_vectors(right - left - c) - 1](s.weights, panels + c * kDeepWords, words,
                                                         ahead, k > 0, sums + c * kTileRows);
          ahead = {reinterpret_cast<const char*>(s.weights), 0, 0};
        }
        panels += blocks.columns * kDeepWords;
      }
      const int64_t done = min64(r + kTileRows, end);
      if (packed_end == blocks.words && ((done - begin) % kGroupRows == 0 || done == end)) {
        const int64_t first = begin + (done - 1 - begin) / kGroupRows * kGroupRows;
        put_group(s.sums + (first - begin) / kTileRows * tile_sums, done - first, columns, left,
                  right, tile_sums, w.scale, first);
      }
    }
  }
}

void multiply_many(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                   const TileKernels& kernels, int64_t pair, char* scratch) {
  const ManyScratch s(scratch);
  const Blocks blocks(columns.n, w.k, pair);
  for (int64_t top = begin; top < end; top += kRowsTall) {
    for (int64_t left = 0; left < columns.n; left += blocks.columns) {
      multiply_block(w, top, min64(end, top + kRowsTall), columns, left,
                     min64(columns.n, left + blocks.columns), kernels, blocks, s);
    }
  }
}

}  // namespace

void multiply_floats(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                     char* scratch) {
  if (columns.n <= kFewColumns) {
    multiply_few(w, begin, end, columns, scratch);
  } else if (const Bf16Kernels* pairs = pair_kernels(w.type, columns); pairs != nullptr) {
    multiply_many(w, begin, end, columns, pairs->tiles, 2, scratch);
  } else {
    multiply_many(w, begin, end, columns, tile_kernels<MultiplyFloats>(), 1, scratch);
  }
}

size_t multiply_floats_scratch(const Columns& columns, int64_t k) {
  Arena few(nullptr);
  few.take<float>(kFewRows * kDecoded);
  if (!is_plain(columns)) {
    for (int64_t c = 0; c < min64(columns.n, kFewColumns); ++c) few.take<float>(k);
  }
  if (columns.n <= kFewColumns) return few.used();
  const size_t many = ManyScratch(nullptr).used;
  return many > few.used() ? many : few.used();
}

}  // namespace weft::WEFT_TARGET
