// How a product is computed:
//
//               few columns                        many columns
//   quantized   rows dotted as they are stored     panels of byte codes (quants/panels.h)
//   floats      rows dotted, decoded on the way    panels of floats
//               (both in matmul_floats.cpp)
//
// "Quantized" is a quantized weight with activations of its companion type. Any other pair of types
// goes through floats, exactly decoded. Each weight row is read from memory once.
#include "kernels/matmul_engine.h"

#include "kernels/matmul_floats.h"
#include "quants/formats.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

namespace {

// Up to this many columns, unpacking a panel costs more than it saves.
constexpr int64_t kFewIntegerColumns = 2;

// Panels are unpacked this deep. Columns are packed for the whole depth when they fit in L2 that
// way (packed_depth): then the weights are read row by row. Else they are packed as deep as a
// panel.
constexpr int64_t kChunksDeep = 16;

// Columns whose packed form, as deep as a panel, stays in L2.
constexpr int64_t kColumnsWide = 512;

bool is_integer_product(DType weights, DType columns) {
  const QuantKernels& kernels = quant_kernels(weights);
  return kernels.dot != nullptr && kernels.activation == columns;
}

// ---- integers, few columns

void dot_quantized(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                   char* scratch) {
  // rows that stay in cache while the columns pass over them
  constexpr int64_t kRows = 16;
  const QuantKernels& kernels = quant_kernels(w.type);
  auto* sums = reinterpret_cast<float*>(scratch);
  for (int64_t r = begin; r < end; r += kRows) {
    const int64_t rows = min64(kRows, end - r);
    for (int64_t c = 0; c < columns.n; ++c) {
      kernels.dot(w.data + r * w.row_stride, w.row_stride, rows, columns.x[c], w.k, w.scale, sums);
      std::memcpy(columns.out[c] + r, sums, static_cast<size_t>(rows) * 4);
    }
  }
}

// ---- integers, panels

// The sums of 32 codes that a tile carries: of each group, times -zero or times d.
void put_sums(const QuantKernels& kernels, const int32_t* sixteens, ActivationTile& tile, int c) {
  for (int g = 0; g < kernels.groups; ++g) {
    const int32_t sum = kernels.groups == 2 ? sixteens[g] : sixteens[0] + sixteens[1];
    if (kernels.has_min) {
      tile.d_sum[g][c] = tile.d[c] * static_cast<float>(sum);
    } else {
      tile.correction[g][c] = -kernels.zero * sum;
    }
  }
}

template <typename Activation>
void pack_activation(const QuantKernels& kernels, const char* x, int64_t first, int64_t n_chunks,
                     ActivationTile* tiles, int c) {
  const auto* row = reinterpret_cast<const Activation*>(x);
  for (int64_t i = 0; i < n_chunks; ++i) {
    ActivationTile& tile = tiles[i];
    const s8x32 q = activation_codes(row, first + i);
    std::memcpy(tile.q[c], &q, sizeof q);
    tile.d[c] = activation_scale(row, first + i);
    int32_t sums[2];
    if constexpr (sizeof(Activation) == sizeof(BlockQ8_K)) {
      int16_t pair[2];
      std::memcpy(pair, row[(first + i) / 8].bsums + (first + i) % 8 * 2, sizeof pair);
      sums[0] = pair[0];
      sums[1] = pair[1];
    } else {
      const i32x8 s = dot_bytes(i32x8{}, splat8(1), q);
      sums[0] = s[0] + s[1] + s[2] + s[3];
      sums[1] = s[4] + s[5] + s[6] + s[7];
    }
    put_sums(kernels, sums, tile, c);
  }
}

// Columns begin..end, each tile of them `stride` chunks apart.
void pack_activations(const QuantKernels& kernels, const Columns& columns, int64_t begin,
                      int64_t end, int64_t first, int64_t n_chunks, int64_t stride,
                      ActivationTile* tiles) {
  for (int64_t c = begin; c < end; ++c) {
    ActivationTile* tile = tiles + (c - begin) / kTileColumns * stride;
    const int lane = static_cast<int>((c - begin) % kTileColumns);
    if (kernels.activation == DType::kQ8_0) {
      pack_activation<BlockQ8_0>(kernels, columns.x[c], first, n_chunks, tile, lane);
    } else if (kernels.activation == DType::kQ8_1) {
      pack_activation<BlockQ8_1>(kernels, columns.x[c], first, n_chunks, tile, lane);
    } else {
      pack_activation<BlockQ8_K>(kernels, columns.x[c], first, n_chunks, tile, lane);
    }
  }
}

struct IntegerScratch {
  int64_t deep;  // chunks that are packed at a time
  ActivationTile* tiles;
  Panel panel;
  float* out;
  size_t used;

