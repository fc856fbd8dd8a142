// Quantized weights times quantized activations:
//
//                 few columns                       many columns
//   plain rows    rows dotted as they are stored    panels of byte codes, transposed on the way
//   interleaved   panels read as they are stored    panels of byte codes
//                 (rows behind the last panel are plain rows)
//   levels        the same, of other blocks
//   lookup        tables (matmul_lookup.cpp)        panels of byte codes
//
// Each weight is read from memory once, whatever the number of columns.
#include "kernels/matmul/matmul_integers.h"

#include "kernels/matmul/matmul_floats.h"
#include "kernels/matmul/matmul_lookup.h"
#include "kernels/matmul/packed_columns.h"
#include "quants/lookup_layout.h"
#include "quants/quant_kernels.h"

namespace weft::WEFT_TARGET {

namespace {

// Up to this many columns, unpacking a panel costs more than it saves.
constexpr int64_t kFewColumns = 2;

// Columns are packed for the whole depth when they fit in L2 that way (packed_depth): then the
// weights are read row by row. Else they are packed as deep as a panel, and these stay in L2:
constexpr int64_t kColumnsWide = 85 * kTileColumns;

// Whether panels are read as they are stored.
bool in_panels(Layout layout) {
  return layout == Layout::kInterleaved || layout == Layout::kLevels;
}

// ---- few columns

void dot_rows(const QuantKernels& kernels, const Weights& w, int64_t begin, int64_t end,
              const Columns& columns, char* scratch) {
  // rows that stay in cache while the columns pass over them
  constexpr int64_t kRows = 16;
  auto* sums = reinterpret_cast<float*>(scratch);
  for (int64_t r = begin; r < end; r += kRows) {
    const int64_t rows = min64(kRows, end - r);
    for (int64_t c = 0; c < columns.n; ++c) {
      kernels.dot(w.data + r * w.row_stride, w.row_stride, rows, columns.x[c], w.k, w.scale, sums);
      std::memcpy(columns.out[c] + r, sums, static_cast<size_t>(rows) * 4);
    }
  }
}

// Where a run's results for the panel at `row` go; what pads the run goes to `rest`.
struct Outputs {
  float* at[kTileColumns];

  Outputs(const Columns& columns, int64_t first, int64_t n, int64_t row, float* rest) {
    for (int64_t c = 0; c < kTileColumns; ++c) {
      at[c] = c < n ? columns.out[first + c] + row : rest;
    }
  }
};

struct FewScratch {
  char* tiles;
  float* rest;
  size_t used;

  FewScratch(char* scratch, int64_t n, int64_t k) {
    Arena arena(scratch);
    tiles = arena.take<char>(packed_columns(n) * (k / 32) * kTileBytes);
    rest = arena.take<float>(kPanelRows);
    used = arena.used();
  }
};

// ---- many columns

struct ManyScratch {
  int64_t deep;  // chunks that are packed at a time
  char* tiles;
  Panel panel;
  float* rows;  // results of a panel with fewer than kPanelRows rows
  float* rest;
  size_t used;

  ManyScratch(char* scratch, const Columns& columns, int64_t k) {
    Arena arena(scratch);
    const int64_t wide = packed_columns(min64(columns.n, kColumnsWide));
    deep = packed_depth(wide, kChunksDeep * kTileBytes, k / 32, kChunksDeep);
    tiles = columns.packed != nullptr ? nullptr : arena.take<char>(wide * deep * kTileBytes);
    panel.q = arena.take<uint8_t>(kChunksDeep * 32 * kPanelRows * kCodeBytes);
    panel.scale = arena.take<float>(kChunksDeep * 2 * kPanelRows);
    panel.min = arena.take<float>(kChunksDeep * 2 * kPanelRows);
    panel.d = arena.take<float>(kChunksDeep / 8 * kPanelRows);
    panel.low_d = arena.take<float>(kChunksDeep / 8 * kPanelRows);
    rows = arena.take<float>(kTileColumns * kPanelRows);
    rest = arena.take<float>(kPanelRows);
    used = arena.used();
  }
};

// Packed columns; `deep` chunks of them.
struct Tiles {
  const char* data;
  int64_t deep;

