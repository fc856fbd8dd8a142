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
  // 0: this machine cannot run it; else higher is better.
  int score;
  const PeakLoops& (*peaks)();
};

// Every target of this build, baseline first.
const std::vector<Target>& targets();

// The best target that this machine can run, or the one called `name`; nullptr when there is none.
const Target* best_target();
const Target* find_target(const std::string& name);

// Names of the CPU features that kernels care about and this machine has.
std::vector<std::string> cpu_features();

}  // namespace weft
