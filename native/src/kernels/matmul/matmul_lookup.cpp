// Lookups of ternary weights: see quants/lookup_layout.h for the indices.
//
// A table has 16-bit sums, so that results are those of the multiplication, bit for bit: a block of
// 256 elements cannot overflow them. Lanes are the 32 rows of a panel.
#include "kernels/matmul/matmul_lookup.h"

#include "quants/formats.h"
#include "quants/kept.h"
#include "quants/lookup_layout.h"
#include "quants/panels.h"

namespace weft::WEFT_TARGET {

namespace {

typedef int16_t Words __attribute__((vector_size(2 * kPanelRows)));
typedef uint16_t Indices __attribute__((vector_size(2 * kPanelRows)));
constexpr int64_t kTableBytes = 2 * kLookupEntries;
static_assert(sizeof(Words) == kTableBytes);

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

// As find() reads it: AVX2 shuffles bytes, so that low bytes are apart from high ones, and needs
// no entries for the negative.
void put_table(Words sums, char* table) {
#if defined(__AVX2__) && !defined(__AVX512BW__)
  for (int i = 0; i < 16; ++i) {
    table[i] = static_cast<char>(sums[i]);
    table[16 + i] = static_cast<char>(sums[i] >> 8);
  }
#else
  std::memcpy(table, &sums, sizeof sums);
#endif
}

// Of three elements, by index. Only the low five bits of a word count.
inline Words find(const char* table, Indices index) {
#if defined(__AVX512BW__)
  return reinterpret_cast<Words>(
      _mm512_permutexvar_epi16(reinterpret_cast<__m512i>(index), _mm512_loadu_si512(table)));
#elif defined(__AVX2__)
  const __m256i low = _mm256_broadcastsi128_si256(load_as<__m128i>(table));
  const __m256i high = _mm256_broadcastsi128_si256(load_as<__m128i>(table + 16));
  __m256i parts[2];
  std::memcpy(parts, &index, sizeof parts);
  for (__m256i& part : parts) {
    const __m256i entry = _mm256_and_si256(part, _mm256_set1_epi16(15));
    // a byte with its top bit set becomes 0
    const __m256i to_low = _mm256_or_si256(entry, _mm256_set1_epi16(-0x8000));
    const __m256i to_high = _mm256_or_si256(_mm256_slli_epi16(entry, 8), _mm256_set1_epi16(0x80));
    const __m256i sum =
        _mm256_or_si256(_mm256_shuffle_epi8(low, to_low), _mm256_shuffle_epi8(high, to_high));
    const __m256i negative = _mm256_srai_epi16(_mm256_slli_epi16(part, 11), 15);
    part = _mm256_sub_epi16(_mm256_xor_si256(sum, negative), negative);
  }
  Words found;
  std::memcpy(&found, parts, sizeof found);
  return found;
#elif defined(WEFT_NEON)
  const uint8x16x4_t all = vld1q_u8_x4(reinterpret_cast<const uint8_t*>(table));
  uint16x8_t parts[4];
  std::memcpy(parts, &index, sizeof parts);
  for (uint16x8_t& part : parts) {
    // the places of both bytes of entry i: 2 i and 2 i + 1
    const uint16x8_t places =
        vmlaq_n_u16(vdupq_n_u16(0x0100), vandq_u16(part, vdupq_n_u16(31)), 0x0202);
    part = vreinterpretq_u16_u8(vqtbl4q_u8(all, vreinterpretq_u8_u16(places)));
  }
  Words found;
  std::memcpy(&found, parts, sizeof found);
  return found;
#else
  int16_t entries[kLookupEntries];
  std::memcpy(entries, table, sizeof entries);
  uint16_t at[kPanelRows];
  std::memcpy(at, &index, sizeof at);
  int16_t found[kPanelRows];
  for (int r = 0; r < kPanelRows; ++r) found[r] = entries[at[r] & 31];
  return load_as<Words>(found);
#endif
}

template <typename Activation>
void make_column(const char* x, int64_t first, int64_t last, int64_t n_columns, char* table) {
  const auto* row = reinterpret_cast<const Activation*>(x);
  for (int64_t chunk = first; chunk < last; ++chunk) {
    const s8x32 codes = activation_codes(row, chunk);
    int8_t q[33] = {};
    std::memcpy(q, &codes, 32);
    for (int i = 0; i < kChunkLookups; ++i, table += n_columns * kTableBytes) {
      put_table(kWeight[0] * q[3 * i] + kWeight[1] * q[3 * i + 1] + kWeight[2] * q[3 * i + 2],
                table);
    }
  }
}

// ---- sums

// Where the 22 indices of a unit are, for 32 rows each.
struct Unit {
  Indices word[kUnitWords];

