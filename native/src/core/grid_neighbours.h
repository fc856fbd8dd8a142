// For the encoders of the codebook types: which vectors of levels a codebook has, and the nearest
// of those that it has for each that it lacks.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/types.h"

namespace weft {

// A vector is a number with 2 bits (iq3: 3) for each level, the first in the lowest bits.
struct GridNeighbours {
  // Lists are padded to a multiple of so many vectors, with the first one again.
  static constexpr int kPadding = 16;

  // By vector: its code, or -1 - n where its neighbours are lists[n], their number, and from
  // lists[n + 1] on their vectors. They are all those at the smallest distances (the number of
  // distances depends on the type), nearest first, and in the order of codes among equals.
  std::vector<int32_t> codes;
  std::vector<uint16_t> lists;
  // The vectors by code.
  std::vector<uint16_t> vectors;
};

// The neighbours of a codebook type, made at the first call. iq1_m has the codebook of iq1_s.
const GridNeighbours& grid_neighbours(DType type);

}  // namespace weft
