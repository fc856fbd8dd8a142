#include "runtime/work.h"

#include <algorithm>

namespace weft {

namespace {

double elements(const Tensor& t) {
  return static_cast<double>(t.ne[0]) * static_cast<double>(t.ne[1]) *
         static_cast<double>(t.ne[2]) * static_cast<double>(t.ne[3]);
}

double size(const Tensor* t, int d) { return t == nullptr ? 1.0 : static_cast<double>(t->ne[d]); }

}  // namespace

double work_of(Op op, const Call& call) {
  const Tensor* a = call.src[0];
  const Tensor* b = call.src[1];
  const double result = elements(call.dst);
  switch (op) {
    case Op::kMulMat:
    case Op::kMulMatId:
      return result * size(a, 0);
    case Op::kOutProd:
      return result * size(a, 1);
    case Op::kFlashAttnExt:
      return result * size(b, 1) * 2;
    case Op::kConv2d:
    case Op::kConv2dDw:
    case Op::kConv3d:
    case Op::kConvTranspose1d:
    case Op::kConvTranspose2d:
      return result * (a == nullptr ? 1.0 : elements(*a) / std::max(1.0, size(a, 3)));
    case Op::kConv2dLast:
      // weights of an output: all but the channels out, which come first
      return result * (b == nullptr ? 1.0 : elements(*b) / std::max(1.0, size(b, 0)));
    case Op::kConvNd:
      // weights of an output: all but the channels out, which come last
      return result * (b == nullptr ? 1.0 : elements(*b) / std::max(1.0, size(b, 3))) *
             (call.n_params > 0 && call.i(0) == 1 ? 1.0 / std::max(1.0, size(b, 2)) : 1.0);
    default:
      break;
  }
  // others may do much with an element; how much is measured
  double work = result;
  for (const Tensor* src : call.src) {
    if (src != nullptr) work = std::max(work, elements(*src));
  }
  return 64 * work;
}

}  // namespace weft
