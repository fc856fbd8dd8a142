// Puts items with a lifetime and a size into memory, one after the other, each at the lowest offset
// that no item living at the same time covers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace weft {

// The chunk and the offset of each item; the size of each chunk and the limit to which it may grow.
struct Packing {
  std::vector<int64_t> offsets;
  std::vector<int32_t> chunk_of;
  std::vector<int64_t> chunks;
  std::vector<int64_t> limits;
  // The items that end above a bound, and by how many bytes, summed.
  std::vector<int32_t> above;
  int64_t excess = 0;
};

class Packer {
 public:
  // `neighbours`: for each item those that live at the same time; `limit`: bytes of a chunk, unless
  // one item needs more. Throws std::invalid_argument where a neighbour is no item.
  Packer(std::vector<int64_t> sizes, std::vector<std::vector<int32_t>> neighbours, int64_t limit);

  // Puts all items of `order` but for the first `kept`, which stay where `packing` has them. Where
  // several chunks have room, an item goes to the one that grows least. Throws
  // std::invalid_argument where `order` is none of these items.
  void pack(const std::vector<int32_t>& order, size_t kept, int64_t bound, Packing& packing) const;

 private:
  // By chunk, the ranges that an item's neighbours cover.
  using Ranges = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

  void place(int32_t item, Ranges& occupied, Packing& packing) const;

  std::vector<int64_t> sizes_;
  std::vector<std::vector<int32_t>> neighbours_;
  int64_t limit_;
};

}  // namespace weft