  IntegerScratch(char* scratch, int64_t n, int64_t k) {
    Arena arena(scratch);
    const int64_t n_tiles = (min64(n, kColumnsWide) + kTileColumns - 1) / kTileColumns;
    const int64_t bytes = kChunksDeep * static_cast<int64_t>(sizeof(ActivationTile));
    deep = packed_depth(n_tiles, bytes, k / 32, kChunksDeep);
    tiles = arena.take<ActivationTile>(n_tiles * deep);
    panel.q = arena.take<uint8_t>(kChunksDeep * 32 * kPanelRows);
    panel.scale = arena.take<float>(kChunksDeep * 2 * kPanelRows);
    panel.min = arena.take<float>(kChunksDeep * 2 * kPanelRows);
    out = arena.take<float>(kTileColumns * kPanelRows);
    used = arena.used();
  }
};

// One panel times the packed columns left..right; `tiles` are those of the panel's first chunk.
void multiply_panel(const QuantKernels& kernels, const Columns& columns, int64_t left,
                    int64_t right, int64_t row, int64_t rows, int64_t first, int64_t n_chunks,
                    const ActivationTile* tiles, const IntegerScratch& s) {
  for (int64_t c = left; c < right; c += kTileColumns, tiles += s.deep) {
    const int64_t n = min64(kTileColumns, right - c);
    const int variant = n > kTileColumns / 2 ? 0 : n > kTileColumns / 4 ? 1 : 2;
    kernels.tile[variant](s.panel, tiles, n_chunks, s.out);
    for (int64_t i = 0; i < n; ++i) {
      put_rows(s.out + i * kPanelRows, rows, 1.0f, first > 0, columns.out[c + i] + row);
    }
  }
}

void multiply_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                     char* scratch) {
  const QuantKernels& kernels = quant_kernels(w.type);
  const IntegerScratch s(scratch, columns.n, w.k);
  const int64_t chunks = w.k / 32;
  const int64_t piece = 32 * kChunksDeep / unit_elements(w.type) * unit_bytes(w.type);
  for (int64_t left = 0; left < columns.n; left += kColumnsWide) {
    const int64_t right = min64(columns.n, left + kColumnsWide);
    for (int64_t packed = 0; packed < chunks; packed += s.deep) {
      const int64_t packed_end = min64(packed + s.deep, chunks);
      pack_activations(kernels, columns, left, right, packed, packed_end - packed, s.deep, s.tiles);
      for (int64_t r = begin; r < end; r += kPanelRows) {
        const int64_t rows = min64(kPanelRows, end - r);
        for (int64_t first = packed; first < packed_end; first += kChunksDeep) {
          const int64_t n = min64(kChunksDeep, packed_end - first);
          // the piece that will be wanted next: of these rows, or of those below
          const int64_t next = s.deep > kChunksDeep ? piece : kPanelRows * w.row_stride;
          kernels.pack(w.data + r * w.row_stride, w.row_stride, rows, first, n, w.scale, next,
                       s.panel);
          multiply_panel(kernels, columns, left, right, r, rows, first, n,
                         s.tiles + (first - packed), s);
        }
      }
    }
  }
}

bool has_panels(DType weights) { return quant_kernels(weights).pack != nullptr; }

}  // namespace

void multiply(const Weights& w, int64_t begin, int64_t end, const Columns& columns, char* scratch) {
  const bool integers = is_integer_product(w.type, columns.type);
  if (columns.n == 0 || begin >= end) return;
  if (w.k == 0) {
    for (int64_t c = 0; c < columns.n; ++c) {
      std::memset(columns.out[c] + begin, 0, static_cast<size_t>(end - begin) * 4);
    }
  } else if (integers && columns.n <= kFewIntegerColumns) {
    dot_quantized(w, begin, end, columns, scratch);
  } else if (integers && has_panels(w.type)) {
    multiply_panels(w, begin, end, columns, scratch);
  } else {
    multiply_floats(w, begin, end, columns, scratch);
  }
}

size_t multiply_scratch(DType weights, const Columns& columns, int64_t k) {
  const bool integers = is_integer_product(weights, columns.type) && has_panels(weights);
  if (!integers) return multiply_floats_scratch(columns, k);
  if (columns.n <= kFewIntegerColumns) return 64;
  // fewer columns may be packed deeper
  return IntegerScratch(nullptr, columns.n, k).used + kPackedBytes;
}

const char* check_product(const Tensor& weights, const Tensor& columns, const Tensor& dst) {
  if (table().type(weights.type).to_float == nullptr) return "the weight type has no decoder";
  if (table().type(columns.type).to_float == nullptr || columns.type == DType::kI2_S) {
    return "the second source must be floats or quantized activations";
  }
  if (weights.ne[0] != columns.ne[0]) return "rows of the two sources differ in length";
  if (dst.type != DType::kF32 || dst.nb[0] != 4) return "the result must be f32 rows";
  if (weights.type == DType::kI2_S && !is_contiguous(weights)) {
    return "i2_s weights must be a whole tensor";
  }
  return nullptr;
}

}  // namespace weft::WEFT_TARGET
