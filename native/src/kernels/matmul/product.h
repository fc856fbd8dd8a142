// The ways to compute a product.
//
// The types and the layout of the weights choose a product of the table in product.cpp, and the
// number of columns one of its two ways. A product also says what it needs: scratch, and the form
// of columns that threads share. MUL_MAT and MUL_MAT_ID ask nothing else.
#pragma once

#include "kernels/matmul/matmul_engine.h"

namespace weft::WEFT_TARGET {

// A form of columns that is made once for all rows, by all threads.
struct SharedForm {
  // Whether it is made in parts of the depth; otherwise it is made of kPackUnit columns at a time.
  bool by_depth;
  // Whether so many columns (their data does not count) are worth waiting for each other.
  bool (*pays)(const Weights& w, const Columns& columns);
  size_t (*bytes)(int64_t n_columns, int64_t k);
  // Sets where the columns from number `first` of `n_columns` on are in it.
  void (*find)(char* shared, int64_t first, int64_t n_columns, int64_t k, Columns& columns);
  // Makes these columns, at most kPackUnit, or parts begin..end of their depth, where `find` says.
  void (*make)(const Weights& w, const Columns& columns, int64_t begin, int64_t end);
};

// Columns that are packed at a time: whole runs on every target.
inline constexpr int64_t kPackUnit = 48;

// Chunks of 32 elements that a part of the depth has.
inline constexpr int64_t kPartChunks = 8;

struct Way {
  // out[c][r] = row r . column c, for rows begin..end; k > 0.
  void (*multiply)(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                   char* scratch);
  // What it reads columns from, where that is made.
  const SharedForm* form = nullptr;
  // Whether it finishes results (Columns::finish).
  bool finishes = false;
};

struct Product {
  Layout layout;
  bool of_integers;  // weights and activations of their companion type; otherwise floats
  Way few, many;
  // The maximum number of columns for which it takes the first way.
  int64_t (*few_columns)(DType weights);
  // Scratch that it needs for up to `columns.n` columns.
  size_t (*scratch)(const Columns& columns, int64_t k, Layout layout);

  const Way& way(DType weights, int64_t n_columns) const {
    return n_columns <= few_columns(weights) ? few : many;
  }
  // Rows begin..end of `w`, by the way for these columns.
  void multiply(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                char* scratch) const;
};

// The product of sources 0 and 1, which check_product takes.
const Product& product_of(const Call& call);

// nullptr when there is a product of operands of these types, else why not.
const char* check_product(const Tensor& weights, const Tensor& columns, const Tensor& dst);

}  // namespace weft::WEFT_TARGET
