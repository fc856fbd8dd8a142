// Joins stages of a program into fewer stages, to save barriers between threads.
//
// A chain is a list of steps that work row by row: each step does a few rows, and the next step
// reads them while they are in the cache. A stage whose steps all continue chains of the stage
// before it, or are independent of them, is joined with that stage:
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

// The stages first..last (exclusive) of the program, joined into one. It has the chains begin..end
// (exclusive) of `StepLayout::chains`. A stage that was not joined has one chain per step.
struct JoinedStage {
  int32_t first = 0;
  int32_t last = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

struct StepLayout {
  std::vector<int32_t> steps;  // the indices of all steps, chain by chain
  std::vector<Chain> chains;
  std::vector<JoinedStage> stages;
};

// A program with, for each of its steps, the call at the symbols' maxima and Kernel::by_rows.
struct LayoutInput {
  const Program* program = nullptr;
  std::vector<const Call*> calls;
  std::vector<bool> by_rows;
};

StepLayout make_layout(const LayoutInput& input);

// An error that names two steps of the same stage of which one writes what the other reads or
// writes; empty when there are none.
std::string find_clash(const Program& program, const std::vector<const Call*>& calls);

// The number of bytes from the first to the end of the last element; -1 on overflow.
int64_t extent(const Tensor& t);

// Whether two tensors share bytes.
bool overlap(const Tensor& a, const Tensor& b);

}  // namespace weft
