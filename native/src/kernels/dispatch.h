// Which kernel targets this build has, which this machine can run, and the best of them.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/peaks.h"

namespace weft {

struct Target {
  const char* name;
  const KernelTable& (*table)();
  // 0 when this machine cannot run the target; otherwise the target with the highest score is best.
  int score;
  const PeakLoops& (*peaks)();
};

// Every target of this build; the baseline, where there is one, comes first.
const std::vector<Target>& targets();

// The best target that this machine can run; the target called `name`. nullptr when there is none.
const Target* best_target();
const Target* find_target(const std::string& name);

// The names of the processor features that kernels use and this machine has.
std::vector<std::string> cpu_features();

}  // namespace weft