  // The run of `n` columns from `column` on, from `chunk` on.
  const char* run(int64_t column, int64_t n, int64_t chunk) const {
    return data + (column * deep + chunk * run_columns(n)) * kTileBytes;
  }
};

// One panel times the packed columns left..right, from chunk number `chunk` of `tiles` on.
void multiply_panel(const QuantKernels& kernels, const Columns& columns, int64_t left,
                    int64_t right, int64_t row, int64_t rows, bool add, int64_t n_chunks,
                    const Tiles& tiles, int64_t chunk, float scale, const ManyScratch& s) {
  Panel behind = s.panel;  // the first run has asked for what is next
  behind.ahead_bytes = 0;
  for (int64_t c = left; c < right; c += kTileColumns) {
    const int64_t n = min64(kTileColumns, right - c);
    const char* run = tiles.run(c - left, n, chunk);
    Outputs out(columns, c, n, row, s.rest);
    if (rows == kPanelRows) {
      kernels.tile[tile_variant(n)](c == left ? s.panel : behind, run, n_chunks, add, scale,
                                    out.at);
      continue;
    }
    const auto bytes = static_cast<size_t>(rows) * 4;
    for (int64_t i = 0; i < n; ++i) {
      out.at[i] = s.rows + i * kPanelRows;
      if (add) std::memcpy(out.at[i], columns.out[c + i] + row, bytes);
    }
    kernels.tile[tile_variant(n)](s.panel, run, n_chunks, add, scale, out.at);
    for (int64_t i = 0; i < n; ++i) std::memcpy(columns.out[c + i] + row, out.at[i], bytes);
  }
}

// `next` is the distance from a row's piece to that which is unpacked next.
void unpack_panel(const QuantKernels& kernels, const Weights& w, int64_t row, int64_t rows,
                  int64_t first, int64_t n, int64_t next, Panel& panel) {
  const char* data = w.data + row * w.row_stride;
  panel.ahead_bytes = 0;
  if (w.layout == Layout::kLookup) {
    unpack_lookups(w.type, w.data + row * lookup_row_bytes(w.type, w.k), first, n, panel);
  } else if (in_panels(w.layout) && rows == kPanelRows) {
    kernels.unpack(data, first, n, panel);
    const int64_t bytes = kPanelRows * w.row_stride * n / (w.k / 32);
    const bool same_rows = next != kPanelRows * w.row_stride;
    panel.ahead = data + first * bytes / n + (same_rows ? bytes : next);
    panel.ahead_bytes = bytes;
  } else {
    kernels.pack(data, w.row_stride, rows, first, n, next, panel);
  }
}

bool has_tiles(DType type) { return quant_kernels(type).pack != nullptr; }

size_t max_size(size_t a, size_t b) { return a > b ? a : b; }

}  // namespace

bool is_integer_product(DType weights, DType columns) {
  const QuantKernels& kernels = quant_kernels(weights);
  return kernels.dot != nullptr && kernels.activation == columns;
}

// ---- the ways

void multiply_dots(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                   char* scratch) {
  dot_rows(quant_kernels(w.type), w, begin, end, columns, scratch);
}

void multiply_stored_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                            char* scratch) {
  const QuantKernels& kernels = quant_kernels(w.type);
  const FewScratch s(scratch, columns.n, w.k);
  const int64_t chunks = w.k / 32;
  pack_columns(kernels, columns, 0, columns.n, 0, chunks, chunks, Use::kStored, s.tiles);
  int64_t r = begin;
  for (; r + kPanelRows <= end; r += kPanelRows) {
    for (int64_t c = 0; c < columns.n; c += kTileColumns) {
      const int64_t n = min64(kTileColumns, columns.n - c);
      const Outputs out(columns, c, n, r, s.rest);
      kernels.columns[tile_variant(n)](w.data + r * w.row_stride, s.tiles + c * chunks * kTileBytes,
                                       chunks, w.scale, out.at);
    }
  }
  if (r < end) dot_rows(kernels, w, r, end, columns, scratch);
}

