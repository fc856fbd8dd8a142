#include "core/grid_neighbours.h"

#include <algorithm>
#include <array>

#include "quants/codebooks.h"

namespace weft {
namespace {

// Levels that encoders use are 0..top.
struct Shape {
  int length;
  int bits;
  int top;
  int distances;  // of the neighbours of a vector
};

template <int kCount>
std::vector<uint16_t> vectors_of(const uint16_t (&steps)[kCount]) {
  std::vector<uint16_t> vectors(kCount);
  uint16_t number = 0;
  for (int i = 0; i < kCount; ++i) {
    number = static_cast<uint16_t>(number + steps[i]);
    vectors[static_cast<size_t>(i)] = number;
  }
  return vectors;
}

int squared_distance(int a, int b, const Shape& shape) {
  int sum = 0;
  for (int i = 0; i < shape.length; ++i) {
    const int mask = (1 << shape.bits) - 1;
    const int diff = (a >> shape.bits * i & mask) - (b >> shape.bits * i & mask);
    sum += diff * diff;
  }
  return sum;
}

// Squared distances of vectors: the sum of the squared distances of their two halves.
class Distances {
 public:
  explicit Distances(const Shape& shape)
      : bits_(shape.length * shape.bits / 2), of_half_(size_t{1} << 2 * bits_) {
    Shape half = shape;
    half.length /= 2;
    for (int a = 0; a < 1 << bits_; ++a) {
      for (int b = 0; b < 1 << bits_; ++b) {
        of_half_[static_cast<size_t>(a << bits_ | b)] =
            static_cast<uint8_t>(squared_distance(a, b, half));
      }
    }
  }

  // To every vector of `others`.
  void measure(int number, const std::vector<uint16_t>& others, std::vector<uint8_t>& out) const {
    const int mask = (1 << bits_) - 1;
    const uint8_t* low = &of_half_[static_cast<size_t>((number & mask) << bits_)];
    const uint8_t* high = &of_half_[static_cast<size_t>(number >> bits_ << bits_)];
    for (size_t i = 0; i < others.size(); ++i) {
      out[i] = static_cast<uint8_t>(low[others[i] & mask] + high[others[i] >> bits_]);
    }
  }

 private:
  int bits_;
  std::vector<uint8_t> of_half_;
};

bool is_used(int number, const Shape& shape) {
  for (int i = 0; i < shape.length; ++i) {
    if ((number >> shape.bits * i & ((1 << shape.bits) - 1)) > shape.top) return false;
  }
  return true;
}

void append_neighbours(const std::vector<uint8_t>& distance, const Shape& shape,
                       GridNeighbours& grid) {
  std::array<int, 256> at_distance = {};
  for (const uint8_t d : distance) ++at_distance[d];
  const size_t start = grid.lists.size();
  grid.lists.push_back(0);
  int left = shape.distances;
  for (int d = 0; d < 256 && left > 0; ++d) {
    if (at_distance[static_cast<size_t>(d)] == 0) continue;
    --left;
    for (size_t i = 0; i < distance.size(); ++i) {
      if (distance[i] == d) grid.lists.push_back(grid.vectors[i]);
    }
  }
  const size_t n = grid.lists.size() - start - 1;
  grid.lists[start] = static_cast<uint16_t>(n);
  const size_t padded =
      (n + GridNeighbours::kPadding - 1) / GridNeighbours::kPadding * GridNeighbours::kPadding;
  grid.lists.resize(start + 1 + padded, grid.lists[start + 1]);
}

GridNeighbours make(std::vector<uint16_t> vectors, const Shape& shape) {
  GridNeighbours grid;
  grid.vectors = std::move(vectors);
  grid.codes.assign(size_t{1} << shape.length * shape.bits, 0);
  std::vector<uint8_t> is_vector(grid.codes.size());
  for (size_t i = 0; i < grid.vectors.size(); ++i) {
    grid.codes[grid.vectors[i]] = static_cast<int32_t>(i);
    is_vector[grid.vectors[i]] = 1;
  }
  const Distances distances(shape);
  std::vector<uint8_t> distance(grid.vectors.size());
  for (int number = 0; number < static_cast<int>(grid.codes.size()); ++number) {
    const auto at = static_cast<size_t>(number);
    if (is_vector[at] || !is_used(number, shape)) continue;
    grid.codes[at] = -1 - static_cast<int32_t>(grid.lists.size());
    distances.measure(number, grid.vectors, distance);
    append_neighbours(distance, shape, grid);
  }
  return grid;
}

}  // namespace

const GridNeighbours& grid_neighbours(DType type) {
  switch (type) {
    case DType::kIQ2_XXS: {
      static const GridNeighbours grid = make(vectors_of(kStepsIQ2_XXS), {8, 2, 2, 2});
      return grid;
    }
    case DType::kIQ2_XS: {
      static const GridNeighbours grid = make(vectors_of(kStepsIQ2_XS), {8, 2, 2, 2});
      return grid;
    }
    case DType::kIQ2_S: {
      static const GridNeighbours grid = make(vectors_of(kStepsIQ2_S), {8, 2, 2, 1});
      return grid;
    }
    case DType::kIQ3_XXS: {
      static const GridNeighbours grid = make(vectors_of(kStepsIQ3_XXS), {4, 3, 7, 2});
      return grid;
    }
    case DType::kIQ3_S: {
      static const GridNeighbours grid = make(vectors_of(kStepsIQ3_S), {4, 3, 7, 3});
      return grid;
    }
    default: {
      static const GridNeighbours grid = make(vectors_of(kStepsIQ1), {8, 2, 2, 3});
      return grid;
    }
  }
}

}  // namespace weft
