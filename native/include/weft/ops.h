// The ops, in the order of the table in src/weft/graph/op.py; the Python side checks the names.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// clang-format off
#define WEFT_OPS(X) \
  X(kNone, "NONE", 0, 10) \
  X(kReshape, "RESHAPE", 1, 1) \
  X(kView, "VIEW", 1, 1) \
  X(kPermute, "PERMUTE", 1, 1) \
  X(kTranspose, "TRANSPOSE", 1, 1) \
  X(kDup, "DUP", 1, 1) \
  X(kCpy, "CPY", 2, 2) \
  X(kCont, "CONT", 1, 1) \
  X(kSet, "SET", 2, 2) \
  X(kAcc, "ACC", 2, 2) \
  X(kConcat, "CONCAT", 2, 2) \
  X(kRepeat, "REPEAT", 1, 1) \
  X(kRepeatBack, "REPEAT_BACK", 1, 1) \
  X(kGetRows, "GET_ROWS", 2, 2) \
  X(kGetRowsBack, "GET_ROWS_BACK", 2, 3) \
  X(kSetRows, "SET_ROWS", 3, 3) \
  X(kPad, "PAD", 1, 1) \
  X(kPadReflect1d, "PAD_REFLECT_1D", 1, 1) \
  X(kRoll, "ROLL", 1, 1) \
  X(kAdd, "ADD", 2, 2) \
  X(kSub, "SUB", 2, 2) \
  X(kMul, "MUL", 2, 2) \
  X(kDiv, "DIV", 2, 2) \
  X(kAdd1, "ADD1", 2, 2) \
  X(kAddId, "ADD_ID", 3, 3) \
  X(kScale, "SCALE", 1, 1) \
  X(kSqr, "SQR", 1, 1) \
  X(kSqrt, "SQRT", 1, 1) \
  X(kLog, "LOG", 1, 1) \
  X(kSin, "SIN", 1, 1) \
  X(kCos, "COS", 1, 1) \
  X(kClamp, "CLAMP", 1, 1) \
  X(kFill, "FILL", 1, 1) \
  X(kLeakyRelu, "LEAKY_RELU", 1, 1) \
  X(kUnary, "UNARY", 1, 1) \
  X(kGlu, "GLU", 1, 2) \
  X(kSum, "SUM", 1, 1) \
  X(kSumRows, "SUM_ROWS", 1, 1) \
  X(kCumsum, "CUMSUM", 1, 1) \
  X(kMean, "MEAN", 1, 1) \
  X(kArgmax, "ARGMAX", 1, 1) \
  X(kCountEqual, "COUNT_EQUAL", 2, 2) \
  X(kArgsort, "ARGSORT", 1, 1) \
  X(kTopK, "TOP_K", 1, 1) \
  X(kArange, "ARANGE", 0, 0) \
  X(kTimestepEmbedding, "TIMESTEP_EMBEDDING", 1, 1) \
  X(kTri, "TRI", 1, 1) \
  X(kDiag, "DIAG", 1, 1) \
  X(kDiagMaskInf, "DIAG_MASK_INF", 1, 1) \
  X(kDiagMaskZero, "DIAG_MASK_ZERO", 1, 1) \
  X(kCrossEntropyLoss, "CROSS_ENTROPY_LOSS", 2, 2) \
  X(kUpscale, "UPSCALE", 1, 1) \
  X(kNorm, "NORM", 1, 1) \
  X(kRmsNorm, "RMS_NORM", 1, 1) \
  X(kL2Norm, "L2_NORM", 1, 1) \
  X(kGroupNorm, "GROUP_NORM", 1, 1) \
  X(kMulMat, "MUL_MAT", 2, 3) \
  X(kMulMatId, "MUL_MAT_ID", 3, 3) \
  X(kOutProd, "OUT_PROD", 2, 2) \
  X(kSolveTri, "SOLVE_TRI", 2, 2) \
  X(kSoftMax, "SOFT_MAX", 1, 3) \
  X(kFlashAttnExt, "FLASH_ATTN_EXT", 3, 5) \
  X(kRope, "ROPE", 2, 3) \
  X(kRopeBack, "ROPE_BACK", 2, 3) \
  X(kLightningIndexer, "LIGHTNING_INDEXER", 4, 4) \
  X(kDsv4HcComb, "DSV4_HC_COMB", 3, 3) \
  X(kDsv4HcPre, "DSV4_HC_PRE", 2, 2) \
  X(kDsv4HcPost, "DSV4_HC_POST", 3, 4) \
  X(kIm2col, "IM2COL", 2, 2) \
  X(kIm2col3d, "IM2COL_3D", 2, 2) \
  X(kConv2d, "CONV_2D", 2, 2) \
  X(kConv2dDw, "CONV_2D_DW", 2, 2) \
  X(kConv3d, "CONV_3D", 2, 2) \
  X(kConvTranspose1d, "CONV_TRANSPOSE_1D", 2, 2) \
  X(kConvTranspose2d, "CONV_TRANSPOSE_2D", 2, 2) \
  X(kCol2im1d, "COL2IM_1D", 1, 1) \
  X(kPool1d, "POOL_1D", 1, 1) \
  X(kPool2d, "POOL_2D", 1, 1) \
  X(kWinPart, "WIN_PART", 1, 1) \
  X(kWinUnpart, "WIN_UNPART", 1, 1) \
  X(kGetRelPos, "GET_REL_POS", 1, 1) \
  X(kSsmConv, "SSM_CONV", 2, 2) \
  X(kSsmScan, "SSM_SCAN", 7, 7) \
  X(kRwkvWkv6, "RWKV_WKV6", 6, 6) \
  X(kRwkvWkv7, "RWKV_WKV7", 7, 7) \
  X(kGatedLinearAttn, "GATED_LINEAR_ATTN", 5, 5) \
  X(kGatedDeltaNet, "GATED_DELTA_NET", 6, 6) \
  X(kQuantize, "QUANTIZE", 1, 1) \
  X(kNormScale, "NORM_SCALE", 2, 4) \
  X(kGluQuantize, "GLU_QUANTIZE", 1, 2) \
  X(kRopeSetRows, "ROPE_SET_ROWS", 4, 5) \
  X(kBinary, "BINARY", 2, 2) \
  X(kMap, "MAP", 1, 1) \
  X(kWhere, "WHERE", 3, 3) \
  X(kConvert, "CONVERT", 1, 1) \
  X(kReduce, "REDUCE", 1, 1) \
  X(kArgReduce, "ARG_REDUCE", 1, 1) \
  X(kCumulate, "CUMULATE", 1, 1) \
  X(kGather, "GATHER", 2, 2) \
  X(kScatter, "SCATTER", 3, 3) \
  X(kIndex, "INDEX", 2, 5) \
  X(kIndexPut, "INDEX_PUT", 3, 6) \
  X(kSortIndices, "SORT_INDICES", 1, 1) \
  X(kPadNd, "PAD_ND", 1, 1) \
  X(kConvNd, "CONV_ND", 2, 3) \
  X(kPoolNd, "POOL_ND", 1, 1) \
  X(kInterpolate, "INTERPOLATE", 1, 1) \
  X(kConv2dLast, "CONV_2D_LAST", 2, 4)
// clang-format on

enum class Op : int32_t {
#define WEFT_OP_ENUM(id, name, min_src, max_src) id,
  WEFT_OPS(WEFT_OP_ENUM)
#undef WEFT_OP_ENUM
      kCount
};

struct OpInfo {
  const char* name;
  int min_src;
  int max_src;
};

inline constexpr OpInfo kOpInfo[] = {
#define WEFT_OP_ROW(id, name, min_src, max_src) {name, min_src, max_src},
    WEFT_OPS(WEFT_OP_ROW)
#undef WEFT_OP_ROW
};
static_assert(sizeof(kOpInfo) / sizeof(kOpInfo[0]) == static_cast<std::size_t>(Op::kCount));

}  // namespace weft
