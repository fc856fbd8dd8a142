// Bindings that write attention masks, computed from a table of cache cells, into the memory that a
// graph reads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "runtime/mask.h"

namespace nb = nanobind;

namespace {

using Numbers = nb::ndarray<const int32_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Members = nb::ndarray<const bool, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bits = nb::ndarray<uint16_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Holds the arrays of a mask, so that writing a row takes one call with plain numbers.
class MaskWriter {
 public:
  MaskWriter(Numbers pos, Members members, Bits out, int64_t window, bool causal)
      : pos_(pos), members_(members), out_(out), window_(window), causal_(causal) {
    if (members.shape(1) != pos.shape(0)) {
      throw nb::value_error("members must have one column per cell of pos");
    }
  }

  void one(int64_t n_kv, int64_t position, int64_t seq) const {
    require(1, n_kv);
    row(0, n_kv, position, seq);
  }

  void all(int64_t n_kv, const Numbers& positions, const Numbers& seqs) const {
    const auto n = static_cast<int64_t>(positions.shape(0));
    if (static_cast<int64_t>(seqs.shape(0)) != n) {
      throw nb::value_error("there must be one sequence per position");
    }
    require(n, n_kv);
    for (int64_t i = 0; i < n; ++i) row(i, n_kv, positions.data()[i], seqs.data()[i]);
  }

 private:
  void require(int64_t n, int64_t n_kv) const {
    if (n_kv < 0 || n_kv > static_cast<int64_t>(pos_.shape(0)) ||
        (n_kv > 0 && n > static_cast<int64_t>(out_.shape(0)) / n_kv)) {
      throw nb::value_error("n_kv exceeds the cells of pos, or the rows do not fit out");
    }
  }

  void row(int64_t i, int64_t n_kv, int64_t position, int64_t seq) const {
    if (seq < 0 || seq >= static_cast<int64_t>(members_.shape(0))) {
      throw nb::value_error(("members has no sequence " + std::to_string(seq)).c_str());
    }
    int64_t above = INT32_MIN;
    int64_t last = causal_ ? position : INT32_MAX;
    if (window_ > 0) {
      above = position - (causal_ ? window_ : window_ / 2 + 1);
      if (!causal_) last = position + window_ / 2;
    }
    weft::fill_mask_row(pos_.data(), members_.data() + seq * static_cast<int64_t>(pos_.shape(0)),
                        n_kv, above, last, out_.data() + i * n_kv);
  }

  Numbers pos_;
  Members members_;
  Bits out_;
  int64_t window_;
  bool causal_;
};

}  // namespace

void bind_mask(nb::module_& m) {
  nb::class_<MaskWriter>(m, "MaskWriter",
                         "Writes rows of an attention mask: f16 0 for each cell that a token "
                         "sees, otherwise -inf.")
      .def(nb::init<Numbers, Members, Bits, int64_t, bool>(), nb::arg("pos"), nb::arg("members"),
           nb::arg("out"), nb::arg("window"), nb::arg("causal"),
           "Keeps `pos` [cells], `members` [sequences, cells] and `out`. A token sees only the "
           "last `window` positions (0: all), and with `causal` none behind its own; without it, "
           "half of the window is on each side.")
      .def("one", &MaskWriter::one, nb::arg("n_kv"), nb::arg("position"), nb::arg("seq"),
           "Writes a row of `n_kv` cells for one token; raises ValueError when it does not fit.")
      .def("all", &MaskWriter::all, nb::arg("n_kv"), nb::arg("positions"), nb::arg("seqs"),
           "Writes a row of `n_kv` cells for each token, one after another.");
}
