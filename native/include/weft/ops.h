// The ops with their parameters, generated from src/weft/graph; `make headers` writes it again.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft {

// clang-format off
// The number of members of an enumeration; they are numbered from 0 on.
template <typename Enum>
inline constexpr int64_t kMembers = 0;

enum class Op : int32_t {
  kNone, kUnary, kGlu, kAdd, kSub, kMul, kDiv, kAdd1, kAddId, kScale, kSqr, kSqrt, kLog, kSin,
  kCos, kClamp, kFill, kLeakyRelu, kSoftMax, kFlashAttnExt, kLightningIndexer, kIm2col, kIm2col3d,
  kCol2im1d, kConv2d, kConv2dDw, kConv3d, kConvTranspose1d, kConvTranspose2d, kReshape, kView,
  kPermute, kTranspose, kDup, kCont, kCpy, kAcc, kSet, kBinary, kMap, kWhere, kConvert, kReduce,
  kArgReduce, kCumulate, kCumulateArg, kRope, kRopeBack, kHadamard, kNormScale, kGluQuantize,
  kRopeSetRows, kDsv4HcComb, kDsv4HcPre, kDsv4HcPost, kConvNd, kConv2dLast, kPoolNd, kInterpolate,
  kGather, kScatter, kIndex, kIndexPut, kSortIndices, kPadNd, kSearchSorted, kNorm, kRmsNorm,
  kL2Norm, kGroupNorm, kMulMat, kMulMatId, kOutProd, kSolveTri, kQuantize, kCdist, kMulMatInt,
  kSsmConv, kSsmScan, kRwkvWkv6, kRwkvWkv7, kGatedLinearAttn, kGatedDeltaNet, kRnn, kLinearScan,
  kSum, kSumRows, kMean, kCumsum, kArgmax, kCountEqual, kArgsort, kTopK, kArange,
  kTimestepEmbedding, kTri, kDiag, kDiagMaskInf, kDiagMaskZero, kCrossEntropyLoss, kGetRows,
  kGetRowsBack, kSetRows, kConcat, kRepeat, kRepeatBack, kRoll, kPad, kPadReflect1d, kUpscale,
  kPool1d, kPool2d, kWinPart, kWinUnpart, kGetRelPos, kCount
};

enum class UnaryOp : int64_t {
  kAbs = 0, kSgn = 1, kNeg = 2, kStep = 3, kTanh = 4, kElu = 5, kRelu = 6, kSigmoid = 7,
  kGelu = 8, kGeluQuick = 9, kSilu = 10, kHardswish = 11, kHardsigmoid = 12, kExp = 13,
  kExpm1 = 14, kSoftplus = 15, kGeluErf = 16, kXielu = 17, kFloor = 18, kCeil = 19, kRound = 20,
  kTrunc = 21
};

template <>
inline constexpr int64_t kMembers<UnaryOp> = 22;

enum class GluOp : int64_t {
  kReglu = 0, kGeglu = 1, kSwiglu = 2, kSwigluOai = 3, kGegluErf = 4, kGegluQuick = 5,
  kSwigluClamp = 6
};

template <>
inline constexpr int64_t kMembers<GluOp> = 7;

enum class BinaryOp : int64_t {
  kAdd = 0, kSub = 1, kMul = 2, kDiv = 3, kFloorDiv = 4, kTruncDiv = 5, kRemainder = 6, kFmod = 7,
  kPow = 8, kMin = 9, kMax = 10, kAtan2 = 11, kEq = 12, kNe = 13, kLt = 14, kLe = 15, kGt = 16,
  kGe = 17, kLogicalAnd = 18, kLogicalOr = 19, kLogicalXor = 20, kBitAnd = 21, kBitOr = 22,
  kBitXor = 23, kShiftLeft = 24, kShiftRight = 25
};

template <>
inline constexpr int64_t kMembers<BinaryOp> = 26;

enum class MapOp : int64_t {
  kAbs = 0, kNeg = 1, kSign = 2, kBitNot = 3, kClamp = 4, kRoundEven = 5, kExp2 = 6, kLog2 = 7,
  kLog10 = 8, kLog1p = 9, kRsqrt = 10, kReciprocal = 11, kTan = 12, kAsin = 13, kAcos = 14,
  kAtan = 15, kSinh = 16, kCosh = 17, kAsinh = 18, kAcosh = 19, kAtanh = 20, kErf = 21,
  kErfc = 22, kElu = 23, kSoftplus = 24, kSoftshrink = 25, kHardshrink = 26, kThreshold = 27,
  kHardsigmoid = 28, kMish = 29, kLogSigmoid = 30, kLeakyRelu = 31, kPow = 32, kGelu = 33,
  kGeluTanh = 34, kLogicalNot = 35, kIsNan = 36, kIsInf = 37, kIsFinite = 38
};

