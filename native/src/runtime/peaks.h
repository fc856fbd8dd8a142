// The highest rates that this machine reaches, which measured speeds are compared with.
#pragma once

#include "kernels/dispatch.h"

namespace weft {

struct Peaks {
  // Bytes per second read from memory, and operations per second (a multiply-add counts as two); 0
  // where the target lacks the instruction.
  double read = 0;
  double int8 = 0;
  double f32 = 0;
  double bf16 = 0;
  // The size in bytes of the buffer that was read.
  int64_t buffer = 0;
};

// Takes the best of several short rounds on `n_threads` new threads. All measurements together take
// about `seconds`, and filling the buffer some more. The buffer has at least `buffer` bytes and
// four times the last cache, but at most 1 GiB and an eighth of the free memory.
Peaks measure_peaks(const Target& target, int n_threads, double seconds, int64_t buffer);

}  // namespace weft
