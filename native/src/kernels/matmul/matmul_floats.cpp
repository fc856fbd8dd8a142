// Products of float weights, and of any weights decoded to floats: a few columns by dot products of
// rows (float_dots.h), more by tiles (float_tile.h). Both give the same bits. Weights of f32 that
// were repacked have kernels of their own (panels_f32.h).
//
// Columns of bf16 are multiplied by the processor's bf16 dot products where it has them. With more
// than a few columns, weights of f16 and f32 are rounded to bf16 for it while they are staged.
#include "kernels/matmul/matmul_floats.h"

#include "kernels/matmul/matmul_bf16.h"
#include "kernels/matmul/panels_f32.h"
#include "kernels/simd/rows_ahead.h"

namespace weft::WEFT_TARGET {

namespace {

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

void multiply_few(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
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

// ---- many columns

// Words of columns that are worked through for each tile of rows: they stay in the second-level
// cache.
constexpr int64_t kWordsWide = (kLanes == 16 ? 96 : 48) * kSlabWords;
constexpr int64_t kMostColumns = 192;
static_assert(kGroupRows % kTileRows == 0);

// Packed columns are padded so that they do not share cache sets.
constexpr int64_t kPadding = 16;
constexpr int64_t kColumnStride = kSlabWords + kPadding;

struct ManyScratch {
  float* columns;  // [column][kColumnStride]
  float* weights;  // [kTileRows][kWeightStride]
  float* decoded;  // floats of one row that become words
  float* lanes;    // [column][kTileRows] vectors
  float* sums;     // [column][kGroupRows]
  size_t used;

  explicit ManyScratch(char* scratch) {
    Arena arena(scratch);
    columns = arena.take<float>(kWordsWide / kSlabWords * kColumnStride);
    weights = arena.take<float>(kTileRows * kWeightStride);
    decoded = arena.take<float>(2 * kSlabWords);
    lanes = arena.take<float>(kMostColumns * kTileRows * kLanes);
    sums = arena.take<float>(kMostColumns * kGroupRows);
    used = arena.used();
  }
};

// n elements of 2 or 4 bytes, in vectors: a call of memcpy, or a string instruction, takes longer.
void copy_elements(const char* from, int64_t size, int64_t n, float* to) {
  const int64_t whole = n * size / (4 * kLanes) * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    store(to + i, load_as<vf>(from + 4 * i));
  }
  auto* rest = reinterpret_cast<char*>(to + whole);
  for (int64_t i = 4 * whole; i < n * size; i += size, rest += size) {
    std::memcpy(rest, from + i, static_cast<size_t>(size));
  }
}

// Elements start..start+n of a row as words, and zeros that fill a vector; `decoded` has room for n
// floats.
void load_words(DType type, int64_t element_stride, const char* row, int64_t start, int64_t n,
                int64_t pair, float* decoded, float* words) {
  const int64_t filled = n / pair;
  for (int64_t i = filled; i < filled / kLanes * kLanes + kLanes; ++i) words[i] = 0.0f;
  const DType in_words = pair == 1 ? DType::kF32 : DType::kBF16;
  const int64_t size = element_size(in_words);
  if (type == in_words && element_stride == size) {
    copy_elements(row + start * size, size, n, words);
  } else if (pair == 1) {
    load_row(type, element_stride, row, start, n, words);
  } else {
    load_row(type, element_stride, row, start, n, decoded);
    table().type(DType::kBF16).from_float(decoded, words, n);
  }
}

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

// Columns left..right of a slab, packed if they cannot be read as they are: when they are deeper,
// they lie so that they would share cache sets.
Slab find_slab(const Columns& columns, int64_t left, int64_t right, int64_t start, int64_t k,
               int64_t pair, const ManyScratch& s) {
  const int64_t n = min64(kSlabWords * pair, k - start);
  const int64_t size = 4 / pair;
  const bool are_words =
      columns.type == (pair == 1 ? DType::kF32 : DType::kBF16) && columns.element_stride == size;
  const int64_t stride = right - left > 1 ? columns.x[left + 1] - columns.x[left] : 0;
  bool in_place = are_words && n == k && n % (pair * kLanes) == 0 && stride == k * size;
  for (int64_t c = left; c < right && in_place; ++c) {
    in_place = columns.x[c] == columns.x[left] + (c - left) * stride;
  }
  if (columns.packed != nullptr) {
    const char* slab = columns.packed + start / (kSlabWords * pair) * columns.packed_step;
    return {start, n, reinterpret_cast<const float*>(slab) + left * kColumnStride, kColumnStride};
  }
  if (in_place) return {start, n, reinterpret_cast<const float*>(columns.x[left]), stride / 4};
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

// Even shares of `n` columns, in whole runs.
int64_t columns_at_once(int64_t n, int64_t k, int64_t pair) {
  const int64_t stride = min64(kSlabWords, n_vectors(k, pair) * kLanes) + kPadding;
  const int64_t room = kWordsWide / kSlabWords * kColumnStride / stride;
  const int64_t most = min64(kMostColumns, room) / kRunColumns * kRunColumns;
  const int64_t blocks = (n + most - 1) / most;
  return ((n + blocks - 1) / blocks + kRunColumns - 1) / kRunColumns * kRunColumns;
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

void multiply_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                     char* scratch) {
  const auto panel = [&](int64_t row) {
    return reinterpret_cast<const float*>(w.data + row * w.row_stride);
  };
  if (columns.n == 1) {
    const FewScratch s(scratch, columns, w.k);
    const auto* x = reinterpret_cast<const float*>(columns.x[0]);
    if (!is_plain(columns)) {
      load_row(columns.type, columns.element_stride, columns.x[0], 0, w.k, s.columns);
      x = s.columns;
    }
    int64_t r = begin;
    for (; r + 2 * kPanelRows <= end; r += 2 * kPanelRows) {
      multiply_column<2>(panel(r), x, w.k, columns.finish, columns.out[0], r);
    }
    if (r < end) multiply_column<1>(panel(r), x, w.k, columns.finish, columns.out[0], r);
    return;
  }
  const ManyScratch s(scratch);
  const int64_t wide = columns_at_once(columns.n, w.k, 1);
  for (int64_t left = 0; left < columns.n; left += wide) {
    const int64_t right = min64(columns.n, left + wide);
    for (int64_t k = 0; k < w.k; k += kSlabWords) {
      const Slab slab = find_slab(columns, left, right, k, w.k, 1, s);
      for (int64_t i = 0; i < slab.n; i += kPanelDepth) {
        const int64_t depth = min64(kPanelDepth, slab.n - i);
        const Finish finish = k + i + depth == w.k ? columns.finish : Finish{};
        for (int64_t r = begin; r < end; r += kPanelRows) {
          const PanelPart part = {panel(r) + (k + i) * kPanelRows,
                                  slab.columns + i,
                                  slab.stride,
                                  depth,
                                  k + i == 0,
                                  finish};
          multiply_panel(part, right - left, columns.out + left, r);
        }
      }
    }
  }
}

}  // namespace

void multiply_floats(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                     char* scratch) {
  if (w.layout == Layout::kInterleaved) {
    multiply_panels(w, begin, end, columns, scratch);
  } else if (columns.n <= kFewColumns) {
    multiply_few(w, begin, end, columns, scratch);
  } else if (const Bf16Kernels* pairs = pair_kernels(w.type, columns); pairs != nullptr) {
    multiply_many(w, begin, end, columns, pairs->tiles, 2, scratch);
  } else {
    multiply_many(w, begin, end, columns, tile_kernels<MultiplyFloats>(), 1, scratch);
  }
}

bool are_floats_packed(const Weights& w, const Columns& columns) {
  const int64_t pair = pair_kernels(w.type, columns) != nullptr ? 2 : 1;
  return columns.n > kFewColumns && w.k > kSlabWords * pair;
}

size_t packed_float_bytes() { return kColumnStride * 4; }

int64_t packed_float_slabs(int64_t k) { return (k + kSlabWords - 1) / kSlabWords; }

void pack_floats(const Weights& w, const Columns& columns, int64_t step, char* packed) {
  const int64_t pair = pair_kernels(w.type, columns) != nullptr ? 2 : 1;
  // bf16 columns are words of pairs as they are, so that nothing is decoded
  float decoded[1];
  for (int64_t c = 0; c < columns.n; ++c) {
    char* at = packed + c * kColumnStride * 4;
    for (int64_t k = 0; k < w.k; k += kSlabWords * pair, at += step) {
      load_words(columns.type, columns.element_stride, columns.x[c], k,
                 min64(kSlabWords * pair, w.k - k), pair, decoded, reinterpret_cast<float*>(at));
    }
  }
}

size_t multiply_floats_scratch(const Columns& columns, int64_t k, Layout layout) {
  const size_t few = FewScratch(nullptr, columns, k).used;
  if (columns.n <= (layout == Layout::kInterleaved ? 1 : kFewColumns)) return few;
  const size_t many = ManyScratch(nullptr).used;
  return many > few ? many : few;
}

}  // namespace weft::WEFT_TARGET
