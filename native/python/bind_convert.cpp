// Binding for conversions of the rows of files.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <mutex>
#include <optional>
#include <string>

#include "kernels/dispatch.h"
#include "runtime/convert_rows.h"

namespace nb = nanobind;

namespace {

using weft::DType;

using Bytes = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

class RowConverter {
 public:
  RowConverter(int n_threads, const std::string& target)
      : target_(target.empty() ? weft::best_target() : weft::find_target(target)),
        pool_(checked(n_threads)) {
    if (target_ == nullptr || target_->score == 0) {
      throw nb::value_error(("this machine cannot run kernel target " + target).c_str());
    }
  }

  bool can(int from, int to, bool weighted) const {
    return is_type(from) && is_type(to) &&
           weft::can_convert(target_->table(), static_cast<DType>(from), static_cast<DType>(to),
                             weighted);
  }

  int64_t convert(int from, int to, Bytes src, MutableBytes dst, int64_t ne0,
                  int64_t rows_per_matrix, std::optional<Floats> weights) {
    if (!can(from, to, weights.has_value())) throw nb::value_error("these types have no converter");
    const int64_t n_rows = rows_of(from, src.size(), ne0);
    if (n_rows < 0 || n_rows != rows_of(to, dst.size(), ne0) || rows_per_matrix < 1 ||
        n_rows % rows_per_matrix != 0) {
      throw nb::value_error("the sizes of the two arrays do not match");
    }
    if (weights && static_cast<int64_t>(weights->size()) != n_rows / rows_per_matrix * ne0) {
      throw nb::value_error("there must be a weight for each column of each matrix");
    }
    const weft::ConvertRows rows = {static_cast<DType>(from),
                                    static_cast<DType>(to),
                                    reinterpret_cast<const char*>(src.data()),
                                    reinterpret_cast<char*>(dst.data()),
                                    n_rows,
                                    ne0,
                                    weights ? weights->data() : nullptr,
                                    rows_per_matrix};
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return weft::convert_rows(target_->table(), rows, pool_);
  }

 private:
  static int checked(int n_threads) {
    if (n_threads < 1 || n_threads > 1024) throw nb::value_error("1 to 1024 threads");
    return n_threads;
  }

  static bool is_type(int type) {
    return type >= 0 && type < weft::kDTypeCount &&
           weft::dtype_info(static_cast<DType>(type)).name != nullptr;
  }

  // -1 where the bytes are not whole rows.
  static int64_t rows_of(int type, size_t bytes, int64_t ne0) {
    const weft::DTypeInfo& info = weft::dtype_info(static_cast<DType>(type));
    if (ne0 < 1 || ne0 % info.block != 0) return -1;
    const int64_t row = ne0 / info.block * info.block_size;
    const auto all = static_cast<int64_t>(bytes);
    return all % row == 0 ? all / row : -1;
  }

  const weft::Target* target_;
  weft::ThreadPool pool_;
  std::mutex mutex_;
};

}  // namespace

void bind_convert(nb::module_& m) {
  nb::class_<RowConverter>(m, "RowConverter",
                           "Threads that convert rows of one type to another, as files have them.")
      .def(nb::init<int, const std::string&>(), nb::arg("n_threads"), nb::arg("target") = "")
      .def("can", &RowConverter::can, nb::arg("before"), nb::arg("after"), nb::arg("weighted"))
      .def("convert", &RowConverter::convert, nb::arg("before"), nb::arg("after"), nb::arg("src"),
           nb::arg("dst"), nb::arg("ne0"), nb::arg("rows_per_matrix"),
           nb::arg("weights").none() = nb::none(),
           "Returns -1, or the number of a row with a value that is not finite.");
}
