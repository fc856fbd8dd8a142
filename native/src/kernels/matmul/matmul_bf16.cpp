// Kernels of bf16 pairs. This file alone is compiled for their dot products (simd/bf16.h).
#include "kernels/matmul/matmul_bf16.h"

#include "kernels/simd/bf16.h"

namespace weft::WEFT_TARGET {

#if defined(WEFT_BF16_DOTS)

namespace {

struct MultiplyPairs {
  static inline vf add(vf acc, vf a, vf b) { return dot_bf16(acc, a, b); }
};

// A word is a pair, of panels as of columns.
struct PairWords {
  static constexpr int64_t kColumnWords = 1;
  static inline vf all(const float* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return reinterpret_cast<vf>(pair + vi{});
  }
  static inline vf add(vf acc, vf rows, vf x) { return dot_bf16(acc, rows, x); }
};

struct PairRow {
  static constexpr DType kWeights = DType::kBF16;
  static constexpr DType kColumns = DType::kBF16;
  static constexpr int64_t kElements = 2 * kLanes;
  static constexpr int64_t kSize = 2;
  static inline vf weights(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf column(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf add(vf acc, vf w, vf x) { return dot_bf16(acc, w, x); }
};

}  // namespace

const Bf16Kernels* bf16_kernels() {
  static const Bf16Kernels kernels = {dot_rows<PairRow>, tile_kernels<MultiplyPairs>(),
                                      panel_kernels<PairWords>()};
  return has_bf16_dots() ? &kernels : nullptr;
}

#else

const Bf16Kernels* bf16_kernels() { return nullptr; }

#endif

}  // namespace weft::WEFT_TARGET
