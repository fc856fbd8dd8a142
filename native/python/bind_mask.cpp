// Attention masks from a table of cells, written where a graph reads them.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "runtime/mask.h"

namespace nb = nanobind;

namespace {

using Numbers = nb::ndarray<const int32_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Members = nb::ndarray<const bool, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<uint16_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Found once, so that a row costs one call with plain numbers. The arrays are kept alive.
class MaskWriter {
 public:
  MaskWriter(Numbers pos, Members members, Bits out, int64_t window, bool causal)
      : pos_(pos), members_(members), out_(out), window_(window), causal_(causal) {
    if (members.shape(1) != pos.shape(0)) throw nb::value_error("a column per cell is needed");
  }

  void one(int64_t n_kv, int64_t position, int64_t seq) const {
    require(1, n_kv);
    row(0, n_kv, position, seq);
  }

  void all(int64_t n_kv, const Numbers& positions, const Numbers& seqs) const {
    const auto n = static_cast<int64_t>(positions.shape(0));
    if (static_cast<int64_t>(seqs.shape(0)) != n) throw nb::value_error("a sequence per position");
    require(n, n_kv);
    for (int64_t i = 0; i < n; ++i) row(i, n_kv, positions.data()[i], seqs.data()[i]);
  }

 private:
  void require(int64_t n, int64_t n_kv) const {
    if (n_kv < 0 || n_kv > static_cast<int64_t>(pos_.shape(0)) ||
        (n_kv > 0 && n > static_cast<int64_t>(out_.shape(0)) / n_kv)) {
      throw nb::value_error("more cells than there are, or rows than fit");
    }
  }

  void row(int64_t i, int64_t n_kv, int64_t position, int64_t seq) const {
    if (seq < 0 || seq >= static_cast<int64_t>(members_.shape(0))) {
      throw nb::value_error("no such sequence");
    }
    const int64_t above = window_ > 0 ? position - window_ : INT32_MIN;
    weft::fill_mask_row(pos_.data(), members_.data() + seq * static_cast<int64_t>(pos_.shape(0)),
                        n_kv, above, causal_ ? position : INT32_MAX, out_.data() + i * n_kv);
  }

  Numbers pos_;
  Members members_;
  Bits out_;
  int64_t window_;
  bool causal_;
};

}  // namespace

void bind_mask(nb::module_& m) {
  nb::class_<MaskWriter>(m, "MaskWriter", "Writes which cells tokens see, as f16 0 and -inf.")
      .def(nb::init<Numbers, Members, Bits, int64_t, bool>(), nb::arg("pos"), nb::arg("members"),
           nb::arg("out"), nb::arg("window"), nb::arg("causal"),
           "`pos` [cells], `members` [sequences, cells] and `out` are kept; `window`: last "
           "positions that a token sees, 0: all; `causal`: not those behind it.")
      .def("one", &MaskWriter::one, nb::arg("n_kv"), nb::arg("position"), nb::arg("seq"),
           "A row of `n_kv` cells for a token; raises ValueError where it does not fit.")
      .def("all", &MaskWriter::all, nb::arg("n_kv"), nb::arg("positions"), nb::arg("seqs"),
           "A row for each token, one after another.");
}
