// Bindings for programs, which are read from flat tables, thread pools and executors.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include "runtime/executor.h"

namespace nb = nanobind;

namespace {

using weft::Code;
using weft::Executor;
using weft::Program;
using weft::Status;

using Table = nb::ndarray<const int64_t, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Names = std::vector<std::string>;
// (buffer, store, stack) of the buffers whose experts are in a store.
using Experts = std::vector<std::tuple<size_t, std::shared_ptr<weft::ExpertStore>, int>>;
using Symbols = std::vector<std::tuple<std::string, int64_t, int64_t>>;

// The columns of the tables; src/weft/backends/cpu/native_program.py writes them.
constexpr size_t kExprColumns = 3;                  // kind, a, b
constexpr size_t kTensorColumns = 3 + 2 * 9;        // type, buffer, layout, (value, expr) x 9
constexpr size_t kStepColumns = 4 + weft::kMaxSrc;  // op, dst, first_param, n_params, src...
constexpr size_t kStageColumns = 2;                 // begin, end

void want_columns(const Table& table, size_t columns, const char* what) {
  if (table.shape(1) != columns) {
    throw nb::value_error((std::string(what) + " table needs " + std::to_string(columns) +
                           " columns, got " + std::to_string(table.shape(1)))
                              .c_str());
  }
}

int32_t narrow(int64_t v) {
  if (v < INT32_MIN || v > INT32_MAX) throw nb::value_error("a table entry exceeds 32 bits");
  return static_cast<int32_t>(v);
}

void throw_status(const Status& s) {
  if (!s.is_ok()) throw nb::value_error(s.message().c_str());
}

Program make_program(const Symbols& symbols, const Table& exprs,
                     const std::vector<int64_t>& buffers, const Names& names, const Table& tensors,
                     const Table& steps, const Table& stages, const std::vector<double>& params) {
  want_columns(exprs, kExprColumns, "expression");
  want_columns(tensors, kTensorColumns, "tensor");
  want_columns(steps, kStepColumns, "step");
  want_columns(stages, kStageColumns, "stage");
  if (names.size() != tensors.shape(0)) throw nb::value_error("there must be one name per tensor");
  Program p;
  for (const auto& [name, min, max] : symbols) p.symbols.push_back({name, min, max});
  for (size_t i = 0; i < exprs.shape(0); ++i) {
    const int64_t* row = exprs.data() + i * kExprColumns;
    p.exprs.push_back({static_cast<weft::ExprKind>(narrow(row[0])), row[1], row[2]});
  }
  p.buffers = buffers;
  for (size_t i = 0; i < tensors.shape(0); ++i) {
    const int64_t* row = tensors.data() + i * kTensorColumns;
    weft::TensorDecl t;
    t.name = names[i];
    t.type = static_cast<weft::DType>(narrow(row[0]));
    t.buffer = narrow(row[1]);
    t.layout = static_cast<weft::Layout>(narrow(row[2]));
    const auto size = [&](size_t k) { return weft::Size{row[3 + 2 * k], narrow(row[4 + 2 * k])}; };
    for (size_t d = 0; d < 4; ++d) {
      t.ne[d] = size(d);
      t.nb[d] = size(4 + d);
    }
    t.offset = size(8);
    p.tensors.push_back(std::move(t));
  }
  for (size_t i = 0; i < steps.shape(0); ++i) {
    const int64_t* row = steps.data() + i * kStepColumns;
    weft::StepDecl s;
    s.op = static_cast<weft::Op>(narrow(row[0]));
    s.dst = narrow(row[1]);
    s.first_param = narrow(row[2]);
    s.n_params = narrow(row[3]);
    for (size_t k = 0; k < weft::kMaxSrc; ++k) s.src[k] = narrow(row[4 + k]);
    p.steps.push_back(s);
  }
  for (size_t i = 0; i < stages.shape(0); ++i) {
    const int64_t* row = stages.data() + i * kStageColumns;
    p.stages.push_back({narrow(row[0]), narrow(row[1])});
  }
  p.params = params;
  throw_status(p.check());
  return p;
}

std::unique_ptr<Executor> make_executor(const Program& program,
                                        const std::vector<std::tuple<uintptr_t, int64_t>>& memory,
                                        const std::string& target,
                                        std::shared_ptr<weft::ThreadPool> pool,
                                        const Experts& experts) {
  const weft::Target* kernels = weft::find_target(target);
  if (kernels == nullptr) throw nb::value_error(("no kernel target " + target).c_str());
  if (pool == nullptr) throw nb::value_error("an executor needs a thread pool");
  std::vector<weft::Block> blocks;
  for (const auto& [address, size] : memory) {
    blocks.push_back({reinterpret_cast<char*>(address), size});
  }
  std::unique_ptr<Executor> executor;
  std::vector<weft::ExpertBuffer> buffers;
  for (const auto& [buffer, store, stack] : experts) buffers.push_back({buffer, store, stack});
  throw_status(Executor::create(program, std::move(blocks), *kernels, std::move(pool), executor,
                                std::move(buffers)));
  return executor;
}

// Python handles signals on its main thread only, so other threads need not take its lock.
bool on_main_thread() {
  static const auto main = nb::cast<unsigned long>(
      nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  return PyThread_get_thread_ident() == main;
}

bool run(Executor& executor, const std::vector<int64_t>& values) {
  Status status = Status::ok();
  bool interrupted = false;
  std::function<bool()> poll;
  if (on_main_thread()) {
    // Handles signals during the run, so that Ctrl-C stops a long run soon.
    poll = [&] {
      nb::gil_scoped_acquire acquire;
      interrupted = PyErr_CheckSignals() != 0;
      return interrupted;
    };
  }
  {
    nb::gil_scoped_release release;
    status = executor.run(values, poll);
  }
  if (interrupted) throw nb::python_error();
  if (status.code() == Code::kAborted) return false;
  if (executor.unreadable()) {
    PyErr_SetString(PyExc_OSError, status.message().c_str());
    throw nb::python_error();
  }
  throw_status(status);
  return true;
}

// Memory that is written for the first time is written several times as fast in large pages.
void use_large_pages(uintptr_t memory, size_t n_bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr size_t kLarge = size_t{4} << 20;  // bytes
  if (n_bytes < kLarge) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (memory + page - 1) / page * page;
  madvise(reinterpret_cast<void*>(first), (memory + n_bytes - first) / page * page, MADV_HUGEPAGE);
#else
  (void)memory, (void)n_bytes;
#endif
}

void copy_bytes(const std::vector<uintptr_t>& targets, const std::vector<uintptr_t>& sources,
                const std::vector<size_t>& sizes) {
  if (sources.size() != targets.size() || sizes.size() != targets.size()) {
    throw nb::value_error("copy_bytes needs one source and one size for each target");
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (sizes[i] == 0) continue;
    use_large_pages(targets[i], sizes[i]);
    std::memmove(reinterpret_cast<void*>(targets[i]), reinterpret_cast<const void*>(sources[i]),
                 sizes[i]);
  }
}

std::shared_ptr<weft::ThreadPool> make_pool(int n_threads, int poll, int priority,
                                            const std::vector<weft::Cpus>& cpus) {
  if (n_threads < 1 || n_threads > 1024) throw nb::value_error("n_threads must be 1..1024");
  if (poll < 0 || poll > 100) throw nb::value_error("poll must be 0..100");
  if (priority < 0 || priority > 3) throw nb::value_error("priority must be 0..3");
  nb::gil_scoped_release release;
  return std::make_shared<weft::ThreadPool>(
      weft::PoolOptions{n_threads, poll, static_cast<weft::Priority>(priority), cpus});
}

}  // namespace

void bind_runtime(nb::module_& m) {
  m.def("usable_processors", &weft::usable_processors,
        "The number of processors that this process may use.");
  m.def("usable_cores", &weft::usable_cores,
        "The number of physical cores that this process may use.");
  m.def("usable_cpus", &weft::usable_cpus,
        "The numbers of the processors that this process may use.");
  m.def("numa_nodes", &weft::numa_nodes, "The usable processors of each NUMA node.");
  m.def("current_cpu", &weft::current_cpu,
        "The processor that runs the calling thread; -1 where the system does not say.");
  m.def(
      "copy_bytes", &copy_bytes, nb::arg("targets"), nb::arg("sources"), nb::arg("sizes"),
      "Copies `sizes` bytes from each address of `sources` to that of `targets`; the caller keeps "
      "both alive.");
  nb::class_<weft::ThreadPool>(m, "ThreadPool", "Persistent threads; the caller is one of them.")
      .def(nb::new_(&make_pool), nb::arg("n_threads"), nb::arg("poll") = 50,
           nb::arg("priority") = 0, nb::arg("cpus") = std::vector<weft::Cpus>(),
           "`poll` is how long idle threads spin, from 0 (they sleep at once) to 100 (200 us); "
           "`priority` is 0 (normal) to 3 (realtime); `cpus` lists the processors of each thread "
           "(none: any).")
      .def_prop_ro("size", &weft::ThreadPool::size)
      .def_prop_ro("warnings", &weft::ThreadPool::warnings,
                   "A sentence for each thing that the system refused.");
  nb::class_<Program>(m, "Program", "A checked program of one split.")
      .def_static("from_tables", &make_program, nb::arg("symbols"), nb::arg("exprs"),
                  nb::arg("buffers"), nb::arg("names"), nb::arg("tensors"), nb::arg("steps"),
                  nb::arg("stages"), nb::arg("params"),
                  "Reads a program from flat tables; raises ValueError when it is illegal.");
  nb::class_<Executor>(m, "Executor", "Runs a program over memory that the caller keeps alive.")
      .def_static("create", &make_executor, nb::arg("program"), nb::arg("memory"),
                  nb::arg("target"), nb::arg("pool"), nb::arg("experts") = Experts(),
                  "`memory` has (address, bytes) for each buffer, `experts` (buffer, store, stack) "
                  "for those whose experts are in a store. Raises ValueError when the target "
                  "cannot run the program.")
      .def("run", &run, nb::arg("values"),
           "Runs the program with these symbol values and releases the GIL meanwhile. Returns "
           "False when abort() has stopped the run; KeyboardInterrupt stops it too. Raises OSError "
           "when experts cannot be read from their file.")
      .def("abort", &Executor::abort, "Stops the current run, or the next one when there is none.")
      .def("clear_abort", &Executor::clear_abort,
           "Cancels an abort that has not stopped a run yet.")
      .def("set_threads", &Executor::set_threads, nb::arg("n"),
           "Sets how many threads later runs use, at most those of the pool (0: all of them). "
           "Waits for the current run.",
           nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("scratch_bytes", &Executor::scratch_bytes)
      .def_prop_ro("barriers", &Executor::barriers)
      .def_prop_ro(
          "step_tasks", &Executor::step_tasks,
          "How the last run shared out each step: a flat list [step][stage, first step of "
          "its chain, units, grain, chunk, threads, units of preparation, bytes of scratch "
          "memory for each thread, bytes of shared memory]; zeros for an empty step.")
      .def("set_profiling", &Executor::set_profiling, nb::arg("on"))
      .def_prop_ro("step_seconds", &Executor::step_seconds)
      .def("record_spans", &Executor::record_spans, nb::arg("on"),
           "Records when each thread works on each step; every call clears the record.")
      .def_prop_ro(
          "spans", [](const Executor& e) { return e.spans().values(); },
          "The record as a flat list [step][thread][begin, end, busy], in nanoseconds of the "
          "steady clock; zeros where a thread had no part.");
}
