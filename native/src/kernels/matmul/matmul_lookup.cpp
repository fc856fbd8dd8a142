// Lookups of ternary weights: see quants/lookup_layout.h for the indices.
//
// A table has 16-bit sums, so that results are those of the multiplication, bit for bit: a block of
// 256 elements cannot overflow them. Lanes are the 32 rows of a panel.
#include "kernels/matmul/matmul_lookup.h"

#include "kernels/simd/lanes.h"
#include "kernels/simd/tables.h"
#include "quants/formats.h"
#include "quants/kept.h"
#include "quants/lookup_layout.h"
#include "quants/panel.h"

namespace weft::WEFT_TARGET {

namespace {

constexpr int64_t kTableBytes = sizeof(Words);
static_assert(kTableWords == kLookupEntries && kTableWords == kPanelRows);

// ---- tables

// Weight 0, 1 or 2 of every index: v = 9a + 3b + c with a, b, c of -1 0 +1.
constexpr Words kWeight[3] = {
    {0, 0, 0, 0, 0, 1,  1,  1,  1,  1,  1,  1,  1,  1,  0, 0,
     0, 0, 0, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 0},
    {0, 0, 1,  1,  1,  -1, -1, -1, 0, 0, 0, 1,  1,  1,  0, 0,
     0, 0, -1, -1, -1, 1,  1,  1,  0, 0, 0, -1, -1, -1, 0, 0},
    {0, 1,  -1, 0, 1,  -1, 0, 1,  -1, 0, 1,  -1, 0, 1,  0, 0,
     0, -1, 1,  0, -1, 1,  0, -1, 1,  0, -1, 1,  0, -1, 0, 0},
};

template <typename Activation>
void make_column(const char* x, int64_t first, int64_t last, int64_t n_columns, char* table) {
  const auto* row = reinterpret_cast<const Activation*>(x);
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const s8x32 codes = activation_codes(row, chunk);
    int8_t q[33] = {};
    std::memcpy(q, &codes, 32);
    for (int i = 0; i < kChunkLookups; ++i, table += n_columns * kTableBytes) {
      const Words sums =
          kWeight[0] * q[3 * i] + kWeight[1] * q[3 * i + 1] + kWeight[2] * q[3 * i + 2];
      std::memcpy(table, &sums, sizeof sums);
    }
  }
}

// ---- sums

// Where the 22 indices of a unit are, for 32 rows each.
struct Unit {
  Indices word[kUnitWords];

  // `ahead`: distance to what will be read later.
  explicit Unit(const char* at, int64_t ahead = 0) {
    constexpr int64_t kWord = sizeof(Indices);
#pragma GCC unroll 7
    for (int i = 0; i < kUnitWords; ++i) {
      word[i] = load_as<Indices>(at + i * kWord);
      __builtin_prefetch(at + i * kWord + ahead);
    }
  }

  // Only the low five bits count.
  Indices index(int i) const {
    if (i < 3 * kUnitWords) return word[i / 3] >> 5 * (i % 3);
    Indices last = word[0] >> 15;
    for (int b = 1; b < 5; ++b) {
      const auto down = static_cast<uint16_t>(15 - b), bit = static_cast<uint16_t>(1 << b);
      last |= word[b] >> down & bit;
    }
    return last;
  }
};
constexpr int64_t kUnitBytes = kUnitWords * 2 * kPanelRows;

// Sums of each column side by side, so that no addition has to wait for the one before it.
template <int kColumns>
inline constexpr int kSums = kColumns == 1 ? 4 : 2;

template <int kColumns>
struct Sums {
  Words part[kSums<kColumns>][kColumns] = {};

  // Adds the lookups of one chunk of a unit.
  inline void add(const Unit& unit, int half, const char* tables) {
#pragma GCC unroll 16
    for (int i = 0; i < kChunkLookups; ++i) {
      const Indices index = unit.index(half * kChunkLookups + i);
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        part[i % kSums<kColumns>][c] += find_sums(tables + (i * kColumns + c) * kTableBytes, index);
      }
    }
  }

  inline Words total(int c) const {
    Words sum = part[0][c] + part[1][c];
    if constexpr (kColumns == 1) sum += part[2][c] + part[3][c];
    return sum;
  }
};

constexpr int kParts = kPanelRows / kLanes;

template <int kColumns>
using Results = vf[kColumns][kParts];

