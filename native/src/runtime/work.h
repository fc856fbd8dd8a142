// How much work a step is, roughly: products for matrix products, elements for everything else.
// Decides how long a thread may be away before it looks whether the run was stopped.
#pragma once

#include "kernels/kernel.h"

namespace weft {

double work_of(Op op, const Call& call);

}  // namespace weft
