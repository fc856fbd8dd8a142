// Binding that measures the highest rates of this machine.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>

#include "runtime/peaks.h"

namespace nb = nanobind;

namespace {

// (read, int8, f32, bf16, buffer)
using Row = std::tuple<double, double, double, double, int64_t>;

Row measure(const std::string& target, int n_threads, double seconds, int64_t buffer) {
  const weft::Target* kernels = weft::find_target(target);
  if (kernels == nullptr || kernels->score == 0) {
    throw nb::value_error(("this machine cannot run a kernel target " + target).c_str());
  }
  if (n_threads < 1) throw nb::value_error("n_threads must be at least 1");
  nb::gil_scoped_release release;
  const weft::Peaks p = weft::measure_peaks(*kernels, n_threads, seconds, buffer);
  return {p.read, p.int8, p.f32, p.bf16, p.buffer};
}

}  // namespace

void bind_peaks(nb::module_& m) {
  m.def("measure_peaks", &measure, nb::arg("target"), nb::arg("n_threads"), nb::arg("seconds"),
        nb::arg("buffer"),
        "(read, int8, f32, bf16, buffer): bytes read per second, operations per second, and the "
        "bytes of the buffer that was read.");
}
