// Products of float weights, and of any weights decoded to floats: a few columns by dot products of
// rows (float_dots.h), more by tiles (float_tile.h). Both give the same bits.
//
// Columns of bf16 are multiplied by the processor's bf16 dot products where it has them. With more
// than a few columns, weights of f16 and f32 are rounded to bf16 for it while they are staged.
#include "kernels/matmul_floats.h"

#include "kernels/matmul_bf16.h"

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
      FewRows rows = {data + k * w.element_stride, w.row_stride, n_rows};
      if (!is_row) {
        rows = {s.decoded, kSlabWords * 4, n_rows};
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

// Columns that are packed at a time: a slab of them stays in the second-level cache.
constexpr int64_t kColumnsWide = kLanes == 16 ? 96 : 48;
static_assert(kColumnsWide % kRunColumns == 0);
static_assert(kGroupRows % kTileRows == 0);

// Packed columns are padded so that they do not share cache sets.
constexpr int64_t kColumnStride = kSlabWords + 16;

struct ManyScratch {
  float* columns;  // [column][kColumnStride]
  float* weights;  // [kTileRows][kWeightStride]
  float* decoded;  // floats of one row that become words
  float* lanes;    // [column][kTileRows] vectors
  float* sums;     // [column][kGroupRows]
  size_t used;

  explicit ManyScratch(char* scratch) {
    Arena arena(scratch);
    columns = arena.take<float>(kColumnsWide * kColumnStride);
    weights = arena.take<float>(kTileRows * kWeightStride);
    decoded = arena.take<float>(2 * kSlabWords);
    lanes = arena.take<float>(kColumnsWide * kTileRows * kLanes);
    sums = arena.take<float>(kColumnsWide * kGroupRows);
    used = arena.used();
  }
};

// Elements start..start+n of a row as words, and zeros that fill a vector; `decoded` has room for n
// floats.
void load_words(DType type, int64_t element_stride, const char* row, int64_t start, int64_t n,
                int64_t pair, float* decoded, float* words) {
  const int64_t whole = (n / pair + kLanes - 1) / kLanes * kLanes;
  const int64_t filled = n / pair;
  std::memset(words + filled, 0, static_cast<size_t>(whole + kLanes - filled) * 4);
  if (pair == 1) {
    load_row(type, element_stride, row, start, n, words);
  } else if (type == DType::kBF16 && element_stride == 2) {
    std::memcpy(words, row + 2 * start, static_cast<size_t>(2 * n));
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

// Asks for `bytes` bytes of kTileRows rows, a part of them before each of `n_runs` runs.
class Ahead {
 public:
  Ahead(const char* rows, int64_t stride, int64_t bytes, int64_t n_runs)
      : rows_(rows), stride_(stride), step_((bytes / n_runs + 64) / 64 * 64), left_(bytes) {}
  void fetch() {
    if (left_ <= 0) return;
    for (int64_t line = 0; line < step_; line += 64) {
      for (int r = 0; r < kTileRows; ++r) __builtin_prefetch(rows_ + r * stride_ + line, 0, 2);
    }
    rows_ += step_;
    left_ -= step_;
  }

 private:
  const char* rows_;
  int64_t stride_;
  int64_t step_;
  int64_t left_;
};

// Elements of a slab, and where it begins.
struct Slab {
  int64_t start;
  int64_t n;
};

// A tile of rows times a slab of the packed columns left..right.
void multiply_slab(const Weights& w, int64_t row, int64_t rows, const Slab& slab, int64_t n_columns,
                   const TileKernels& kernels, int64_t pair, const ManyScratch& s, float* sums) {
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
    const char* next = w.data + row * w.row_stride + start / unit_elements(w.type) * w.element_stride;
    Ahead ahead(last ? next - k / step * piece + kTileRows * w.row_stride : next + piece,
                w.row_stride, piece, runs);
    const TilePart part = {n_vectors(n, pair), k == 0, last};
    for (int64_t c = 0; c < n_columns; c += kRunColumns) {
      ahead.fetch();
      kernels.of[min64(kRunColumns, n_columns - c) - 1](
          s.weights, s.columns + c * kColumnStride + k / pair, kColumnStride, part,
          s.lanes + c * kTileRows * kLanes, sums + c * kGroupRows);
    }
  }
}

void multiply_many(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                   const TileKernels& kernels, int64_t pair, char* scratch) {
  const ManyScratch s(scratch);
  const int64_t blocks = (columns.n + kColumnsWide - 1) / kColumnsWide;
  const int64_t wide =
      ((columns.n + blocks - 1) / blocks + kRunColumns - 1) / kRunColumns * kRunColumns;
  for (int64_t left = 0; left < columns.n; left += wide) {
    const int64_t right = min64(columns.n, left + wide);
    for (int64_t k = 0; k < w.k; k += kSlabWords * pair) {
      const Slab slab = {k, min64(kSlabWords * pair, w.k - k)};
      for (int64_t c = left; c < right; ++c) {
        load_words(columns.type, columns.element_stride, columns.x[c], k, slab.n, pair, s.decoded,
                   s.columns + (c - left) * kColumnStride);
      }
      const float scale = k + slab.n == w.k ? w.scale : 1.0f;
      for (int64_t r = begin; r < end; r += kTileRows) {
        const int64_t in_group = (r - begin) % kGroupRows;
        multiply_slab(w, r, min64(kTileRows, end - r), slab, right - left, kernels, pair, s,
                      s.sums + in_group);
        const int64_t done = min64(in_group + kTileRows, end - r + in_group);
        if (done == kGroupRows || r + kTileRows >= end) {
          put_group(s.sums, done, columns, left, right, k > 0, scale, r - in_group);
        }
      }
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
  const size_t few = FewScratch(nullptr, columns, k).used;
  if (columns.n <= kFewColumns) return few;
  const size_t many = ManyScratch(nullptr).used;
  return many > few ? many : few;
}

}  // namespace weft::WEFT_TARGET
