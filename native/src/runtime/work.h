// Estimates the work of a step: its multiply-adds where the op is a product, otherwise 64 per
// element of its largest tensor. The executor derives from it how many units a thread may do before
// it checks whether the run was stopped.
#pragma once

#include "kernels/kernel.h"

namespace weft {

double work_of(Op op, const Call& call);

}  // namespace weft