template <>
inline constexpr int64_t kMembers<MapOp> = 39;

enum class ReduceOp : int64_t {
  kSum = 0, kMean = 1, kMax = 2, kMin = 3, kProd = 4, kAny = 5, kAll = 6
};

template <>
inline constexpr int64_t kMembers<ReduceOp> = 7;

enum class CumulateOp : int64_t {
  kSum = 0, kProd = 1
};

template <>
inline constexpr int64_t kMembers<CumulateOp> = 2;

enum class RopeMode : int64_t {
  kNormal = 0, kNeox = 2, kMrope = 8, kVision = 24, kImrope = 40
};

enum class Activation : int64_t {
  kRelu = 0, kTanh = 1, kSigmoid = 2, kSilu = 3, kGelu = 4, kGeluQuick = 5, kGeluErf = 6,
  kHardswish = 7, kHardsigmoid = 8, kClamp = 9
};

template <>
inline constexpr int64_t kMembers<Activation> = 10;

enum class PoolKind : int64_t {
  kAvg = 0, kMax = 1, kMaxIndex = 2, kMaxFinite = 3
};

template <>
inline constexpr int64_t kMembers<PoolKind> = 4;

enum class InterpolateMode : int64_t {
  kNearest = 0, kNearestExact = 1, kLinear = 2, kCubic = 3, kUpscaleNearest = 4,
  kUpscaleLinear = 5, kUpscaleCubic = 6, kUpscaleTriangle = 7
};

template <>
inline constexpr int64_t kMembers<InterpolateMode> = 8;

enum class ScatterMode : int64_t {
  kSet = 0, kAdd = 1
};

template <>
inline constexpr int64_t kMembers<ScatterMode> = 2;

enum class PadMode : int64_t {
  kConstant = 0, kReflect = 1, kReplicate = 2, kCircular = 3
};

template <>
inline constexpr int64_t kMembers<PadMode> = 4;

enum class RnnCell : int64_t {
  kLstm = 0, kGru = 1, kTanh = 2, kRelu = 3
};

template <>
inline constexpr int64_t kMembers<RnnCell> = 4;

enum class SortOrder : int64_t {
  kAsc = 0, kDesc = 1
};

template <>
inline constexpr int64_t kMembers<SortOrder> = 2;

enum class TriKind : int64_t {
  kUpperDiag = 0, kUpper = 1, kLowerDiag = 2, kLower = 3
};

template <>
inline constexpr int64_t kMembers<TriKind> = 4;

enum class ScaleMode : int64_t {
  kNearest = 0, kBilinear = 1, kBicubic = 2
};

template <>
inline constexpr int64_t kMembers<ScaleMode> = 3;

enum class PoolOp : int64_t {
  kMax = 0, kAvg = 1
};

template <>
inline constexpr int64_t kMembers<PoolOp> = 2;

// Parameters of UNARY.
enum class UnarySlot : int {
  kOp = 0, kAlphaN = 1, kAlphaP = 2, kBeta = 3, kEps = 4, kSlots = 5
};

// Parameters of GLU, GLU_QUANTIZE.
enum class GluSlot : int {
  kOp = 0, kSwapped = 1, kAlpha = 2, kLimit = 3, kSlots = 4
};

// Parameters of SCALE.
enum class ScaleSlot : int {
  kS = 0, kB = 1, kSlots = 2
};

// Parameters of CLAMP.
enum class ClampSlot : int {
  kMin = 0, kMax = 1, kSlots = 2
};

// Parameters of FILL.
enum class FillSlot : int {
  kC = 0, kSlots = 1
};

// Parameters of LEAKY_RELU.
enum class LeakyReluSlot : int {
  kNegativeSlope = 0, kSlots = 1
};

// Parameters of SOFT_MAX.
enum class SoftMaxSlot : int {
  kScale = 0, kMaxBias = 1, kSlots = 2
};

// Parameters of FLASH_ATTN_EXT.
enum class FlashAttnSlot : int {
  kScale = 0, kMaxBias = 1, kLogitSoftcap = 2, kSlots = 3
};

// Parameters of IM2COL.
enum class Im2ColSlot : int {
  kStride = 0, kPadding = 2, kDilation = 4, kIs2d = 6, kSlots = 7
};

