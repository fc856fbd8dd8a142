// What this machine reaches at best with some threads: the roofs that measured speeds are held to.
#pragma once

#include "kernels/dispatch.h"

namespace weft {

struct Peaks {
  // Bytes per second read from memory, and operations per second (a multiply-add is two); 0 where
  // the target has no such instruction.
  double read = 0;
  double int8 = 0;
  double f32 = 0;
  double bf16 = 0;
  // Bytes of the buffer that was read.
  int64_t buffer = 0;
};

// The best of several short rounds, on threads of its own. `seconds` is shared by the figures;
// making the buffer comes on top. It is at least `buffer` bytes and several times the caches.
Peaks measure_peaks(const Target& target, int n_threads, double seconds, int64_t buffer);

}  // namespace weft
