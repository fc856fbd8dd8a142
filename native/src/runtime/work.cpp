#include "runtime/work.h"

#include <algorithm>

#include "runtime/multiply_adds.h"

namespace weft {

namespace {

double elements(const Tensor& t) {
  return static_cast<double>(t.ne[0]) * static_cast<double>(t.ne[1]) *
         static_cast<double>(t.ne[2]) * static_cast<double>(t.ne[3]);
}

}  // namespace

double work_of(Op op, const Call& call) {
  const double result = elements(call.dst);
  if (const double count = multiply_adds(op, call, result); count >= 0) return count;
  // Some other ops do much per element; the executor measures how long they take.
  double work = result;
  for (const Tensor* src : call.src) {
    if (src != nullptr) work = std::max(work, elements(*src));
  }
  return 64 * work;
}

}  // namespace weft
