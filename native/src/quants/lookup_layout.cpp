#include "quants/lookup_layout.h"

#include <cstring>

#include "quants/blocks.h"
#include "quants/interleave.h"

namespace weft {

namespace {

constexpr int kMaxBlock = 256;

// The codes in the two-bit fields of 32 bytes. The first field of a byte is at bit `shift`, the
// next ones `step` bits further.
void split_fields(const uint8_t* bytes, int shift, int step, uint8_t* codes) {
  for (int field = 0; field < 4; ++field, shift += step) {
    for (int j = 0; j < 32; ++j) {
      codes[32 * field + j] = static_cast<uint8_t>(bytes[j] >> shift & 3);
    }
  }
}

// The codes in the base-3 digits of `size` bytes. Digit k of a byte is the integer part of
// 3 * (byte * 3^k mod 256) / 256.
void split_digits(const uint8_t* bytes, int size, int digits, uint8_t* codes) {
  uint32_t power = 1;
  for (int k = 0; k < digits; ++k, power *= 3) {
    for (int j = 0; j < size; ++j) {
      codes[size * k + j] = static_cast<uint8_t>((bytes[j] * power & 255u) * 3u >> 8);
    }
  }
}

// Reads the codes 0, 1, 2 of one block. Returns its scale, 0 for i2_s, which has none.
uint16_t split_block(DType type, const uint8_t* block, uint8_t* codes) {
  uint16_t d = 0;
  if (type == DType::kTQ1_0) {
    split_digits(block, 32, 5, codes);
    split_digits(block + 32, 16, 5, codes + 160);
    split_digits(block + 48, 4, 4, codes + 240);
    std::memcpy(&d, block + offsetof(BlockTQ1_0, d), sizeof d);
  } else if (type == DType::kTQ2_0) {
    split_fields(block, 0, 2, codes);
    split_fields(block + 32, 0, 2, codes + 128);
    for (int i = 0; i < 256; ++i) codes[i] = codes[i] > 2 ? 2 : codes[i];
    std::memcpy(&d, block + offsetof(BlockTQ2_0, d), sizeof d);
  } else {
    split_fields(block, 6, -2, codes);
    for (int i = 0; i < 128; ++i) codes[i] = codes[i] == 3 ? 1 : codes[i];  // code 3 means 0 too
  }
  return d;
}

uint32_t to_index(int v) { return static_cast<uint32_t>(v >= 0 ? v : kLookupNegative - v); }

// The seven words of 64 codes.
void pack_unit(const uint8_t* codes, uint16_t* words) {
  uint32_t index[2 * kChunkLookups];
  for (int chunk = 0; chunk < 2; ++chunk) {
    const uint8_t* q = codes + 32 * chunk;
    uint32_t* at = index + kChunkLookups * chunk;
    for (int i = 0; i < kChunkLookups - 1; ++i) {
      at[i] = to_index(9 * q[3 * i] + 3 * q[3 * i + 1] + q[3 * i + 2] - 13);
    }
    at[kChunkLookups - 1] = to_index(9 * q[30] + 3 * q[31] - 12);
  }
  const uint32_t last = index[21];
  for (int w = 0; w < kUnitWords; ++w) {
    const uint32_t top = w < 5 ? last >> w & 1u : 0u;
    words[w] = static_cast<uint16_t>(index[3 * w] | index[3 * w + 1] << 5 | index[3 * w + 2] << 10 |
                                     top << 15);
  }
}

}  // namespace

int64_t lookup_block(DType type) {
  if (type != DType::kTQ1_0 && type != DType::kTQ2_0 && type != DType::kI2_S) return 0;
  return dtype_info(type).block;
}

int64_t lookup_row_bytes(DType type, int64_t row_elements) {
  const int64_t scales = type == DType::kI2_S ? 0 : row_elements / lookup_block(type) * 2;
  return row_elements / kLookupUnit * kUnitWords * 2 + scales;
}

bool is_ternary(DType type, const void* src, int64_t n_blocks) {
  if (type != DType::kTQ2_0) return lookup_block(type) != 0;
  const auto* block = static_cast<const BlockTQ2_0*>(src);
  for (int64_t b = 0; b < n_blocks; ++b) {
    uint64_t threes = 0;  // the low bit of a field is set where a code is 3
    for (int i = 0; i < 64; i += 8) {
      uint64_t word;
      std::memcpy(&word, block[b].qs + i, sizeof word);
      threes |= word & word >> 1;
    }
    if ((threes & 0x5555555555555555u) != 0) return false;
  }
  return true;
}

void make_lookup_panels(DType type, const void* src, int64_t row_stride, int64_t row_elements,
                        int64_t first_panel, int64_t n_panels, void* dst) {
  const int64_t block = lookup_block(type);
  const int64_t block_bytes = dtype_info(type).block_size;
  const int64_t units = block / kLookupUnit;
  const bool has_scale = type != DType::kI2_S;
  for (int64_t p = first_panel; p < first_panel + n_panels; ++p) {
    auto* panel = static_cast<char*>(dst) + p * kPanelRows * lookup_row_bytes(type, row_elements);
    const auto* rows = static_cast<const uint8_t*>(src) + p * kPanelRows * row_stride;
    for (int64_t b = 0; b < row_elements / block; ++b) {
      char* words_at = panel + (has_scale ? kPanelRows * 2 : 0);
      for (int64_t r = 0; r < kPanelRows; ++r) {
        uint8_t codes[kMaxBlock];
        const uint16_t d = split_block(type, rows + r * row_stride + b * block_bytes, codes);
        if (has_scale) std::memcpy(panel + 2 * r, &d, sizeof d);
        for (int64_t u = 0; u < units; ++u) {
          uint16_t words[kUnitWords];
          pack_unit(codes + u * kLookupUnit, words);
          for (int64_t w = 0; w < kUnitWords; ++w) {
            std::memcpy(words_at + ((u * kUnitWords + w) * kPanelRows + r) * 2, &words[w], 2);
          }
        }
      }
      panel = words_at + units * kUnitWords * kPanelRows * 2;
    }
  }
}

}  // namespace weft
