// The multiply-adds of the ops that are products. This file is generated from src/weft/graph; `make
// headers` writes it again.
#pragma once

#include "kernels/kernel.h"

namespace weft {

// Size `d` of source `s`, 1 where it is absent; `first` is the product of its first n sizes.
inline double size(const Call& call, int s, int d) {
  return call.src[s] == nullptr ? 1.0 : static_cast<double>(call.src[s]->ne[d]);
}
inline double first(const Call& call, int s, double n) {
  double product = 1;
  for (int d = 0; d < n; ++d) product *= size(call, s, d);
  return product;
}

// The multiply-adds of a step whose result has `n` elements; negative when the op is no product.
// clang-format off
inline double multiply_adds(Op op, const Call& call, double n) {
  switch (op) {
    case Op::kFlashAttnExt:
      return size(call, 0, 1) * size(call, 0, 2) * size(call, 0, 3) * size(call, 1, 1) * (size(call, 0, 0) + 6 + size(call, 2, 0));
    case Op::kConv2d:
    case Op::kConv2dDw:
    case Op::kConv3d:
      return n * first(call, 0, 3);
    case Op::kConvTranspose1d:
      return first(call, 1, 4) * first(call, 0, 2);
    case Op::kConvTranspose2d:
      return first(call, 1, 4) * first(call, 0, 3);
    case Op::kConvNd:
      return call.number(ConvNdSlot::kTransposed) * (first(call, 0, 4) * first(call, 1, 4) / call.number(ConvNdSlot::kChannels)) + (1 - call.number(ConvNdSlot::kTransposed)) * (n * first(call, 1, call.number(ConvNdSlot::kDims)) * call.number(ConvNdSlot::kChannels) / call.number(ConvNdSlot::kGroups));
    case Op::kConv2dLast:
      return n * size(call, 1, 1) * size(call, 1, 2) * size(call, 1, 3);
    case Op::kMulMat:
    case Op::kMulMatId:
    case Op::kCdist:
    case Op::kMulMatInt:
      return n * size(call, 0, 0);
    case Op::kOutProd:
      return n * size(call, 0, 1);
    case Op::kRnn:
      return first(call, 1, 4) * size(call, 0, 0);
    default:
      return -1;
  }
}
// clang-format on

}  // namespace weft