// Parameters of IM2COL_3D.
enum class Im2Col3dSlot : int {
  kChannels = 0, kStride = 1, kPadding = 4, kDilation = 7, kSlots = 10
};

// Parameters of COL2IM_1D.
enum class Col2ImSlot : int {
  kStride = 0, kOc = 1, kPadding = 2, kSlots = 3
};

// Parameters of CONV_2D, CONV_2D_DW.
enum class ConvSlot : int {
  kStride = 0, kPadding = 2, kDilation = 4, kSlots = 6
};

// Parameters of CONV_3D.
enum class Conv3dSlot : int {
  kStride = 0, kPadding = 3, kDilation = 6, kNChannels = 9, kNBatch = 10, kNChannelsOut = 11,
  kSlots = 12
};

// Parameters of CONV_TRANSPOSE_1D.
enum class ConvTranspose1dSlot : int {
  kStride = 0, kPadding = 1, kDilation = 2, kSlots = 3
};

// Parameters of CONV_TRANSPOSE_2D.
enum class ConvTranspose2dSlot : int {
  kStride = 0, kSlots = 1
};

// Parameters of ACC, SET.
enum class AccSlot : int {
  kNb1 = 0, kNb2 = 1, kNb3 = 2, kOffset = 3, kSlots = 4
};

// Parameters of BINARY.
enum class BinarySlot : int {
  kOp = 0, kSlots = 1
};

// Parameters of MAP.
enum class MapSlot : int {
  kOp = 0, kA = 1, kB = 2, kC = 3, kSlots = 4
};

// Parameters of CONVERT.
enum class ConvertSlot : int {
  kBoolean = 0, kSlots = 1
};

// Parameters of REDUCE.
enum class ReduceSlot : int {
  kOp = 0, kAxes = 1, kSlots = 2
};

// Parameters of ARG_REDUCE, CUMULATE_ARG.
enum class ArgReduceSlot : int {
  kLargest = 0, kAxis = 1, kSlots = 2
};

// Parameters of CUMULATE.
enum class CumulateSlot : int {
  kOp = 0, kAxis = 1, kSlots = 2
};

// Parameters of ROPE, ROPE_BACK, ROPE_SET_ROWS.
enum class RopeSlot : int {
  kMode = 0, kNDims = 1, kNCtxOrig = 2, kFreqBase = 3, kFreqScale = 4, kExtFactor = 5,
  kAttnFactor = 6, kBetaFast = 7, kBetaSlow = 8, kNOffset = 9, kSections = 10, kSlots = 14
};

// Parameters of HADAMARD.
enum class HadamardSlot : int {
  kN = 0, kSlots = 1
};

// Parameters of NORM_SCALE.
enum class NormScaleSlot : int {
  kEps = 0, kCentred = 1, kSlots = 2
};

// Parameters of DSV4_HC_COMB.
enum class HcCombSlot : int {
  kEps = 0, kNIter = 1, kSlots = 2
};

// Parameters of DSV4_HC_PRE.
enum class HcPreSlot : int {
  kGated = 0, kScale = 1, kSlots = 2
};

// Parameters of CONV_ND.
enum class ConvNdSlot : int {
  kDims = 0, kChannels = 1, kGroups = 2, kStride = 3, kPadding = 6, kDilation = 9,
  kOutputPadding = 12, kTransposed = 15, kSlots = 16
};

// Parameters of CONV_2D_LAST.
enum class ConvLastSlot : int {
  kStride = 0, kPadding = 2, kPaddingAfter = 4, kDilation = 6, kGroups = 8, kFunction = 9,
  kLow = 10, kHigh = 11, kSlots = 12
};

// Parameters of POOL_ND.
enum class PoolNdSlot : int {
  kKind = 0, kDims = 1, kKernel = 2, kStride = 5, kPadding = 8, kDilation = 11,
  kCountIncludePad = 14, kDivisor = 15, kAdaptive = 16, kSlots = 17
};

// Parameters of INTERPOLATE.
enum class InterpolateSlot : int {
  kMode = 0, kDims = 1, kAlignCorners = 2, kScaleW = 3, kScaleH = 4, kScaleD = 5, kSlots = 6
};

// Parameters of GATHER.
enum class AxisSlot : int {
  kAxis = 0, kSlots = 1
};

// Parameters of SCATTER.
enum class ScatterSlot : int {
  kAxis = 0, kMode = 1, kSlots = 2
};

// Parameters of INDEX.
enum class IndexSlot : int {
  kAxes = 0, kRank = 1, kFirst = 2, kSlots = 3
};

