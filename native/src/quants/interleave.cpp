#include "quants/interleave.h"

#include <cstddef>
#include <cstring>

#include "quants/blocks.h"
#include "quants/blocks_ik.h"
#include "quants/whole_codes.h"

namespace weft {

namespace {

constexpr auto kRows = static_cast<size_t>(kPanelRows);
constexpr size_t kMostConverted = sizeof(BlockQ6_K);  // bytes of a block that is converted

// Four words. Interleaving transposes 4 x 4 words, four of each of four rows, at a time.
using Words = uint32_t __attribute__((vector_size(16)));

inline Words load(const char* p) {
  Words w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

inline void store(char* p, Words w) { std::memcpy(p, &w, sizeof w); }

// Words of two vectors by number: GCC's word for it before GCC 12, and what Clang has.
template <int kA, int kB, int kC, int kD>
inline Words pick(Words x, Words y) {
#if defined(__clang__)
  return __builtin_shufflevector(x, y, kA, kB, kC, kD);
#else
  return __builtin_shuffle(x, y, Words{kA, kB, kC, kD});
#endif
}

inline void transpose(Words w[4]) {
  const Words a = pick<0, 4, 1, 5>(w[0], w[1]);
  const Words b = pick<2, 6, 3, 7>(w[0], w[1]);
  const Words c = pick<0, 4, 1, 5>(w[2], w[3]);
  const Words d = pick<2, 6, 3, 7>(w[2], w[3]);
  w[0] = pick<0, 1, 4, 5>(a, c);
  w[1] = pick<2, 3, 6, 7>(a, c);
  w[2] = pick<0, 1, 4, 5>(b, d);
  w[3] = pick<2, 3, 6, 7>(b, d);
}

// Moves one word of every row: the word of row r is at rows + r * stride and at panel + r *
// sizeof(Word).
template <class Word, bool kToPanel>
inline void move_word(char* rows, size_t stride, char* panel) {
  for (size_t r = 0; r < kRows; ++r) {
    char* in_row = rows + r * stride;
    char* in_panel = panel + r * sizeof(Word);
    std::memcpy(kToPanel ? in_panel : in_row, kToPanel ? in_row : in_panel, sizeof(Word));
  }
}

// Moves `count` words of 4 bytes of every row. It goes through one cache line of each row (16
// words) before it takes the next.
template <bool kToPanel>
void move_words4(char* rows, size_t stride, size_t count, char* panel) {
  constexpr size_t kLine = kRows * 4;  // bytes of one word of all rows
  size_t begin = 0;
  while (begin + 4 <= count) {
    const size_t end = count - begin >= 16 ? begin + 16 : begin + 4;
    for (size_t r = 0; r < kRows; r += 4) {
      for (size_t w = begin; w < end; w += 4) {
        char* in_rows = rows + r * stride + w * 4;
        char* in_panel = panel + w * kLine + r * 4;
        Words words[4];
        for (size_t i = 0; i < 4; ++i) {
          words[i] = load(kToPanel ? in_rows + i * stride : in_panel + i * kLine);
        }
        transpose(words);
        for (size_t i = 0; i < 4; ++i) {
          store(kToPanel ? in_panel + i * kLine : in_rows + i * stride, words[i]);
        }
      }
    }
    begin = end;
  }
  for (; begin < count; ++begin) {
    move_word<uint32_t, kToPanel>(rows + begin * 4, stride, panel + begin * kLine);
  }
}

// Moves one panel: from rows to the panel when kToPanel, otherwise back. It only reads the source.
template <bool kToPanel>
void move_panel(const InterleavedFormat& format, char* rows, size_t row_stride, size_t n_blocks,
                char* panel) {
  const auto block_size = static_cast<size_t>(format.block_size);
  if (format.n_fields == 1 && format.fields[0].width == 4) {
    // All words of a row are one run, whatever its blocks.
    move_words4<kToPanel>(rows, row_stride, n_blocks * block_size / 4, panel);
    return;
  }
  char converted[kRows * kMostConverted];
  const bool converts = format.to_panel != nullptr;
  for (size_t b = 0; b < n_blocks; ++b, rows += block_size) {
    for (size_t r = 0; kToPanel && converts && r < kRows; ++r) {
      format.to_panel(rows + r * row_stride, converted + r * block_size);
    }
    char* blocks = converts ? converted : rows;
    const size_t stride = converts ? block_size : row_stride;
    for (int32_t f = 0; f < format.n_fields; ++f) {
      const WordField& field = format.fields[f];
      const auto width = static_cast<size_t>(field.width);
      const auto count = static_cast<size_t>(field.count);
      char* block = blocks + field.offset;
      if (width == 4) {
        move_words4<kToPanel>(block, stride, count, panel);
      } else {
        for (size_t w = 0; w < count; ++w) {
          char* words = panel + w * width * kRows;
          if (width == 2) {
            move_word<uint16_t, kToPanel>(block + w * 2, stride, words);
          } else {
            move_word<uint8_t, kToPanel>(block + w, stride, words);
          }
        }
      }
      panel += width * count * kRows;
    }
    for (size_t r = 0; !kToPanel && converts && r < kRows; ++r) {
      format.to_row(converted + r * block_size, rows + r * row_stride);
    }
  }
}

template <bool kToPanel>
void move_panels(DType type, char* rows, int64_t row_stride, int64_t row_elements,
                 int64_t first_panel, int64_t n_panels, char* panels) {
  const InterleavedFormat& format = *interleaved_format(type);
  const auto stride = static_cast<size_t>(row_stride);
  const auto n_blocks = static_cast<size_t>(row_elements / format.block);
  const size_t panel_bytes = n_blocks * static_cast<size_t>(format.block_size) * kRows;
  for (int64_t i = first_panel; i < first_panel + n_panels; ++i) {
    const auto p = static_cast<size_t>(i);
    move_panel<kToPanel>(format, rows + p * kRows * stride, stride, n_blocks,
                         panels + p * panel_bytes);
  }
}

// The field of words of `width` bytes that is the member `field` of `Block`.
#define WEFT_FIELD(Block, field, width)                                       \
  {static_cast<int16_t>(offsetof(Block, field)), static_cast<int16_t>(width), \
   static_cast<int16_t>(sizeof(Block::field) / (width))}

struct Table {
  InterleavedFormat formats[kDTypeCount] = {};

  template <int kFields>
  void set(DType type, const WordField (&fields)[kFields]) {
    static_assert(kFields <= kMaxFields);
    const DTypeInfo& info = dtype_info(type);
    InterleavedFormat& format = formats[static_cast<size_t>(type)];
    format.n_fields = kFields;
    for (int f = 0; f < kFields; ++f) {
      format.fields[f] = fields[f];
      format.block_size += fields[f].width * fields[f].count;
    }
    // The elements of one block, or of as many blocks as fill a word (the 16-bit floats).
    format.block = info.block * (format.block_size / info.block_size);
  }

  template <class Whole>
  void set_whole(DType type) {
    static_assert(sizeof(typename Whole::Block) <= kMostConverted);
    InterleavedFormat& format = formats[static_cast<size_t>(type)];
    format.to_panel = make_whole<Whole>;
    format.to_row = make_planes<Whole>;
  }

  void set_simple();
  void set_k_quants();
  void set_codebooks();
  void set_ik();

  Table() {
    set_simple();
    set_k_quants();
    set_codebooks();
    set_ik();
  }
};

void Table::set_simple() {
  set(DType::kF32, {{0, 4, 1}});
  set(DType::kF16, {{0, 4, 1}});
  set(DType::kBF16, {{0, 4, 1}});
  set(DType::kI2_S, {{0, 4, 8}});
  set(DType::kQ4_0, {WEFT_FIELD(BlockQ4_0, d, 2), WEFT_FIELD(BlockQ4_0, qs, 4)});
  set(DType::kQ4_1,
      {WEFT_FIELD(BlockQ4_1, d, 2), WEFT_FIELD(BlockQ4_1, m, 2), WEFT_FIELD(BlockQ4_1, qs, 4)});
  set(DType::kQ5_0,
      {WEFT_FIELD(BlockQ5_0, d, 2), WEFT_FIELD(BlockQ5_0, qh, 4), WEFT_FIELD(BlockQ5_0, qs, 4)});
  set(DType::kQ5_1, {WEFT_FIELD(BlockQ5_1, d, 2), WEFT_FIELD(BlockQ5_1, m, 2),
                     WEFT_FIELD(BlockQ5_1, qh, 4), WEFT_FIELD(BlockQ5_1, qs, 4)});
  set(DType::kQ8_0, {WEFT_FIELD(BlockQ8_0, d, 2), WEFT_FIELD(BlockQ8_0, qs, 4)});
  set(DType::kIQ4_NL, {WEFT_FIELD(BlockIQ4_NL, d, 2), WEFT_FIELD(BlockIQ4_NL, qs, 4)});
  set(DType::kMXFP4, {WEFT_FIELD(BlockMXFP4, e, 1), WEFT_FIELD(BlockMXFP4, qs, 4)});
  set(DType::kNVFP4, {WEFT_FIELD(BlockNVFP4, d, 4), WEFT_FIELD(BlockNVFP4, qs, 4)});
  set(DType::kQ1_0, {WEFT_FIELD(BlockQ1_0, d, 2), WEFT_FIELD(BlockQ1_0, qs, 4)});
  set(DType::kQ2_0, {WEFT_FIELD(BlockQ2_0, d, 2), WEFT_FIELD(BlockQ2_0, qs, 4)});
}

void Table::set_k_quants() {
  set(DType::kQ2_K, {WEFT_FIELD(BlockQ2_K, d, 2), WEFT_FIELD(BlockQ2_K, dmin, 2),
                     WEFT_FIELD(BlockQ2_K, scales, 4), WEFT_FIELD(BlockQ2_K, qs, 4)});
  set(DType::kQ3_K, {WEFT_FIELD(BlockQ3_K, d, 2), WEFT_FIELD(BlockQ3_K, hmask, 4),
                     WEFT_FIELD(BlockQ3_K, qs, 4), WEFT_FIELD(BlockQ3_K, scales, 4)});
  set(DType::kQ4_K, {WEFT_FIELD(BlockQ4_K, d, 2), WEFT_FIELD(BlockQ4_K, dmin, 2),
                     WEFT_FIELD(BlockQ4_K, scales, 4), WEFT_FIELD(BlockQ4_K, qs, 4)});
  set(DType::kQ5_K, {WEFT_FIELD(BlockQ5_K, d, 2), WEFT_FIELD(BlockQ5_K, dmin, 2),
                     WEFT_FIELD(BlockQ5_K, scales, 4), WEFT_FIELD(BlockQ5_K, qh, 4),
                     WEFT_FIELD(BlockQ5_K, qs, 4)});
  set(DType::kQ6_K, {WEFT_FIELD(BlockQ6_K, d, 2), WEFT_FIELD(BlockQ6_K, scales, 4),
                     WEFT_FIELD(BlockQ6_K, ql, 4), WEFT_FIELD(BlockQ6_K, qh, 4)});
  set_whole<WholeQ3_K>(DType::kQ3_K);
  set_whole<WholeQ5_K>(DType::kQ5_K);
  set_whole<WholeQ6_K>(DType::kQ6_K);
  set(DType::kTQ1_0,
      {WEFT_FIELD(BlockTQ1_0, d, 2), WEFT_FIELD(BlockTQ1_0, qs, 4), WEFT_FIELD(BlockTQ1_0, qh, 4)});
  set(DType::kTQ2_0, {WEFT_FIELD(BlockTQ2_0, d, 2), WEFT_FIELD(BlockTQ2_0, qs, 4)});
}

void Table::set_codebooks() {
  set(DType::kIQ4_XS, {WEFT_FIELD(BlockIQ4_XS, d, 2), WEFT_FIELD(BlockIQ4_XS, scales_h, 2),
                       WEFT_FIELD(BlockIQ4_XS, scales_l, 4), WEFT_FIELD(BlockIQ4_XS, qs, 4)});
  set(DType::kIQ2_XXS, {WEFT_FIELD(BlockIQ2_XXS, d, 2), WEFT_FIELD(BlockIQ2_XXS, qs, 4)});
  set(DType::kIQ2_XS, {WEFT_FIELD(BlockIQ2_XS, d, 2), WEFT_FIELD(BlockIQ2_XS, qs, 4),
                       WEFT_FIELD(BlockIQ2_XS, scales, 4)});
  set(DType::kIQ2_S, {WEFT_FIELD(BlockIQ2_S, d, 2), WEFT_FIELD(BlockIQ2_S, qs, 4),
                      WEFT_FIELD(BlockIQ2_S, signs, 4), WEFT_FIELD(BlockIQ2_S, qh, 4),
                      WEFT_FIELD(BlockIQ2_S, scales, 4)});
  set(DType::kIQ3_XXS, {WEFT_FIELD(BlockIQ3_XXS, d, 2), WEFT_FIELD(BlockIQ3_XXS, qs, 4),
                        WEFT_FIELD(BlockIQ3_XXS, signs_scales, 4)});
  set(DType::kIQ3_S,
      {WEFT_FIELD(BlockIQ3_S, d, 2), WEFT_FIELD(BlockIQ3_S, qs, 4), WEFT_FIELD(BlockIQ3_S, qh, 4),
       WEFT_FIELD(BlockIQ3_S, signs, 4), WEFT_FIELD(BlockIQ3_S, scales, 4)});
  set(DType::kIQ1_S,
      {WEFT_FIELD(BlockIQ1_S, d, 2), WEFT_FIELD(BlockIQ1_S, qs, 4), WEFT_FIELD(BlockIQ1_S, qh, 4)});
  set(DType::kIQ1_M, {WEFT_FIELD(BlockIQ1_M, qs, 4), WEFT_FIELD(BlockIQ1_M, qh, 4),
                      WEFT_FIELD(BlockIQ1_M, scales, 4)});
}

void Table::set_ik() {
  set(DType::kIQ2_K, {WEFT_FIELD(BlockIQ2_K, d, 2), WEFT_FIELD(BlockIQ2_K, extra, 2),
                      WEFT_FIELD(BlockIQ2_K, scales, 4), WEFT_FIELD(BlockIQ2_K, qs, 4)});
  set(DType::kIQ3_K, {WEFT_FIELD(BlockIQ3_K, d, 2), WEFT_FIELD(BlockIQ3_K, extra, 2),
                      WEFT_FIELD(BlockIQ3_K, signs, 2), WEFT_FIELD(BlockIQ3_K, scales, 4),
                      WEFT_FIELD(BlockIQ3_K, qs, 4), WEFT_FIELD(BlockIQ3_K, qh, 4)});
  set(DType::kIQ4_K, {WEFT_FIELD(BlockIQ4_K, d, 2), WEFT_FIELD(BlockIQ4_K, extra, 2),
                      WEFT_FIELD(BlockIQ4_K, scales_h, 4), WEFT_FIELD(BlockIQ4_K, scales_l, 4),
                      WEFT_FIELD(BlockIQ4_K, qs, 4)});
  set(DType::kIQ5_K, {WEFT_FIELD(BlockIQ5_K, d, 2), WEFT_FIELD(BlockIQ5_K, extra, 2),
                      WEFT_FIELD(BlockIQ5_K, scales_h, 4), WEFT_FIELD(BlockIQ5_K, scales_l, 4),
                      WEFT_FIELD(BlockIQ5_K, qs, 4), WEFT_FIELD(BlockIQ5_K, qh, 4)});
  set(DType::kIQ6_K, {WEFT_FIELD(BlockIQ6_K, d, 2), WEFT_FIELD(BlockIQ6_K, extra, 2),
                      WEFT_FIELD(BlockIQ6_K, scales, 4), WEFT_FIELD(BlockIQ6_K, qs, 4),
                      WEFT_FIELD(BlockIQ6_K, qh, 4)});
  set(DType::kIQ2_KS, {WEFT_FIELD(BlockIQ2_KS, d, 2), WEFT_FIELD(BlockIQ2_KS, extra, 2),
                       WEFT_FIELD(BlockIQ2_KS, scales, 4), WEFT_FIELD(BlockIQ2_KS, qs, 4)});
  set(DType::kIQ3_KS, {WEFT_FIELD(BlockIQ3_KS, d, 2), WEFT_FIELD(BlockIQ3_KS, extra, 2),
                       WEFT_FIELD(BlockIQ3_KS, scales, 4), WEFT_FIELD(BlockIQ3_KS, qs, 4),
                       WEFT_FIELD(BlockIQ3_KS, qh, 4)});
  set(DType::kIQ4_KS, {WEFT_FIELD(BlockIQ4_KS, d, 4), WEFT_FIELD(BlockIQ4_KS, scales, 4),
                       WEFT_FIELD(BlockIQ4_KS, qs, 4)});
  set(DType::kIQ5_KS, {WEFT_FIELD(BlockIQ5_KS, d, 4), WEFT_FIELD(BlockIQ5_KS, scales, 4),
                       WEFT_FIELD(BlockIQ5_KS, qs, 4), WEFT_FIELD(BlockIQ5_KS, qh, 4)});
  set(DType::kIQ2_KL, {WEFT_FIELD(BlockIQ2_KL, d, 2), WEFT_FIELD(BlockIQ2_KL, scales_h, 2),
                       WEFT_FIELD(BlockIQ2_KL, scales_l, 4), WEFT_FIELD(BlockIQ2_KL, qs, 4),
                       WEFT_FIELD(BlockIQ2_KL, qh, 4)});
  set(DType::kIQ1_KT, {WEFT_FIELD(BlockIQ1_KT, d, 4), WEFT_FIELD(BlockIQ1_KT, sh, 4),
                       WEFT_FIELD(BlockIQ1_KT, ql, 4), WEFT_FIELD(BlockIQ1_KT, qh, 4)});
  set(DType::kIQ2_KT, {WEFT_FIELD(BlockIQ2_KT, d, 4), WEFT_FIELD(BlockIQ2_KT, scales, 4),
                       WEFT_FIELD(BlockIQ2_KT, ql, 4)});
  set(DType::kIQ3_KT, {WEFT_FIELD(BlockIQ3_KT, d, 4), WEFT_FIELD(BlockIQ3_KT, scales, 4),
                       WEFT_FIELD(BlockIQ3_KT, ql, 4), WEFT_FIELD(BlockIQ3_KT, signs, 4)});
  set(DType::kIQ4_KT, {WEFT_FIELD(BlockIQ4_KT, d, 4), WEFT_FIELD(BlockIQ4_KT, steps, 4),
                       WEFT_FIELD(BlockIQ4_KT, ql, 4), WEFT_FIELD(BlockIQ4_KT, qh, 4)});
  set(DType::kIQ2_BN, {WEFT_FIELD(BlockIQ2_BN, d, 4), WEFT_FIELD(BlockIQ2_BN, qs, 4)});
  set(DType::kQ6_0,
      {WEFT_FIELD(BlockQ6_0, d, 2), WEFT_FIELD(BlockQ6_0, qh, 4), WEFT_FIELD(BlockQ6_0, qs, 4)});
  set(DType::kQ8_KV, {WEFT_FIELD(BlockQ8_KV, d, 4), WEFT_FIELD(BlockQ8_KV, qs, 4)});
}

#undef WEFT_FIELD

}  // namespace

const InterleavedFormat* interleaved_format(DType type) {
  static const Table table;
  const auto i = static_cast<int32_t>(type);
  if (i < 0 || i >= kDTypeCount || table.formats[i].n_fields == 0) return nullptr;
  return &table.formats[i];
}

void interleave_panels(DType type, const void* src, int64_t row_stride, int64_t row_elements,
                       int64_t first_panel, int64_t n_panels, void* dst) {
  // move_panels serves both directions; in this one it does not write through `rows`.
  char* rows = const_cast<char*>(static_cast<const char*>(src));
  move_panels<true>(type, rows, row_stride, row_elements, first_panel, n_panels,
                    static_cast<char*>(dst));
}

void interleave_rows(const InterleavedFormat& format, const char* rows, int64_t row_stride,
                     int64_t n_blocks, char* panel) {
  // move_panel serves both directions; in this one it does not write through `rows`.
  move_panel<true>(format, const_cast<char*>(rows), static_cast<size_t>(row_stride),
                   static_cast<size_t>(n_blocks), panel);
}

void deinterleave_panels(DType type, const void* src, int64_t row_elements, int64_t first_panel,
                         int64_t n_panels, void* dst, int64_t row_stride) {
  char* panels = const_cast<char*>(static_cast<const char*>(src));
  move_panels<false>(type, static_cast<char*>(dst), row_stride, row_elements, first_panel, n_panels,
                     panels);
}

void deinterleave_row(DType type, const void* src, int64_t row_elements, int64_t n_rows,
                      int64_t row, void* dst) {
  const InterleavedFormat& format = *interleaved_format(type);
  const auto n_blocks = static_cast<size_t>(row_elements / format.block);
  const auto block_size = static_cast<size_t>(format.block_size);
  const size_t row_bytes = n_blocks * block_size;
  const auto* panel =
      static_cast<const char*>(src) + static_cast<size_t>(row / kPanelRows) * kRows * row_bytes;
  const auto r = static_cast<size_t>(row % kPanelRows);
  if (row >= n_rows / kPanelRows * kPanelRows) {
    std::memcpy(dst, panel + r * row_bytes, row_bytes);
    return;
  }
  auto* to = static_cast<char*>(dst);
  char converted[kMostConverted];
  for (size_t b = 0; b < n_blocks; ++b, to += block_size) {
    char* block = format.to_row != nullptr ? converted : to;
    for (int32_t f = 0; f < format.n_fields; ++f) {
      const WordField& field = format.fields[f];
      const auto width = static_cast<size_t>(field.width);
      char* words = block + field.offset;
      for (int32_t w = 0; w < field.count; ++w, panel += width * kRows, words += width) {
        std::memcpy(words, panel + r * width, width);
      }
    }
    if (format.to_row != nullptr) format.to_row(converted, to);
  }
}

}  // namespace weft
