#include "quants/levels.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "quants/blocks.h"
#include "quants/codebooks.h"
#include "quants/interleave.h"

namespace weft {

namespace {

constexpr int kEights = 32;  // of a block

// The vectors of the books with the numbers of levels instead of levels.
constexpr int8_t kNumbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr auto kNumbersIQ1 = expand_codebook<8>(kStepsIQ1, kNumbers);
constexpr auto kNumbersIQ2_XXS = expand_codebook<8>(kStepsIQ2_XXS, kNumbers);
constexpr auto kNumbersIQ2_XS = expand_codebook<8>(kStepsIQ2_XS, kNumbers);
constexpr auto kNumbersIQ2_S = expand_codebook<8>(kStepsIQ2_S, kNumbers);
constexpr auto kNumbersIQ3_XXS = expand_codebook<4>(kStepsIQ3_XXS, kNumbers);
constexpr auto kNumbersIQ3_S = expand_codebook<4>(kStepsIQ3_S, kNumbers);

template <class Word>
Word read(const void* p) {
  Word word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

template <int kCount>
uint64_t eight(const Codebook<kCount, 8>& book, uint32_t code) {
  return read<uint64_t>(book.vectors[code]);
}

template <int kCount>
uint64_t eight(const Codebook<kCount, 4>& book, uint32_t first, uint32_t second) {
  return read<uint32_t>(book.vectors[first]) | uint64_t{read<uint32_t>(book.vectors[second])} << 32;
}

// Bit i of a byte as bit 0 of byte i.
struct Spread {
  uint64_t of[256];
};
constexpr Spread make_spread() {
  Spread spread = {};
  for (int bits = 0; bits < 256; ++bits) {
    for (int i = 0; i < 8; ++i) {
      spread.of[bits] |= static_cast<uint64_t>(bits >> i & 1) << 8 * i;
    }
  }
  return spread;
}
constexpr Spread kSpread = make_spread();

// The signs of a 7-bit index: the eighth makes the number of minuses even.
uint32_t even_signs(uint32_t index) {
  index &= 127;
  return index | static_cast<uint32_t>(__builtin_parity(index)) << 7;
}

// A block taken apart: a byte for each level and sign.
struct Levels {
  uint16_t d;
  uint8_t steps[16];
  uint64_t numbers[kEights];
  uint64_t minus[kEights];

  void set(int eighth, uint64_t level_numbers, uint32_t signs) {
    numbers[eighth] = level_numbers;
    minus[eighth] = kSpread.of[signs & 255];
  }
};

void set_halves(const uint8_t* bytes, int count, uint8_t* steps) {
  for (int g = 0; g < count; ++g) steps[g] = bytes[g / 2] >> g % 2 * 4 & 15;
}

void take_apart(const BlockIQ2_XXS& b, Levels& x) {
  x.d = b.d;
  const auto* p = reinterpret_cast<const uint8_t*>(&b) + offsetof(BlockIQ2_XXS, qs);
  for (int c = 0; c < 8; ++c, p += 8) {
    const auto word = read<uint32_t>(p + 4);
    x.steps[c] = static_cast<uint8_t>(word >> 28);
    for (int k = 0; k < 4; ++k) {
      x.set(4 * c + k, eight(kNumbersIQ2_XXS, p[k]), even_signs(word >> 7 * k));
    }
  }
}

void take_apart(const BlockIQ2_XS& b, Levels& x) {
  x.d = b.d;
  set_halves(b.scales, 16, x.steps);
  for (int i = 0; i < kEights; ++i) {
    const auto word = read<uint16_t>(reinterpret_cast<const char*>(&b) + offsetof(BlockIQ2_XS, qs) +
                                     static_cast<size_t>(2 * i));
    x.set(i, eight(kNumbersIQ2_XS, word & 511u), even_signs(uint32_t{word} >> 9));
  }
}

void take_apart(const BlockIQ2_S& b, Levels& x) {
  x.d = b.d;
  set_halves(b.scales, 16, x.steps);
  for (int i = 0; i < kEights; ++i) {
    const uint32_t high = b.qh[i / 4] >> i % 4 * 2 & 3u;
    x.set(i, eight(kNumbersIQ2_S, b.qs[i] | high << 8), b.signs[i]);
  }
}

void take_apart(const BlockIQ3_XXS& b, Levels& x) {
  x.d = b.d;
  for (int c = 0; c < 8; ++c) {
    const auto word = read<uint32_t>(b.signs_scales + 4 * c);
    x.steps[c] = static_cast<uint8_t>(word >> 28);
    for (int k = 0; k < 4; ++k) {
      const int i = 4 * c + k;
      x.set(i, eight(kNumbersIQ3_XXS, b.qs[2 * i], b.qs[2 * i + 1]), even_signs(word >> 7 * k));
    }
  }
}

void take_apart(const BlockIQ3_S& b, Levels& x) {
  x.d = b.d;
  set_halves(b.scales, 8, x.steps);
  for (int i = 0; i < kEights; ++i) {
    const uint32_t high = b.qh[i / 4] >> i % 4 * 2;
    x.set(i, eight(kNumbersIQ3_S, b.qs[2 * i] | (high & 1) << 8, b.qs[2 * i + 1] | (high & 2) << 7),
          b.signs[i]);
  }
}

void take_apart(const BlockIQ1_S& b, Levels& x) {
  x.d = b.d;
  for (int c = 0; c < 8; ++c) {
    const uint32_t high = b.qh[c];
    x.steps[c] = static_cast<uint8_t>(high >> 12);
    for (int k = 0; k < 4; ++k) {
      x.numbers[4 * c + k] = eight(kNumbersIQ1, b.qs[4 * c + k] | (high >> 3 * k & 7) << 8);
    }
  }
}

// The signs of iq1_m tell whether the shift is -1.
void take_apart(const BlockIQ1_M& b, Levels& x) {
  uint32_t d = 0;
  for (int k = 0; k < 4; ++k) d |= static_cast<uint32_t>(b.scales[k] >> 12) << 4 * k;
  x.d = static_cast<uint16_t>(d);
  for (int g = 0; g < 16; ++g) x.steps[g] = b.scales[g / 4] >> g % 4 * 3 & 7;
  for (int i = 0; i < kEights; ++i) {
    const uint32_t high = b.qh[i / 2] >> i % 2 * 4 & 15u;
    x.numbers[i] = eight(kNumbersIQ1, b.qs[i] | (high & 7) << 8);
    x.minus[i] = high >> 3;
  }
}

void put_steps(const Levels& x, int count, uint8_t* steps) {
  for (int g = 0; g < count; g += 2) {
    steps[g / 2] = static_cast<uint8_t>(x.steps[g] | x.steps[g + 1] << 4);
  }
}

// Two bits of each number: those of four chunks of 32 share bytes.
void put_pairs(const Levels& x, uint8_t* qs) {
  for (int i = 0; i < 8; ++i) {
    uint64_t bytes = 0;
    for (int c = 0; c < 4; ++c) bytes |= x.numbers[i / 4 * 16 + 4 * c + i % 4] << 2 * c;
    std::memcpy(qs + 8 * i, &bytes, 8);
  }
}

template <int kSteps>
void put_together(const Levels& x, BlockOctals<kSteps>& b) {
  b.d = x.d;
  put_steps(x, kSteps, b.steps);
  put_pairs(x, b.qs);
  for (int i = 0; i < 4; ++i) {
    uint64_t bytes = 0;
    for (int c = 0; c < 8; ++c) bytes |= x.minus[4 * c + i] << c;
    std::memcpy(b.signs + 8 * i, &bytes, 8);
  }
}

void put_together(const Levels& x, BlockNibbles& b) {
  b.d = x.d;
  put_steps(x, 8, b.steps);
  const auto code = [&](int i) { return x.numbers[i] | x.minus[i] << 3; };
  for (int c = 0; c < 8; ++c) {
    for (int k = 0; k < 2; ++k) {
      const uint64_t bytes = code(4 * c + k) | code(4 * c + 2 + k) << 4;
      std::memcpy(b.qs + 16 * c + 8 * k, &bytes, 8);
    }
  }
}

void put_together(const Levels& x, BlockTrits& b) {
  b.d = x.d;
  put_steps(x, 8, b.steps);
  put_pairs(x, b.qs);
}

void put_together(const Levels& x, BlockShiftedTrits& b) {
  b.d = x.d;
  put_steps(x, 16, b.steps);
  put_pairs(x, b.qs);
  for (int i = 0; i < 4; ++i) {
    uint32_t bits = 0;
    for (int k = 0; k < 8; ++k) bits |= static_cast<uint32_t>(x.minus[8 * i + k]) << k;
    b.shifts[i] = static_cast<uint8_t>(bits);
  }
}

template <class From, class To>
void convert(const char* from, int64_t n, char* to) {
  for (int64_t i = 0; i < n; ++i, from += sizeof(From), to += sizeof(To)) {
    Levels levels;
    take_apart(*reinterpret_cast<const From*>(from), levels);
    put_together(levels, *reinterpret_cast<To*>(to));
  }
}

// How a type is stored: blocks of one size, in fields of two and four bytes.
struct LevelFormat {
  InterleavedFormat fields = {};
  void (*convert)(const char* from, int64_t n, char* to) = nullptr;

  explicit operator bool() const { return convert != nullptr; }
};

template <class From, class To>
constexpr LevelFormat format_of() {
  constexpr auto kWords = static_cast<int16_t>((sizeof(To) - 2) / 4);
  return {{256, sizeof(To), 2, {{0, 2, 1}, {2, 4, kWords}}}, convert<From, To>};
}

LevelFormat level_format(DType type) {
  switch (type) {
    case DType::kIQ2_XXS:
      return format_of<BlockIQ2_XXS, BlockOctals<8>>();
    case DType::kIQ2_XS:
      return format_of<BlockIQ2_XS, BlockOctals<16>>();
    case DType::kIQ2_S:
      return format_of<BlockIQ2_S, BlockOctals<16>>();
    case DType::kIQ3_XXS:
      return format_of<BlockIQ3_XXS, BlockNibbles>();
    case DType::kIQ3_S:
      return format_of<BlockIQ3_S, BlockNibbles>();
    case DType::kIQ1_S:
      return format_of<BlockIQ1_S, BlockTrits>();
    case DType::kIQ1_M:
      return format_of<BlockIQ1_M, BlockShiftedTrits>();
    default:
      return {};
  }
}

}  // namespace

int64_t level_block(DType type) { return level_format(type).fields.block; }

int64_t level_row_bytes(DType type, int64_t row_elements) {
  const InterleavedFormat& fields = level_format(type).fields;
  return row_elements / fields.block * fields.block_size;
}

void make_level_panels(DType type, const void* src, int64_t row_stride, int64_t row_elements,
                       int64_t first_panel, int64_t n_panels, void* dst) {
  const LevelFormat format = level_format(type);
  const int64_t bytes = level_row_bytes(type, row_elements);
  const auto* from = static_cast<const char*>(src) + first_panel * kPanelRows * row_stride;
  auto* to = static_cast<char*>(dst) + first_panel * kPanelRows * bytes;
  std::vector<char> rows(static_cast<size_t>(kPanelRows * bytes));
  for (int64_t p = 0; p < n_panels; ++p) {
    for (int64_t r = 0; r < kPanelRows; ++r, from += row_stride) {
      format.convert(from, row_elements / format.fields.block, rows.data() + r * bytes);
    }
    interleave_rows(format.fields, rows.data(), bytes, row_elements / format.fields.block, to);
    to += kPanelRows * bytes;
  }
}

}  // namespace weft
