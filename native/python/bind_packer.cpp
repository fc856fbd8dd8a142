// Binding of the packer of arenas.
#include <nanobind/nanobind.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>
#include <vector>

#include "core/packer.h"

namespace nb = nanobind;

namespace {

using Bytes = std::vector<int64_t>;
using Items = std::vector<int32_t>;

// (offsets, chunk_of, chunks, limits, above, excess)
using Packed = std::tuple<Bytes, Items, Bytes, Bytes, Items, int64_t>;

Packed pack(const weft::Packer& packer, const Items& order, size_t kept, int64_t bound,
            Bytes offsets, Items chunk_of) {
  weft::Packing packing;
  packing.offsets = std::move(offsets);
  packing.chunk_of = std::move(chunk_of);
  packer.pack(order, kept, bound, packing);
  return {std::move(packing.offsets), std::move(packing.chunk_of), std::move(packing.chunks),
          std::move(packing.limits),  std::move(packing.above),    packing.excess};
}

}  // namespace

void bind_packer(nb::module_& m) {
  nb::class_<weft::Packer>(m, "Packer",
                           "Puts items with a lifetime and a size into memory, each at the lowest "
                           "offset that no item living at the same time covers.")
      .def(nb::init<Bytes, std::vector<Items>, int64_t>(), nb::arg("sizes"), nb::arg("neighbours"),
           nb::arg("limit"),
           "`neighbours`: for each item those that live at the same time; `limit`: bytes of a "
           "chunk, unless one item needs more.")
      .def("pack", &pack, nb::arg("order"), nb::arg("kept"), nb::arg("bound"), nb::arg("offsets"),
           nb::arg("chunk_of"),
           "(offsets, chunk_of, chunks, limits, above, excess): the items in this order, of which "
           "the first `kept` stay where they are; those that end above `bound`, and by how many "
           "bytes, summed.");
}
