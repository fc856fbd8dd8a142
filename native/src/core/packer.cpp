#include "core/packer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace weft {

namespace {

void open_chunks(size_t n, int64_t limit, Packing& packing) {
  while (packing.chunks.size() < n) {
    packing.chunks.push_back(0);
    packing.limits.push_back(limit);
  }
}

}  // namespace

Packer::Packer(std::vector<int64_t> sizes, std::vector<std::vector<int32_t>> neighbours,
               int64_t limit)
    : sizes_(std::move(sizes)), neighbours_(std::move(neighbours)), limit_(limit) {
  const auto n = static_cast<int64_t>(sizes_.size());
  bool good = neighbours_.size() == sizes_.size();
  for (const std::vector<int32_t>& own : neighbours_) {
    for (const int32_t j : own) good = good && j >= 0 && j < n;
  }
  if (!good) throw std::invalid_argument("a neighbour is no item");
}

void Packer::pack(const std::vector<int32_t>& order, size_t kept, int64_t bound,
                  Packing& packing) const {
  const size_t n = sizes_.size();
  std::vector<bool> seen(n);
  for (const int32_t i : order) {
    if (i < 0 || static_cast<size_t>(i) >= n || seen[static_cast<size_t>(i)]) break;
    seen[static_cast<size_t>(i)] = true;
  }
  if (order.size() != n || std::find(seen.begin(), seen.end(), false) != seen.end() || kept > n) {
    throw std::invalid_argument("an order has each item once");
  }
  packing.offsets.resize(n, -1);
  packing.chunk_of.resize(n, 0);
  packing.chunks.clear();
  packing.limits.clear();
  for (size_t k = 0; k < kept; ++k) {
    const auto i = static_cast<size_t>(order[k]);
    const auto c = static_cast<size_t>(packing.chunk_of[i]);
    open_chunks(c + 1, limit_, packing);
    const int64_t top = packing.offsets[i] + sizes_[i];
    packing.chunks[c] = std::max(packing.chunks[c], top);
    packing.limits[c] = std::max(packing.limits[c], top);
  }
  for (size_t k = kept; k < n; ++k) packing.offsets[static_cast<size_t>(order[k])] = -1;
  Ranges occupied;
  for (size_t k = kept; k < n; ++k) place(order[k], occupied, packing);
  packing.above.clear();
  packing.excess = 0;
  for (size_t i = 0; i < n; ++i) {
    const int64_t more = packing.offsets[i] + sizes_[i] - bound;
    if (more <= 0) continue;
    packing.above.push_back(static_cast<int32_t>(i));
    packing.excess += more;
  }
}

void Packer::place(int32_t item, Ranges& occupied, Packing& packing) const {
  const auto i = static_cast<size_t>(item);
  const int64_t size = sizes_[i];
  occupied.resize(packing.chunks.size());
  for (auto& ranges : occupied) ranges.clear();
  for (const int32_t neighbour : neighbours_[i]) {
    const auto j = static_cast<size_t>(neighbour);
    const int64_t low = packing.offsets[j];
    if (low < 0) continue;
    occupied[static_cast<size_t>(packing.chunk_of[j])].emplace_back(low, low + sizes_[j]);
  }
  size_t best = occupied.size();
  int64_t least = 0, offset = 0;
  for (size_t c = 0; c < occupied.size(); ++c) {
    std::sort(occupied[c].begin(), occupied[c].end());
    int64_t free = 0;
    for (const auto& [low, high] : occupied[c]) {
      if (low - free >= size) break;
      free = std::max(free, high);
    }
    const int64_t growth = std::max<int64_t>(0, free + size - packing.chunks[c]);
    if (free + size > packing.limits[c] || (best < occupied.size() && growth >= least)) continue;
    best = c;
    least = growth;
    offset = free;
    if (growth == 0) break;
  }
  if (best == occupied.size()) open_chunks(best + 1, std::max(limit_, size), packing);
  packing.offsets[i] = offset;
  packing.chunk_of[i] = static_cast<int32_t>(best);
  packing.chunks[best] = std::max(packing.chunks[best], offset + size);
}

}  // namespace weft
