// How the steps of a program are shared out: stages of tasks.
//
// A task is a loop that threads share: one step, or a chain of steps that work row by row, where
// each does a row before the next takes it over from the cache. Stages whose steps continue chains
// of the stage before become one stage, without a barrier between:
//
//     stages of the program    RMS_NORM | MUL | QUANTIZE | MUL_MAT, MUL_MAT | ROPE, ROPE
//     stages that run          RMS_NORM+MUL+QUANTIZE     | MUL_MAT, MUL_MAT | ROPE, ROPE
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace weft {

// Steps begin..end (exclusive) of `StepLayout::steps`.
struct Chain {
  int32_t begin = 0;
  int32_t end = 0;
};

// Stages of the program first..last (exclusive) as one, made of chains begin..end of
// `StepLayout::chains`. A stage that could not be joined with another has a chain for each step.
struct JoinedStage {
  int32_t first = 0;
  int32_t last = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

struct StepLayout {
  std::vector<int32_t> steps;  // numbers of steps, chain by chain
  std::vector<Chain> chains;
  std::vector<JoinedStage> stages;
};

// One step as the layout sees it: `calls[i]` at the symbols' maxima, `by_rows[i]` from the kernel.
struct LayoutInput {
  const Program* program = nullptr;
  std::vector<const Call*> calls;
  std::vector<bool> by_rows;
};

StepLayout make_layout(const LayoutInput& input);

// Empty, or which two steps of a stage may not run at the same time because one writes what the
// other reads or writes.
std::string find_clash(const Program& program, const std::vector<const Call*>& calls);

// Bytes from the first to the last element; -1 on overflow.
int64_t extent(const Tensor& t);

// Whether two tensors share bytes.
bool overlap(const Tensor& a, const Tensor& b);

}  // namespace weft