// tq1_0, tq2_0: one scale a block of four units, of weights and activations.
template <int kColumns>
const char* add_scaled_block(const char* block, const char* tables, const Columns& columns,
                             int64_t b, int64_t ahead, Results<kColumns>& acc) {
  const char* words = block + 2 * kPanelRows;
  constexpr int64_t kStep = kChunkLookups * kColumns * kTableBytes;
  Words sum[kColumns] = {};
#pragma GCC unroll 1
  for (int u = 0; u < 4; ++u, words += kUnitBytes, tables += 2 * kStep) {
    const Unit unit(words, ahead);
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Sums<kColumns> sums;
      sums.add(unit, half, tables + half * kStep);
      for (int c = 0; c < kColumns; ++c) sum[c] += sums.total(c);
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    const float d = reinterpret_cast<const BlockQ8_K*>(columns.x[c])[b].d;
    for (int v = 0; v < kParts; ++v) {
      const vf scale = load_half(reinterpret_cast<const uint16_t*>(block) + v * kLanes);
      acc[c][v] = fma(sum_floats(sum[c], v), scale * splat(d), acc[c][v]);
    }
  }
  return words;
}

// i2_s: a scale for every chunk of the activations.
template <int kColumns>
const char* add_plain_unit(const char* words, const char* tables, const Columns& columns, int64_t u,
                           int64_t ahead, Results<kColumns>& acc) {
  const Unit unit(words, ahead);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Sums<kColumns> sums;
    sums.add(unit, half, tables);
    tables += kChunkLookups * kColumns * kTableBytes;
    for (int c = 0; c < kColumns; ++c) {
      const auto& x = reinterpret_cast<const BlockQ8_0*>(columns.x[c])[2 * u + half];
      const vf d = splat(half_to_float(x.d));
      const Words sum = sums.total(c);
      for (int v = 0; v < kParts; ++v) acc[c][v] = fma(sum_floats(sum, v), d, acc[c][v]);
    }
  }
  return words + kUnitBytes;
}

// A panel times chunks first..first + n of the depth, added to what `columns.out` holds from
// `row` on, unless they are the first; and scaled after the last ones.
struct Part {
  int64_t first;
  int64_t n;
  int64_t row;
  int64_t ahead;  // distance to what will be read after this
};

template <int kColumns>
void multiply_part(const Weights& w, const char* weights, const char* tables,
                   const Columns& columns, const Part& part) {
  vf acc[kColumns][kParts] = {};
  for (int c = 0; c < kColumns && part.first > 0; ++c) {
    for (int v = 0; v < kParts; ++v) acc[c][v] = load(columns.out[c] + part.row + v * kLanes);
  }
  const bool scaled = w.type != DType::kI2_S;
  const int64_t step = scaled ? 8 : 2;
  int64_t at = part.first / step;
  for (int64_t i = 0; i < part.n; i += step, ++at) {
    weights = scaled ? add_scaled_block<kColumns>(weights, tables, columns, at, part.ahead, acc)
                     : add_plain_unit<kColumns>(weights, tables, columns, at, part.ahead, acc);
    tables += step * kChunkLookups * kColumns * kTableBytes;
  }
  const float scale = part.first + part.n == w.k / 32 ? w.scale : 1.0f;
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kParts; ++v) {
      store(columns.out[c] + part.row + v * kLanes, acc[c][v] * splat(scale));
    }
  }
}

using MultiplyPart = void (*)(const Weights&, const char*, const char*, const Columns&,
                              const Part&);
constexpr MultiplyPart kMultiplyPart[kFewLookups] = {multiply_part<1>, multiply_part<2>,
                                                     multiply_part<3>, multiply_part<4>};

// Chunks of the depth whose tables stay in the first cache while the panels pass over them.
constexpr int64_t kDeep[kFewLookups] = {32, 16, 8, 8};

size_t lookup_table_bytes(int64_t n_columns, int64_t k) {
  return static_cast<size_t>(n_columns * (k / 32) * kChunkLookups * kTableBytes);
}

// The panels of rows begin..end, part by part of the depth.
void multiply_panels(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                     const char* tables) {
  const int64_t chunks = w.k / 32;
  const int64_t deep = kDeep[columns.n - 1];
  const int64_t row_bytes = lookup_row_bytes(w.type, w.k);
  for (int64_t first = 0; first < chunks; first += deep) {
    const int64_t n = min64(deep, chunks - first);
    const int64_t offset = lookup_row_bytes(w.type, first * 32) * kPanelRows;
    const char* part_tables = tables + lookup_table_bytes(columns.n, first * 32);
    for (int64_t r = begin; r < end; r += kPanelRows) {
      const char* weights = w.data + r * row_bytes + offset;
      const Part part = {first, n, r, kPanelRows * row_bytes};
      kMultiplyPart[columns.n - 1](w, weights, part_tables, columns, part);
    }
  }
}

// The tables of at most kFewLookups columns, chunks first..last of the depth, into their place in
// `tables`.
void make_tables(const Columns& columns, int64_t first, int64_t last, char* tables) {
  if (!kLooksUp) return;
  char* at = tables + lookup_table_bytes(columns.n, first * 32);
  for (int64_t c = 0; c < columns.n; ++c, at += kTableBytes) {
    if (columns.type == DType::kQ8_K) {
      make_column<BlockQ8_K>(columns.x[c], first, last, columns.n, at);
    } else {
      make_column<BlockQ8_0>(columns.x[c], first, last, columns.n, at);
    }
  }
}

