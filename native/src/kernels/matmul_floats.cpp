// Products of float weights, and of any weights decoded to floats.
#include "kernels/matmul_floats.h"

#include "kernels/float_tile.h"

namespace weft::WEFT_TARGET {

namespace {

// Up to this many columns, unpacking a panel costs more than it saves.
constexpr int64_t kFewColumns = 6;

// Floats of a weight row that are decoded at a time for a dot product.
constexpr int64_t kDecoded = 1024;

// ---- few columns

template <DType kType>
vf load_weights(const char* p, int64_t i) {
  if constexpr (kType == DType::kF16) return load_half(reinterpret_cast<const uint16_t*>(p) + i);
  if constexpr (kType == DType::kBF16) return load_bf16(reinterpret_cast<const uint16_t*>(p) + i);
  return load(reinterpret_cast<const float*>(p) + i);
}

// sums[r] += row r . x, over n elements of kRows rows.
template <DType kType, int kRows>
void dot_floats(const char* w, int64_t stride, const float* x, int64_t n, float* sums) {
  constexpr int64_t kSize = kType == DType::kF32 ? 4 : 2;
  vf acc[kRows][2] = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    const vf x0 = load(x + i);
    const vf x1 = load(x + i + kLanes);
    prefetch_rows<kRows, 2 * kLanes * kSize>(w, stride, i * kSize);
    for (int r = 0; r < kRows; ++r) {
      acc[r][0] = fma(load_weights<kType>(w + r * stride, i), x0, acc[r][0]);
      acc[r][1] = fma(load_weights<kType>(w + r * stride, i + kLanes), x1, acc[r][1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float sum = hsum(acc[r][0] + acc[r][1]);
    for (int64_t k = i; k < n; ++k) sum += load_element(w + r * stride + k * kSize, kType) * x[k];
    sums[r] += sum;
  }
}

template <int kRows>
void dot_float_rows(DType type, const char* w, int64_t stride, const float* x, int64_t n,
                    float* sums) {
  if (type == DType::kF16) return dot_floats<DType::kF16, kRows>(w, stride, x, n, sums);
  if (type == DType::kBF16) return dot_floats<DType::kBF16, kRows>(w, stride, x, n, sums);
  dot_floats<DType::kF32, kRows>(w, stride, x, n, sums);
}

void dot_block(DType type, const char* w, int64_t stride, int64_t rows, const float* x, int64_t n,
               float* sums) {
  if (rows == 4) return dot_float_rows<4>(type, w, stride, x, n, sums);
  for (int64_t r = 0; r < rows; ++r) {
    dot_float_rows<1>(type, w + r * stride, stride, x, n, sums + r);
  }
}

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

void dot_decoded(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                 char* scratch) {
  Arena arena(scratch);
  const float* x[kFewColumns];
  for (int64_t c = 0; c < columns.n; ++c) {
    x[c] = reinterpret_cast<const float*>(columns.x[c]);
    if (!is_plain(columns)) {
      auto* values = arena.take<float>(w.k);
      load_row(columns.type, columns.element_stride, columns.x[c], 0, w.k, values);
      x[c] = values;
    }
  }
  auto* decoded = arena.take<float>(4 * kDecoded);
  const bool direct = is_float(w.type) && w.element_stride == element_size(w.type);
  for (int64_t r = begin; r < end; r += 4) {
    const int64_t rows = min64(4, end - r);
    const char* row = w.data + r * w.row_stride;
    float sums[kFewColumns][4] = {};
    if (direct) {
      for (int64_t c = 0; c < columns.n; ++c) {
        dot_block(w.type, row, w.row_stride, rows, x[c], w.k, sums[c]);
      }
    } else {
      for (int64_t k = 0; k < w.k; k += kDecoded) {
        const int64_t n = min64(kDecoded, w.k - k);
        for (int64_t i = 0; i < rows; ++i) {
          load_row(w.type, w.element_stride, row + i * w.row_stride, k, n, decoded + i * kDecoded);
        }
        for (int64_t c = 0; c < columns.n; ++c) {
          dot_block(DType::kF32, reinterpret_cast<const char*>(decoded), kDecoded * 4, rows,
                    x[c] + k, n, sums[c]);
        }
      }
    }
    for (int64_t c = 0; c < columns.n; ++c) {
      put_rows(sums[c], rows, w.scale, false, columns.out[c] + r);
    }
  }
}

// ---- many columns

// Columns that are packed at a time, so that kDeepWords of each stay in the second-level cache. A
// multiple of every target's kTileLanes.
constexpr int64_t kColumnsWide = 288;
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
  const bool in_place =
      columns.element_stride == 4 / blocks.pair && words * blocks.pair == elements;
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

// A tile of weights, and a wish for the piece of each row that is `next` bytes further.
void stage_weights(const Weights& w, int64_t row, int64_t rows, int64_t start, int64_t elements,
                   int64_t pair, int64_t next, const ManyScratch& s) {
  const int64_t bytes = elements / unit_elements(w.type) * w.element_stride;
  const char* piece = w.data + start / unit_elements(w.type) * w.element_stride + next;
  for (int64_t r = 0; r < rows; ++r) {
    const char* data = w.data + (row + r) * w.row_stride;
    const char* ahead = piece + (row + r) * w.row_stride;
    for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
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
                      next, s);
        for (int64_t c = 0; c < right - left; c += kTileLanes) {
          kernels.of[tile_vectors(right - left - c) - 1](s.weights, panels + c * kDeepWords, words,
                                                         k > 0, sums + c * kTileRows);
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
    dot_decoded(w, begin, end, columns, scratch);
  } else {
    multiply_many(w, begin, end, columns, tile_kernels<MultiplyFloats>(), 1, scratch);
  }
}

size_t multiply_floats_scratch(const Columns& columns, int64_t k) {
  Arena few(nullptr);
  few.take<float>(4 * kDecoded);
  if (!is_plain(columns)) {
    for (int64_t c = 0; c < min64(columns.n, kFewColumns); ++c) few.take<float>(k);
  }
  if (columns.n <= kFewColumns) return few.used();
  const size_t many = ManyScratch(nullptr).used;
  return many > few.used() ? many : few.used();
}

}  // namespace weft::WEFT_TARGET