void multiply_tiles(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                    char* scratch) {
  const QuantKernels& kernels = quant_kernels(w.type);
  ManyScratch s(scratch, columns, w.k);
  TileUse tiles_of_thread;
  s.panel.tiles = &tiles_of_thread;
  const int64_t chunks = w.k / 32;
  const int64_t piece = 32 * kChunksDeep / unit_elements(w.type) * unit_bytes(w.type);
  // the piece that will be wanted next: of these rows, or of those below
  const int64_t next = s.deep > kChunksDeep ? piece : kPanelRows * w.row_stride;
  for (int64_t left = 0; left < columns.n; left += kColumnsWide) {
    const int64_t right = min64(columns.n, left + kColumnsWide);
    for (int64_t packed = 0; packed < chunks; packed += s.deep) {
      const int64_t packed_end = min64(packed + s.deep, chunks);
      Tiles tiles = {s.tiles, s.deep};
      if (columns.packed != nullptr) {
        tiles = {columns.packed + left * chunks * kTileBytes, chunks};
      } else {
        pack_columns(kernels, columns, left, right, packed, packed_end - packed, s.deep,
                     Use::kUnpacked, s.tiles);
      }
      for (int64_t r = begin; r < end; r += kPanelRows) {
        const int64_t rows = min64(kPanelRows, end - r);
        for (int64_t first = packed; first < packed_end; first += kChunksDeep) {
          const int64_t n = min64(kChunksDeep, packed_end - first);
          unpack_panel(kernels, w, r, rows, first, n, next, s.panel);
          multiply_panel(kernels, columns, left, right, r, rows, first > 0, n, tiles,
                         columns.packed != nullptr ? first : first - packed,
                         first + n == chunks ? w.scale : 1.0f, s);
        }
      }
    }
  }
}

// Without tiles any number of columns is few.
int64_t few_dots(DType weights) { return has_tiles(weights) ? kFewColumns : INT64_MAX; }
int64_t few_lookups(DType weights) { return has_tiles(weights) ? kFewLookups : INT64_MAX; }
int64_t few_panels(DType weights) { return quant_kernels(weights).few_columns; }

// ---- packed columns

namespace {

// Below this many elements packing them costs less than waiting for each other.
constexpr int64_t kWorthSharing = 1 << 17;

static_assert(kPackUnit % kTileColumns == 0);

size_t packed_bytes(int64_t n_columns, int64_t k) {
  return static_cast<size_t>(packed_columns(n_columns) * (k / 32) * kTileBytes);
}

}  // namespace

bool is_worth_sharing(const Weights& w, const Columns& columns) {
  return w.k * columns.n >= kWorthSharing;
}

constexpr SharedForm kPackedCodes = {
    .by_depth = false,
    .pays = is_worth_sharing,
    .bytes = packed_bytes,
    .find = [](char* shared, int64_t first, int64_t, int64_t k,
               Columns& columns) { columns.packed = shared + first * (k / 32) * kTileBytes; },
    .make =
        [](const Weights& w, const Columns& columns, int64_t, int64_t) {
          const int64_t chunks = w.k / 32;
          pack_columns(quant_kernels(w.type), columns, 0, columns.n, 0, chunks, chunks,
                       Use::kUnpacked, const_cast<char*>(columns.packed));
        }};

size_t multiply_integers_scratch(const Columns& columns, int64_t k, Layout layout) {
  size_t few = FewScratch(nullptr, min64(columns.n, kMostFewColumns), k).used;
  if (layout == Layout::kLookup) few = max_size(few, multiply_lookups_scratch(columns.n, k));
  if (columns.n <= (layout == Layout::kRows ? kFewColumns : 1)) return few;
  // fewer columns may be packed deeper
  const size_t many = ManyScratch(nullptr, columns, k).used + kPackedBytes;
  return max_size(many, few);
}

}  // namespace weft::WEFT_TARGET
