// Converts the rows of a matrix from one type to another, as files have them, on several threads.
#pragma once

#include <cstdint>

#include "kernels/kernel.h"
#include "threads/pool.h"

namespace weft {

struct ConvertRows {
  DType from;
  DType to;
  const char* src;
  char* dst;
  int64_t n_rows;
  int64_t ne0;
  // Weights of columns, or nullptr: ne0 for each matrix of rows_per_matrix rows.
  const float* weights;
  int64_t rows_per_matrix;
};

// Whether the kernels of `table` can do it; with weights, or without.
bool can_convert(const KernelTable& table, DType from, DType to, bool weighted);

// Returns -1, or the number of a row with a value that is not finite (then dst may hold anything).
// Each thread decodes a few rows at a time into its scratch memory.
int64_t convert_rows(const KernelTable& table, const ConvertRows& rows, ThreadPool& pool);

}  // namespace weft
