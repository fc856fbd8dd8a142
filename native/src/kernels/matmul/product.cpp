// The table of products, and what they refuse.
#include "kernels/matmul/product.h"

#include "kernels/matmul/matmul_floats.h"
#include "kernels/matmul/matmul_integers.h"
#include "kernels/matmul/matmul_lookup.h"

namespace weft::WEFT_TARGET {

namespace {

constexpr Way kDots = {multiply_dots};
constexpr Way kStoredPanels = {multiply_stored_panels};
constexpr Way kLookups = {multiply_lookups, &kLookupTables};
constexpr Way kTiles = {multiply_tiles, &kPackedCodes};
constexpr Way kFloatDots = {multiply_float_dots};
constexpr Way kFloatTiles = {multiply_float_tiles, &kPackedFloats};
constexpr Way kPanelColumn = {multiply_panel_column, nullptr, true};
constexpr Way kFloatPanels = {multiply_float_panels, &kPackedFloats, true};
constexpr Way kOrderedPanels = {multiply_ordered_panels, &kPackedFloats, true};

constexpr Product kProducts[] = {
    // layout, of integers, few columns, many columns, how many are few, scratch
    {Layout::kRows, true, kDots, kTiles, few_dots, multiply_integers_scratch},
    {Layout::kInterleaved, true, kStoredPanels, kTiles, few_panels, multiply_integers_scratch},
    {Layout::kLevels, true, kStoredPanels, kTiles, few_panels, multiply_integers_scratch},
    {Layout::kLookup, true, kLookups, kTiles, few_lookups, multiply_integers_scratch},
    {Layout::kRows, false, kFloatDots, kFloatTiles, few_float_dots, multiply_floats_scratch},
    {Layout::kInterleaved, false, kPanelColumn, kFloatPanels, one_column, multiply_floats_scratch},
    {Layout::kOrdered, false, kOrderedPanels, kOrderedPanels, one_column, multiply_floats_scratch},
};

}  // namespace

const Product& product_of(const Call& call) {
  const Tensor& w = *call.src[0];
  const bool of_integers = is_integer_product(w.type, call.src[1]->type);
  for (const Product& product : kProducts) {
    if (product.layout == w.layout && product.of_integers == of_integers) return product;
  }
  return kProducts[0];  // check_product refuses what is not in the table
}

void Product::multiply(const Weights& w, int64_t begin, int64_t end, const Columns& columns,
                       char* scratch) const {
  if (columns.n == 0 || begin >= end) return;
  if (w.k > 0) return way(w.type, columns.n).multiply(w, begin, end, columns, scratch);
  for (int64_t c = 0; c < columns.n; ++c) {
    std::memset(columns.out[c] + begin, 0, static_cast<size_t>(end - begin) * 4);
  }
}

const char* check_product(const Tensor& weights, const Tensor& columns, const Tensor& dst) {
  if (table().type(weights.type).to_float == nullptr) return "the weight type has no decoder";
  if (table().type(columns.type).to_float == nullptr || columns.type == DType::kI2_S) {
    return "the second source must be floats or quantized activations";
  }
  if (weights.layout == Layout::kInterleaved) {
    const bool taken = takes_float_panels(weights.type, columns.type) ||
                       is_integer_product(weights.type, columns.type);
    if (!taken || !table().type(weights.type).matmul_interleaved) {
      return "interleaved weights need activations of their companion type";
    }
  }
  if (weights.layout == Layout::kOrdered) {
    if (!takes_float_panels(weights.type, columns.type) ||
        !table().type(weights.type).matmul_interleaved) {
      return "only floats are added up in the order of panels";
    }
    const bool one = weights.ne[2] * weights.ne[3] == 1;
    if (weights.ne[1] % kItemRows != 0 && !(one && has_panels(weights.type, weights.ne[1]))) {
      return "the order of panels needs 32 rows, or more in one matrix";
    }
  }
  if (weights.layout == Layout::kLevels) {
    if (!table().type(weights.type).matmul_levels ||
        !is_integer_product(weights.type, columns.type)) {
      return "weights in the levels layout need a codebook type and activations of its companion";
    }
    if (weights.ne[1] % 32 != 0) return "the levels layout is for whole panels of 32 rows";
  }
  if (weights.layout == Layout::kLookup) {
    if (!table().type(weights.type).matmul_lookup) {
      return "this target looks up no weights of this type";
    }
    if (!is_integer_product(weights.type, columns.type)) {
      return "weights in the lookup layout need activations of their companion type";
    }
    if (weights.ne[2] * weights.ne[3] != 1) return "only one matrix may be in the lookup layout";
  }
  if (weights.ne[0] != columns.ne[0]) return "rows of the two sources differ in length";
  if (dst.type != DType::kF32 || dst.nb[0] != 4) return "the result must be f32 rows";
  if (weights.type == DType::kI2_S && !is_contiguous(weights)) {
    return "i2_s weights must be a whole tensor";
  }
  return nullptr;
}

}  // namespace weft::WEFT_TARGET
