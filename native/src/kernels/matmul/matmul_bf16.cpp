// Dot products of bf16 pairs. Processors with all else of the avx512 target may lack them, so this
// file alone is compiled for them and a look at the processor decides. The i8mm target has them.
#include "kernels/matmul/matmul_bf16.h"

#include "core/processor.h"

namespace weft::WEFT_TARGET {

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(WEFT_NEON)
#define WEFT_BF16_PAIRS 1
#elif defined(__AVX512BF16__)
#define WEFT_BF16_PAIRS 1
#endif

#if defined(WEFT_BF16_PAIRS)

namespace {

// acc + the products of kLanes pairs of each.
inline vf dot_pairs(vf acc, vf a, vf b) {
#if defined(WEFT_NEON)
  return vbfdotq_f32(acc, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
#else
  return reinterpret_cast<vf>(_mm512_dpbf16_ps(
      reinterpret_cast<__m512>(acc), reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b)));
#endif
}

struct MultiplyPairs {
  static inline vf add(vf acc, vf a, vf b) { return dot_pairs(acc, a, b); }
};

// A word is a pair, of panels as of columns.
struct PairWords {
  static constexpr int64_t kColumnWords = 1;
  static inline vf all(const float* x) {
    int32_t pair;
    std::memcpy(&pair, x, sizeof pair);
    return reinterpret_cast<vf>(pair + vi{});
  }
  static inline vf add(vf acc, vf rows, vf x) { return dot_pairs(acc, rows, x); }
};

struct PairRow {
  static constexpr DType kWeights = DType::kBF16;
  static constexpr DType kColumns = DType::kBF16;
  static constexpr int64_t kElements = 2 * kLanes;
  static constexpr int64_t kSize = 2;
  static inline vf weights(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf column(const char* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf add(vf acc, vf w, vf x) { return dot_pairs(acc, w, x); }
};

}  // namespace

const Bf16Kernels* bf16_kernels() {
  static const Bf16Kernels kernels = {dot_rows<PairRow>, tile_kernels<MultiplyPairs>(),
                                      panel_kernels<PairWords>()};
#if defined(WEFT_NEON)
  return &kernels;
#else
  return processor().avx512bf16 ? &kernels : nullptr;
#endif
}

#else

const Bf16Kernels* bf16_kernels() { return nullptr; }

#endif

}  // namespace weft::WEFT_TARGET
