// The contents of the native module, one function per file.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

const char* built_from();
void bind_convert(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_layouts(nb::module_& m);
void bind_mask(nb::module_& m);
void bind_packer(nb::module_& m);
void bind_peaks(nb::module_& m);
void bind_runtime(nb::module_& m);
void bind_strings(nb::module_& m);

NB_MODULE(_native, m) {
  m.doc() = "The native core: kernels, thread pool and executor.";
  // Sessions that live until the interpreter ends are not leaks.
  nb::set_leak_warnings(false);
  m.def(
      "built_for", [] { return WEFT_BUILT_FOR; },
      "The system, the processor and the compiler that this module was built for.");
  m.def("built_from", &built_from,
        "The commit that this module was built from, with + where files differed from it; empty "
        "where it "
        "is not known.");
  bind_convert(m);
  bind_experts(m);
  bind_kernels(m);
  bind_layouts(m);
  bind_mask(m);
  bind_packer(m);
  bind_peaks(m);
  bind_runtime(m);
  bind_strings(m);
}