// Parameters of INDEX_PUT.
enum class IndexPutSlot : int {
  kAxes = 0, kRank = 1, kFirst = 2, kAccumulate = 3, kSlots = 4
};

// Parameters of SORT_INDICES.
enum class SortIndicesSlot : int {
  kAxis = 0, kDescending = 1, kSlots = 2
};

// Parameters of PAD_ND.
enum class PadNdSlot : int {
  kLeft = 0, kRight = 4, kMode = 8, kValue = 9, kSlots = 10
};

// Parameters of SEARCH_SORTED.
enum class SearchSortedSlot : int {
  kRight = 0, kSlots = 1
};

// Parameters of NORM, RMS_NORM, L2_NORM.
enum class EpsSlot : int {
  kEps = 0, kSlots = 1
};

// Parameters of GROUP_NORM.
enum class GroupNormSlot : int {
  kNGroups = 0, kEps = 1, kSlots = 2
};

// Parameters of MUL_MAT.
enum class ActivationSlot : int {
  kOp = 0, kLow = 1, kHigh = 2, kSlots = 3
};

// Parameters of SOLVE_TRI.
enum class SolveTriSlot : int {
  kLeft = 0, kLower = 1, kUni = 2, kSlots = 3
};

// Parameters of CDIST.
enum class CdistSlot : int {
  kP = 0, kSlots = 1
};

// Parameters of SSM_SCAN.
enum class SsmScanSlot : int {
  kK = 0, kSlots = 1
};

// Parameters of GATED_LINEAR_ATTN.
enum class LinearAttnSlot : int {
  kScale = 0, kSlots = 1
};

// Parameters of GATED_DELTA_NET.
enum class DeltaNetSlot : int {
  kK = 0, kSlots = 1
};

// Parameters of RNN.
enum class RnnSlot : int {
  kCell = 0, kReverse = 1, kSlots = 2
};

// Parameters of ARGSORT.
enum class ArgsortSlot : int {
  kOrder = 0, kSlots = 1
};

// Parameters of TOP_K.
enum class TopKSlot : int {
  kK = 0, kSlots = 1
};

// Parameters of ARANGE.
enum class ArangeSlot : int {
  kStart = 0, kStop = 1, kStep = 2, kSlots = 3
};

// Parameters of TIMESTEP_EMBEDDING.
enum class TimestepSlot : int {
  kDim = 0, kMaxPeriod = 1, kSlots = 2
};

// Parameters of TRI.
enum class TriSlot : int {
  kKind = 0, kSlots = 1
};

// Parameters of DIAG_MASK_INF, DIAG_MASK_ZERO.
enum class DiagMaskSlot : int {
  kNPast = 0, kSlots = 1
};

// Parameters of CONCAT.
enum class ConcatSlot : int {
  kDim = 0, kSlots = 1
};

// Parameters of ROLL.
enum class RollSlot : int {
  kShift = 0, kSlots = 4
};

// Parameters of PAD.
enum class PadSlot : int {
  kLeft = 0, kRight = 4, kCircular = 8, kSlots = 9
};

// Parameters of PAD_REFLECT_1D.
enum class PadReflectSlot : int {
  kP0 = 0, kP1 = 1, kSlots = 2
};

// Parameters of UPSCALE.
enum class UpscaleSlot : int {
  kMode = 0, kAlignCorners = 1, kAntialias = 2, kSlots = 3
};

// Parameters of POOL_1D.
enum class Pool1dSlot : int {
  kOp = 0, kK0 = 1, kS0 = 2, kP0 = 3, kSlots = 4
};

// Parameters of POOL_2D.
enum class Pool2dSlot : int {
  kOp = 0, kK0 = 1, kK1 = 2, kS0 = 3, kS1 = 4, kP0 = 5, kP1 = 6, kSlots = 7
};

// Parameters of WIN_PART, WIN_UNPART.
enum class WinSlot : int {
  kW = 0, kSlots = 1
};

struct OpInfo {
  const char* name;
  int min_src;
  int max_src;
  int n_params;             // numbers in the record of parameters
  bool params_optional;     // a step may have no record
  const char* description;  // the line of weft.graph.op_table
};