  // `ahead`: distance to what will be read later.
  explicit Unit(const char* at, int64_t ahead = 0) {
#pragma GCC unroll 7
    for (int i = 0; i < kUnitWords; ++i) {
      word[i] = load_as<Indices>(at + i * sizeof(Indices));
      __builtin_prefetch(at + i * sizeof(Indices) + ahead);
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
        part[i % kSums<kColumns>][c] += find(tables + (i * kColumns + c) * kTableBytes, index);
      }
    }
  }

  inline Words total(int c) const {
    Words sum = part[0][c] + part[1][c];
    if constexpr (kColumns == 1) sum += part[2][c] + part[3][c];
    return sum;
  }
};

// Rows v * kLanes.. of the sums as floats.
inline vf to_floats(const Words& sum, int v) {
#if defined(__AVX512BW__)
  const auto all = reinterpret_cast<__m512i>(sum);
  const __m256i half = v == 0 ? _mm512_castsi512_si256(all) : _mm512_extracti64x4_epi64(all, 1);
  return reinterpret_cast<vf>(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(half)));
#else
  typedef int16_t Part __attribute__((vector_size(2 * kLanes)));
  Part part;
  std::memcpy(&part, reinterpret_cast<const char*>(&sum) + v * 2 * kLanes, sizeof part);
  return __builtin_convertvector(part, vf);
#endif
}

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
      acc[c][v] = fma(to_floats(sum[c], v), scale * splat(d), acc[c][v]);
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
      for (int v = 0; v < kParts; ++v) acc[c][v] = fma(to_floats(sum, v), d, acc[c][v]);
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
#if defined(__AVX512F__)
  return reinterpret_cast<vi>(_mm512_permutex2var_epi32(_mm512_loadu_si512(kTriples.of),
                                                        reinterpret_cast<__m512i>(at),
                                                        _mm512_loadu_si512(kTriples.of + 16)));
#elif defined(__AVX2__)
  return reinterpret_cast<vi>(_mm256_i32gather_epi32(reinterpret_cast<const int*>(kTriples.of),
                                                     reinterpret_cast<__m256i>(at), 4));
#elif defined(WEFT_NEON)
  const auto* table = reinterpret_cast<const uint8_t*>(kTriples.of);
  const uint8x16x4_t low = vld1q_u8_x4(table), high = vld1q_u8_x4(table + 64);
  const uint8x16_t places = vreinterpretq_u8_s32(at * 0x04040404 + 0x03020100);
  const uint8x16_t first = vqtbl4q_u8(low, places);  // 0 beyond its 64 bytes
  const uint8x16_t there = vsubq_u8(places, vdupq_n_u8(64));
  return vreinterpretq_s32_u8(vqtbx4q_u8(first, high, there));
#else
  vi codes = {};
  for (int i = 0; i < kLanes; ++i) codes[i] = static_cast<int32_t>(kTriples.of[at[i]]);
  return codes;
#endif
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
#if defined(WEFT_NEON)
  if constexpr (kMatrices) {
    vi words[8];
    std::memcpy(words, w, sizeof words);
    return put_pairs(words, q + panel_place(v * kLanes));
  }
#endif
  for (int j = 0; j < 8; ++j) {
    std::memcpy(q + j * kWordStep + panel_place(v * kLanes), &w[j], sizeof w[j]);
  }
}

}  // namespace

size_t lookup_table_bytes(int64_t n_columns, int64_t k) {
  return static_cast<size_t>(n_columns * (k / 32) * kChunkLookups * kTableBytes);
}

void make_tables(const Columns& columns, int64_t first, int64_t last, char* tables) {
  if (!kKeepsLookups) return;
  char* at = tables + lookup_table_bytes(columns.n, first * 32);
  for (int64_t c = 0; c < columns.n; ++c, at += kTableBytes) {
    if (columns.type == DType::kQ8_K) {
      make_column<BlockQ8_K>(columns.x[c], first, last, columns.n, at);
    } else {
      make_column<BlockQ8_0>(columns.x[c], first, last, columns.n, at);
    }
  }
}

void multiply_lookups(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                      char* scratch) {
  if (!kKeepsLookups) return;
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
  if (!kKeepsLookups) return;
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
