// Encoders of the rows of a file, without or with an importance matrix.
#pragma once

#include <cstdint>

namespace weft {

// Rows to encode, one after the other. `weights` are those of the ne0 columns, or nullptr.
struct EncodeRows {
  const float* src;
  void* dst;
  int64_t n_rows;
  int64_t ne0;
  const float* weights;
};

}  // namespace weft