inline constexpr OpInfo kOpInfo[] = {
  {"NONE", 0, 10, 0, false,
   "NONE 0..10"},
  {"UNARY", 1, 1, 5, false,
   "UNARY 1..1 op:UnaryOp(ABS=0,SGN=1,NEG=2,STEP=3,TANH=4,ELU=5,RELU=6,SIGMOID=7,GELU=8,GELU_QUICK=9,SILU=10,HARDSWISH=11,HARDSIGMOID=12,EXP=13,EXPM1=14,SOFTPLUS=15,GELU_ERF=16,XIELU=17,FLOOR=18,CEIL=19,ROUND=20,TRUNC=21) alpha_n:float alpha_p:float beta:float eps:float"},
  {"GLU", 1, 2, 4, false,
   "GLU 1..2 op:GluOp(REGLU=0,GEGLU=1,SWIGLU=2,SWIGLU_OAI=3,GEGLU_ERF=4,GEGLU_QUICK=5,SWIGLU_CLAMP=6) swapped:bool alpha:float limit:float"},
  {"ADD", 2, 2, 0, false,
   "ADD 2..2"},
  {"SUB", 2, 2, 0, false,
   "SUB 2..2"},
  {"MUL", 2, 2, 0, false,
   "MUL 2..2"},
  {"DIV", 2, 2, 0, false,
   "DIV 2..2"},
  {"ADD1", 2, 2, 0, false,
   "ADD1 2..2"},
  {"ADD_ID", 3, 3, 0, false,
   "ADD_ID 3..3"},
  {"SCALE", 1, 1, 2, false,
   "SCALE 1..1 s:float b:float"},
  {"SQR", 1, 1, 0, false,
   "SQR 1..1"},
  {"SQRT", 1, 1, 0, false,
   "SQRT 1..1"},
  {"LOG", 1, 1, 0, false,
   "LOG 1..1"},
  {"SIN", 1, 1, 0, false,
   "SIN 1..1"},
  {"COS", 1, 1, 0, false,
   "COS 1..1"},
  {"CLAMP", 1, 1, 2, false,
   "CLAMP 1..1 min:float max:float"},
  {"FILL", 1, 1, 1, false,
   "FILL 1..1 c:float"},
  {"LEAKY_RELU", 1, 1, 1, false,
   "LEAKY_RELU 1..1 negative_slope:float"},
  {"SOFT_MAX", 1, 3, 2, false,
   "SOFT_MAX 1..3 scale:float max_bias:float"},
  {"FLASH_ATTN_EXT", 3, 5, 3, false,
   "FLASH_ATTN_EXT 3..5 scale:float max_bias:float logit_softcap:float"},
  {"LIGHTNING_INDEXER", 4, 4, 0, false,
   "LIGHTNING_INDEXER 4..4"},
  {"IM2COL", 2, 2, 7, false,
   "IM2COL 2..2 stride:int[2] padding:int[2] dilation:int[2] is_2d:bool"},
  {"IM2COL_3D", 2, 2, 10, false,
   "IM2COL_3D 2..2 channels:int stride:int[3] padding:int[3] dilation:int[3]"},
  {"COL2IM_1D", 1, 1, 3, false,
   "COL2IM_1D 1..1 stride:int oc:int padding:int"},
  {"CONV_2D", 2, 2, 6, false,
   "CONV_2D 2..2 stride:int[2] padding:int[2] dilation:int[2]"},
  {"CONV_2D_DW", 2, 2, 6, false,
   "CONV_2D_DW 2..2 stride:int[2] padding:int[2] dilation:int[2]"},
  {"CONV_3D", 2, 2, 12, false,
   "CONV_3D 2..2 stride:int[3] padding:int[3] dilation:int[3] n_channels:int n_batch:int n_channels_out:int"},
  {"CONV_TRANSPOSE_1D", 2, 2, 3, false,
   "CONV_TRANSPOSE_1D 2..2 stride:int padding:int dilation:int"},
  {"CONV_TRANSPOSE_2D", 2, 2, 1, false,
   "CONV_TRANSPOSE_2D 2..2 stride:int"},
  {"RESHAPE", 1, 1, 0, false,
   "RESHAPE 1..1"},
  {"VIEW", 1, 1, 0, false,
   "VIEW 1..1"},
  {"PERMUTE", 1, 1, 0, false,
   "PERMUTE 1..1"},
  {"TRANSPOSE", 1, 1, 0, false,
   "TRANSPOSE 1..1"},
  {"DUP", 1, 1, 0, false,
   "DUP 1..1"},
  {"CONT", 1, 1, 0, false,
   "CONT 1..1"},
  {"CPY", 2, 2, 0, false,
   "CPY 2..2"},
  {"ACC", 2, 2, 4, false,
   "ACC 2..2 nb1:int nb2:int nb3:int offset:int"},
  {"SET", 2, 2, 4, false,
   "SET 2..2 nb1:int nb2:int nb3:int offset:int"},
  {"BINARY", 2, 2, 1, false,
   "BINARY 2..2 op:BinaryOp(ADD=0,SUB=1,MUL=2,DIV=3,FLOOR_DIV=4,TRUNC_DIV=5,REMAINDER=6,FMOD=7,POW=8,MIN=9,MAX=10,ATAN2=11,EQ=12,NE=13,LT=14,LE=15,GT=16,GE=17,LOGICAL_AND=18,LOGICAL_OR=19,LOGICAL_XOR=20,BIT_AND=21,BIT_OR=22,BIT_XOR=23,SHIFT_LEFT=24,SHIFT_RIGHT=25)"},
  {"MAP", 1, 1, 4, false,
   "MAP 1..1 op:MapOp(ABS=0,NEG=1,SIGN=2,BIT_NOT=3,CLAMP=4,ROUND_EVEN=5,EXP2=6,LOG2=7,LOG10=8,LOG1P=9,RSQRT=10,RECIPROCAL=11,TAN=12,ASIN=13,ACOS=14,ATAN=15,SINH=16,COSH=17,ASINH=18,ACOSH=19,ATANH=20,ERF=21,ERFC=22,ELU=23,SOFTPLUS=24,SOFTSHRINK=25,HARDSHRINK=26,THRESHOLD=27,HARDSIGMOID=28,MISH=29,LOG_SIGMOID=30,LEAKY_RELU=31,POW=32,GELU=33,GELU_TANH=34,LOGICAL_NOT=35,IS_NAN=36,IS_INF=37,IS_FINITE=38) a:float b:float c:float"},
  {"WHERE", 3, 3, 0, false,
   "WHERE 3..3"},
  {"CONVERT", 1, 1, 1, false,
   "CONVERT 1..1 boolean:bool"},
  {"REDUCE", 1, 1, 2, false,
   "REDUCE 1..1 op:ReduceOp(SUM=0,MEAN=1,MAX=2,MIN=3,PROD=4,ANY=5,ALL=6) axes:int"},
  {"ARG_REDUCE", 1, 1, 2, false,
   "ARG_REDUCE 1..1 largest:bool axis:int"},
  {"CUMULATE", 1, 1, 2, false,
   "CUMULATE 1..1 op:CumulateOp(SUM=0,PROD=1) axis:int"},
  {"CUMULATE_ARG", 1, 1, 2, false,
   "CUMULATE_ARG 1..1 largest:bool axis:int"},
  {"ROPE", 2, 3, 14, false,
   "ROPE 2..3 mode:RopeMode(NORMAL=0,NEOX=2,MROPE=8,VISION=24,IMROPE=40) n_dims:int n_ctx_orig:int freq_base:float freq_scale:float ext_factor:float attn_factor:float beta_fast:float beta_slow:float n_offset:int sections:int[4]"},
  {"ROPE_BACK", 2, 3, 14, false,
   "ROPE_BACK 2..3 mode:RopeMode(NORMAL=0,NEOX=2,MROPE=8,VISION=24,IMROPE=40) n_dims:int n_ctx_orig:int freq_base:float freq_scale:float ext_factor:float attn_factor:float beta_fast:float beta_slow:float n_offset:int sections:int[4]"},
  {"HADAMARD", 1, 1, 1, false,
   "HADAMARD 1..1 n:int"},
  {"NORM_SCALE", 2, 4, 2, false,
   "NORM_SCALE 2..4 eps:float centred:bool"},
  {"GLU_QUANTIZE", 1, 2, 4, false,
   "GLU_QUANTIZE 1..2 op:GluOp(REGLU=0,GEGLU=1,SWIGLU=2,SWIGLU_OAI=3,GEGLU_ERF=4,GEGLU_QUICK=5,SWIGLU_CLAMP=6) swapped:bool alpha:float limit:float"},
  {"ROPE_SET_ROWS", 4, 5, 14, false,
   "ROPE_SET_ROWS 4..5 mode:RopeMode(NORMAL=0,NEOX=2,MROPE=8,VISION=24,IMROPE=40) n_dims:int n_ctx_orig:int freq_base:float freq_scale:float ext_factor:float attn_factor:float beta_fast:float beta_slow:float n_offset:int sections:int[4]"},
  {"DSV4_HC_COMB", 3, 3, 2, false,
   "DSV4_HC_COMB 3..3 eps:float n_iter:int"},
  {"DSV4_HC_PRE", 2, 2, 2, false,
   "DSV4_HC_PRE 2..2 gated:bool scale:float"},
  {"DSV4_HC_POST", 3, 4, 0, false,
   "DSV4_HC_POST 3..4"},
  {"CONV_ND", 2, 3, 16, false,
   "CONV_ND 2..3 dims:int channels:int groups:int stride:int[3] padding:int[3] dilation:int[3] output_padding:int[3] transposed:bool"},
  {"CONV_2D_LAST", 2, 5, 12, false,
   "CONV_2D_LAST 2..5 stride:int[2] padding:int[2] padding_after:int[2] dilation:int[2] groups:int function:Activation(RELU=0,TANH=1,SIGMOID=2,SILU=3,GELU=4,GELU_QUICK=5,GELU_ERF=6,HARDSWISH=7,HARDSIGMOID=8,CLAMP=9) low:float high:float"},
  {"POOL_ND", 1, 1, 17, false,
   "POOL_ND 1..1 kind:PoolKind(AVG=0,MAX=1,MAX_INDEX=2,MAX_FINITE=3) dims:int kernel:int[3] stride:int[3] padding:int[3] dilation:int[3] count_include_pad:bool divisor:int adaptive:bool"},
  {"INTERPOLATE", 1, 1, 6, false,
   "INTERPOLATE 1..1 mode:InterpolateMode(NEAREST=0,NEAREST_EXACT=1,LINEAR=2,CUBIC=3,UPSCALE_NEAREST=4,UPSCALE_LINEAR=5,UPSCALE_CUBIC=6,UPSCALE_TRIANGLE=7) dims:int align_corners:bool scale_w:float scale_h:float scale_d:float"},
  {"GATHER", 2, 2, 1, false,
   "GATHER 2..2 axis:int"},
  {"SCATTER", 3, 3, 2, false,
   "SCATTER 3..3 axis:int mode:ScatterMode(SET=0,ADD=1)"},
  {"INDEX", 2, 5, 3, false,
   "INDEX 2..5 axes:int rank:int first:int"},
  {"INDEX_PUT", 3, 6, 4, false,
   "INDEX_PUT 3..6 axes:int rank:int first:int accumulate:bool"},
  {"SORT_INDICES", 1, 1, 2, false,
   "SORT_INDICES 1..1 axis:int descending:bool"},
  {"PAD_ND", 1, 1, 10, false,
   "PAD_ND 1..1 left:int[4] right:int[4] mode:PadMode(CONSTANT=0,REFLECT=1,REPLICATE=2,CIRCULAR=3) value:float"},
  {"SEARCH_SORTED", 2, 2, 1, false,
   "SEARCH_SORTED 2..2 right:bool"},
  {"NORM", 1, 1, 1, false,
   "NORM 1..1 eps:float"},
  {"RMS_NORM", 1, 1, 1, false,
   "RMS_NORM 1..1 eps:float"},
  {"L2_NORM", 1, 1, 1, false,
   "L2_NORM 1..1 eps:float"},
  {"GROUP_NORM", 1, 1, 2, false,
   "GROUP_NORM 1..1 n_groups:int eps:float"},
  {"MUL_MAT", 2, 3, 3, true,
   "MUL_MAT 2..3 op:Activation(RELU=0,TANH=1,SIGMOID=2,SILU=3,GELU=4,GELU_QUICK=5,GELU_ERF=6,HARDSWISH=7,HARDSIGMOID=8,CLAMP=9) low:float high:float optional"},
  {"MUL_MAT_ID", 3, 3, 0, false,
   "MUL_MAT_ID 3..3"},
  {"OUT_PROD", 2, 2, 0, false,
   "OUT_PROD 2..2"},
  {"SOLVE_TRI", 2, 2, 3, false,
   "SOLVE_TRI 2..2 left:bool lower:bool uni:bool"},
  {"QUANTIZE", 1, 1, 0, false,
   "QUANTIZE 1..1"},
  {"CDIST", 2, 2, 1, false,
   "CDIST 2..2 p:float"},
  {"MUL_MAT_INT", 2, 2, 0, false,
   "MUL_MAT_INT 2..2"},
  {"SSM_CONV", 2, 2, 0, false,
   "SSM_CONV 2..2"},
  {"SSM_SCAN", 7, 7, 1, false,
   "SSM_SCAN 7..7 k:int"},
  {"RWKV_WKV6", 6, 6, 0, false,
   "RWKV_WKV6 6..6"},
  {"RWKV_WKV7", 7, 7, 0, false,
   "RWKV_WKV7 7..7"},
  {"GATED_LINEAR_ATTN", 5, 5, 1, false,
   "GATED_LINEAR_ATTN 5..5 scale:float"},
  {"GATED_DELTA_NET", 6, 6, 1, false,
   "GATED_DELTA_NET 6..6 k:int"},
  {"RNN", 3, 6, 2, false,
   "RNN 3..6 cell:RnnCell(LSTM=0,GRU=1,TANH=2,RELU=3) reverse:bool"},
  {"LINEAR_SCAN", 3, 3, 0, false,
   "LINEAR_SCAN 3..3"},
  {"SUM", 1, 1, 0, false,
   "SUM 1..1"},
  {"SUM_ROWS", 1, 1, 0, false,
   "SUM_ROWS 1..1"},
  {"MEAN", 1, 1, 0, false,
   "MEAN 1..1"},
  {"CUMSUM", 1, 1, 0, false,
   "CUMSUM 1..1"},
  {"ARGMAX", 1, 1, 0, false,
   "ARGMAX 1..1"},
  {"COUNT_EQUAL", 2, 2, 0, false,
   "COUNT_EQUAL 2..2"},
  {"ARGSORT", 1, 1, 1, false,
   "ARGSORT 1..1 order:SortOrder(ASC=0,DESC=1)"},
  {"TOP_K", 1, 1, 1, false,
   "TOP_K 1..1 k:int"},
  {"ARANGE", 0, 0, 3, false,
   "ARANGE 0..0 start:float stop:float step:float"},
  {"TIMESTEP_EMBEDDING", 1, 1, 2, false,
   "TIMESTEP_EMBEDDING 1..1 dim:int max_period:int"},
  {"TRI", 1, 1, 1, false,
   "TRI 1..1 kind:TriKind(UPPER_DIAG=0,UPPER=1,LOWER_DIAG=2,LOWER=3)"},
  {"DIAG", 1, 1, 0, false,
   "DIAG 1..1"},
  {"DIAG_MASK_INF", 1, 1, 1, false,
   "DIAG_MASK_INF 1..1 n_past:int"},
  {"DIAG_MASK_ZERO", 1, 1, 1, false,
   "DIAG_MASK_ZERO 1..1 n_past:int"},
  {"CROSS_ENTROPY_LOSS", 2, 2, 0, false,
   "CROSS_ENTROPY_LOSS 2..2"},
  {"GET_ROWS", 2, 2, 0, false,
   "GET_ROWS 2..2"},
  {"GET_ROWS_BACK", 2, 3, 0, false,
   "GET_ROWS_BACK 2..3"},
  {"SET_ROWS", 3, 3, 0, false,
   "SET_ROWS 3..3"},
  {"CONCAT", 2, 2, 1, false,
   "CONCAT 2..2 dim:int"},
  {"REPEAT", 1, 1, 0, false,
   "REPEAT 1..1"},
  {"REPEAT_BACK", 1, 1, 0, false,
   "REPEAT_BACK 1..1"},
  {"ROLL", 1, 1, 4, false,
   "ROLL 1..1 shift:int[4]"},
  {"PAD", 1, 1, 9, false,
   "PAD 1..1 left:int[4] right:int[4] circular:bool"},
  {"PAD_REFLECT_1D", 1, 1, 2, false,
   "PAD_REFLECT_1D 1..1 p0:int p1:int"},
  {"UPSCALE", 1, 1, 3, false,
   "UPSCALE 1..1 mode:ScaleMode(NEAREST=0,BILINEAR=1,BICUBIC=2) align_corners:bool antialias:bool"},
  {"POOL_1D", 1, 1, 4, false,
   "POOL_1D 1..1 op:PoolOp(MAX=0,AVG=1) k0:int s0:int p0:int"},
  {"POOL_2D", 1, 1, 7, false,
   "POOL_2D 1..1 op:PoolOp(MAX=0,AVG=1) k0:int k1:int s0:int s1:int p0:int p1:int"},
  {"WIN_PART", 1, 1, 1, false,
   "WIN_PART 1..1 w:int"},
  {"WIN_UNPART", 1, 1, 1, false,
   "WIN_UNPART 1..1 w:int"},
  {"GET_REL_POS", 1, 1, 0, false,
   "GET_REL_POS 1..1"},
};
// clang-format on

static_assert(sizeof(kOpInfo) / sizeof(kOpInfo[0]) == static_cast<std::size_t>(Op::kCount));

}  // namespace weft
