// Element and block types, with the numbers that GGUF files store (ggml's enum ggml_type).
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

enum class DType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  // bitnet.cpp's type: a tensor of n weights is n/4 bytes of codes, then 32 bytes that begin with
  // its f32 scale.
  kI2_S = 36,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
  // ik_llama.cpp's types. Those whose files have a scale in front of each row have it in each
  // block.
  kQ6_0 = 133,
  kIQ2_BN = 135,
  kIQ2_K = 137,
  kIQ3_K = 138,
  kIQ4_K = 139,
  kIQ5_K = 140,
  kIQ6_K = 141,
  kIQ4_KS = 144,
  kIQ2_KS = 145,
  kQ8_KV = 151,
  kIQ5_KS = 152,
  kIQ2_KT = 153,
  kIQ3_KT = 154,
  kIQ4_KT = 155,
  kIQ3_KS = 156,
  kIQ2_KL = 157,
  kIQ1_KT = 158,
  kIQ1_M_R4 = 229,
};

// Type numbers are below this; some numbers below it name no type.
inline constexpr int32_t kDTypeCount = 230;

// How a matrix of blocks is stored. kRows: row after row. kInterleaved: in panels of rows
// (quants/interleave.h). kLookup: as indices into tables of partial sums (quants/lookup_layout.h).
// kLevels: in panels of rows that name each weight's level (quants/levels.h). kOrdered: rows of
// floats, whose products are added up in the order of panels, so that they have the bits of panels
// while these are not made yet.
enum class Layout : int32_t { kRows = 0, kInterleaved = 1, kLookup = 2, kLevels = 3, kOrdered = 4 };

struct DTypeInfo {
  const char* name;    // nullptr: no such type
  int32_t block;       // elements per block
  int32_t block_size;  // bytes per block
};

// The properties of `type`. The name is nullptr when the number is not a type.
const DTypeInfo& dtype_info(DType type);

inline bool is_quantized(DType type) { return dtype_info(type).block > 1; }

}  // namespace weft
