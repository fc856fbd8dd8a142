// Products of float weights, and of any weights decoded to floats.
#include "kernels/matmul_floats.h"

#include "kernels/matmul_f32.h"

namespace weft::WEFT_TARGET {

namespace {

// Up to this many columns, unpacking a panel costs more than it saves.
constexpr int64_t kFewColumns = 6;

// Floats of a weight row that are decoded at a time for a dot product.
constexpr int64_t kDecoded = 1024;

// Columns whose packed form, as deep as a panel, stays in L2.
constexpr int64_t kFloatColumnsWide = kTileFloats * 40;

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

// ---- panels

struct FloatScratch {
  int64_t deep;  // elements that are packed at a time, kDepth of all columns after another
  int64_t slab;  // floats of kDepth elements of all columns
  float* tiles;
  float* panel;
  float* rows;
  float* out;
  size_t used;

  FloatScratch(char* scratch, int64_t n, int64_t k) {
    Arena arena(scratch);
    const int64_t n_tiles = (min64(n, kFloatColumnsWide) + kTileFloats - 1) / kTileFloats;
    deep = packed_depth(n_tiles, kTileFloats * kTileStride * 4, k, kDepth);
    slab = n_tiles * kTileFloats * kTileStride;
    tiles = arena.take<float>(deep / kDepth * slab);
    panel = arena.take<float>(kDepth * kPanelFloats);
    rows = arena.take<float>(8 * kDepth);
    out = arena.take<float>(kTileFloats * kPanelFloats);
    used = arena.used();
  }
};

// `next`: distance in bytes to the piece of a row that will be wanted after this one.
void pack_weights(const Weights& w, int64_t row, int64_t rows, int64_t start, int64_t deep,
                  int64_t next, float* eight, float* panel) {
  const int64_t bytes = deep / unit_elements(w.type) * unit_bytes(w.type);
  const char* data = w.data + start / unit_elements(w.type) * w.element_stride;
  for (int at = 0; at < kPanelFloats; at += 8) {
    for (int r = 0; r < 8; ++r) {
      // rows beyond the last repeat it; their results are not used
      const int64_t from = row + min64(at + r, rows - 1);
      const char* ahead = data + from * w.row_stride + next;
      for (int64_t line = 0; line < bytes; line += 64) __builtin_prefetch(ahead + line, 0, 2);
      load_row(w.type, w.element_stride, w.data + from * w.row_stride, start, deep,
               eight + r * kDepth);
    }
    pack_eight(eight, kDepth, deep, panel, at);
  }
}

// Columns left..right, elements start..end, in slabs of kDepth.
void pack_columns(const Columns& columns, int64_t left, int64_t right, int64_t start, int64_t end,
                  const FloatScratch& s) {
  float* slab = s.tiles;
  for (int64_t k = start; k < end; k += kDepth, slab += s.slab) {
    for (int64_t c = left; c < right; ++c) {
      load_row(columns.type, columns.element_stride, columns.x[c], k, min64(kDepth, end - k),
               slab + (c - left) * kTileStride);
    }
  }
}

void multiply_float_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                           char* scratch) {
  const FloatScratch s(scratch, columns.n, w.k);
  const int64_t piece = kDepth / unit_elements(w.type) * w.element_stride;
  const int64_t next = s.deep > kDepth ? piece : kPanelFloats * w.row_stride;
  for (int64_t left = 0; left < columns.n; left += kFloatColumnsWide) {
    const int64_t right = min64(columns.n, left + kFloatColumnsWide);
    for (int64_t packed = 0; packed < w.k; packed += s.deep) {
      const int64_t packed_end = min64(packed + s.deep, w.k);
      pack_columns(columns, left, right, packed, packed_end, s);
      for (int64_t r = begin; r < end; r += kPanelFloats) {
        const int64_t rows = min64(kPanelFloats, end - r);
        const float* slab = s.tiles;
        for (int64_t k = packed; k < packed_end; k += kDepth, slab += s.slab) {
          const int64_t deep = min64(kDepth, packed_end - k);
          pack_weights(w, r, rows, k, deep, next, s.rows, s.panel);
          for (int64_t c = left; c < right; c += kTileFloats) {
            const int64_t n = min64(kTileFloats, right - c);
            multiply_columns_f32(s.panel, slab + (c - left) * kTileStride, deep, n, s.out);
            for (int64_t i = 0; i < n; ++i) {
              put_rows(s.out + i * kPanelFloats, rows, w.scale, k > 0, columns.out[c + i] + r);
            }
          }
        }
      }
    }
  }
}

}  // namespace

void multiply_floats(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                     char* scratch) {
  if (columns.n <= kFewColumns) {
    dot_decoded(w, begin, end, columns, scratch);
  } else {
    multiply_float_panels(w, begin, end, columns, scratch);
  }
}

size_t multiply_floats_scratch(const Columns& columns, int64_t k) {
  Arena few(nullptr);
  few.take<float>(4 * kDecoded);
  if (!is_plain(columns)) {
    for (int64_t c = 0; c < min64(columns.n, kFewColumns); ++c) few.take<float>(k);
  }
  if (columns.n <= kFewColumns) return few.used();
  // fewer columns may be packed deeper
  const size_t many = FloatScratch(nullptr, columns.n, k).used + kPackedBytes;
  return many > few.used() ? many : few.used();
}

}  // namespace weft::WEFT_TARGET
