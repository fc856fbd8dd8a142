// Loops that reach the highest rates one thread of this target is capable of, in arithmetic on
// registers and in reading memory. runtime/peaks.cpp times them.
#pragma once

#include <cstdint>

namespace weft {

struct PeakLoops {
  // Do `rounds` rounds and return the number of operations; a multiply-add counts as two. nullptr
  // where this machine lacks the instruction.

  // Dot products of 8-bit numbers, summed in 32 bits; with AVX2, of small numbers, in 16 bits.
  double (*int8)(int64_t rounds) = nullptr;
  double (*f32)(int64_t rounds) = nullptr;   // multiply-adds
  double (*bf16)(int64_t rounds) = nullptr;  // dot products of bf16, summed in f32
  // Reads n bytes, n a multiple of 512. Its result depends on all of them, so that no read is
  // optimized away.
  uint64_t (*read)(const char* data, int64_t n) = nullptr;
};

}  // namespace weft