// ---- codes again

// The three codes of every index, in bytes.
struct Triples {
  uint32_t of[kLookupEntries];

  constexpr Triples() : of() {
    for (int i = 0; i < kLookupEntries; ++i) {
      const int size = i % kLookupNegative;
      const auto value = static_cast<uint32_t>(13 + (i < kLookupNegative ? size : -size));
      of[i] = value / 9 % 3 | (value / 3 % 3) << 8 | (value % 3) << 16;
    }
  }
};
constexpr Triples kTriples;

// Of rows v * kLanes..
inline vi find_codes(const Indices& index, int v) {
  typedef uint16_t Part __attribute__((vector_size(2 * kLanes)));
  Part part;
  std::memcpy(&part, reinterpret_cast<const char*>(&index) + v * 2 * kLanes, sizeof part);
  const vi at = __builtin_convertvector(part, vi) & (kLookupEntries - 1);
  return lookup32(kTriples.of, at);
}

// Rows v * kLanes.. of a chunk: threes of codes become fours.
inline void unpack_chunk(const Unit& unit, int half, int v, uint8_t* q) {
  vi t[kChunkLookups + 1];
#pragma GCC unroll 16
  for (int i = 0; i < kChunkLookups; ++i) {
    t[i] = find_codes(unit.index(half * kChunkLookups + i), v);
  }
  t[kChunkLookups] = vi{};
  vi w[9];
#pragma GCC unroll 3
  for (int i = 0; i < 3; ++i) {
    w[3 * i] = t[4 * i] | t[4 * i + 1] << 24;
    w[3 * i + 1] = t[4 * i + 1] >> 8 | t[4 * i + 2] << 16;
    w[3 * i + 2] = t[4 * i + 2] >> 16 | t[4 * i + 3] << 8;
  }
  vi words[8];
  std::memcpy(words, w, sizeof words);
  put_bytes(words, q + panel_place(v * kLanes));
}

}  // namespace

constexpr SharedForm kLookupTables = {
    .by_depth = true,
    .pays = [](const Weights&,
               const Columns& columns) { return columns.n > 0 && columns.n <= kFewLookups; },
    .bytes = lookup_table_bytes,
    .find = [](char* shared, int64_t, int64_t, int64_t,
               Columns& columns) { columns.tables = shared; },
    .make =
        [](const Weights& w, const Columns& columns, int64_t begin, int64_t end) {
          make_tables(columns, begin * kPartChunks, min64(end * kPartChunks, w.k / 32),
                      const_cast<char*>(columns.tables));
        }};

void multiply_lookups(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                      char* scratch) {
  if (!kLooksUp) return;
  for (int64_t c = 0; c < columns.n; c += kFewLookups) {
    Columns few = columns;
    few.x += c;
    few.out += c;
    few.n = min64(kFewLookups, columns.n - c);
    if (columns.tables == nullptr) make_tables(few, 0, w.k / 32, scratch);
    const char* tables = columns.tables == nullptr ? scratch : columns.tables;
    multiply_panels(w, begin, end, few, tables);
  }
}

size_t multiply_lookups_scratch(int64_t n_columns, int64_t k) {
  return lookup_table_bytes(min64(n_columns, kFewLookups), k);
}

void unpack_lookups(DType type, const char* w, int64_t first, int64_t n, const Panel& panel) {
  if (!kLooksUp) return;
  const bool scaled = type != DType::kI2_S;
  const int64_t per_block = lookup_block(type) / 32;
  const int64_t block_bytes = lookup_row_bytes(type, lookup_block(type)) * kPanelRows;
  for (int64_t chunk = first; chunk < first + n; ++chunk) {
    const char* block = w + chunk / per_block * block_bytes;
    float* scales = panel.scale + (chunk - first) * kPanelRows;
    const char* words = block + (scaled ? 2 * kPanelRows : 0);
    const Unit unit(words + chunk % per_block / 2 * kUnitBytes);
    uint8_t* q = panel.q + (chunk - first) * 32 * kPanelRows;
    for (int v = 0; v < kPanelRows; v += kLanes) {
      const vf d = scaled ? load_half(reinterpret_cast<const uint16_t*>(block) + v) : splat(1.0f);
      store(scales + v, d);
    }
    for (int v = 0; v < kParts; ++v) {
      if (chunk % 2 == 0) {
        unpack_chunk(unit, 0, v, q);
      } else {
        unpack_chunk(unit, 1, v, q);
      }
    }
  }
}

}  // namespace weft::WEFT_TARGET
