// Loops that show what one thread of this target can reach: arithmetic that stays in registers, and
// reading memory. runtime/peaks.cpp times them.
#pragma once

#include <cstdint>

namespace weft {

struct PeakLoops {
  // Does `rounds` rounds and returns the operations done, a multiply-add being two. nullptr: this
  // machine has no such instruction.
  // dot products of 8-bit numbers, summed in 32 bits; with AVX2 of small ones, in 16 bits
  double (*int8)(int64_t rounds) = nullptr;
  double (*f32)(int64_t rounds) = nullptr;   // multiply-adds
  double (*bf16)(int64_t rounds) = nullptr;  // dot products of bf16, summed in f32
  // Reads n bytes, a multiple of 512; the result depends on all of them.
  uint64_t (*read)(const char* data, int64_t n) = nullptr;
};

}  // namespace weft
