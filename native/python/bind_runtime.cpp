// Programs from flat tables, the thread pool, the executor.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/executor.h"

namespace nb = nanobind;

namespace {

using weft::Code;
using weft::Executor;
using weft::Program;
using weft::Status;

using Table = nb::ndarray<const int64_t, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Names = std::vector<std::string>;
using Symbols = std::vector<std::tuple<std::string, int64_t, int64_t>>;

// Columns of the tables, see src/weft/backends/cpu/native_program.py.
constexpr size_t kExprColumns = 3;                  // kind, a, b
constexpr size_t kTensorColumns = 2 + 2 * 9;        // type, buffer, then (value, expr) x 9
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
  if (names.size() != tensors.shape(0)) throw nb::value_error("a name per tensor is needed");
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
    const auto size = [&](size_t k) { return weft::Size{row[2 + 2 * k], narrow(row[3 + 2 * k])}; };
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
                                        std::shared_ptr<weft::ThreadPool> pool) {
  const weft::Target* found = weft::find_target(target);
  if (found == nullptr) throw nb::value_error(("no kernel target " + target).c_str());
  if (pool == nullptr) throw nb::value_error("an executor needs a thread pool");
  std::vector<weft::Block> blocks;
  for (const auto& [address, size] : memory) {
    blocks.push_back({reinterpret_cast<char*>(address), size});
  }
  std::unique_ptr<Executor> executor;
  throw_status(Executor::create(program, std::move(blocks), *found, std::move(pool), executor));
  return executor;
}

void run(Executor& executor, const std::vector<int64_t>& values) {
  Status status = Status::ok();
  bool interrupted = false;
  {
    nb::gil_scoped_release release;
    // signals are handled here, so that Ctrl-C stops a long run at once
    status = executor.run(values, [&] {
      nb::gil_scoped_acquire acquire;
      interrupted = PyErr_CheckSignals() != 0;
      return interrupted;
    });
  }
  if (interrupted) throw nb::python_error();
  throw_status(status);
}

}  // namespace

void bind_runtime(nb::module_& m) {
  nb::class_<weft::ThreadPool>(m, "ThreadPool", "Persistent threads; the caller is one of them.")
      .def(nb::init<int>(), nb::arg("n_threads"))
      .def_prop_ro("size", &weft::ThreadPool::size);
  nb::class_<Program>(m, "Program", "A checked program of one split.")
      .def_static("from_tables", &make_program, nb::arg("symbols"), nb::arg("exprs"),
                  nb::arg("buffers"), nb::arg("names"), nb::arg("tensors"), nb::arg("steps"),
                  nb::arg("stages"), nb::arg("params"),
                  "A program from flat tables; raises ValueError saying what is illegal.");
  nb::class_<Executor>(m, "Executor", "Runs a program over memory that the caller keeps alive.")
      .def_static("create", &make_executor, nb::arg("program"), nb::arg("memory"),
                  nb::arg("target"), nb::arg("pool"),
                  "`memory`: (address, bytes) per buffer. Raises ValueError on a bad program.")
      .def("run", &run, nb::arg("values"),
           "Runs with these symbol values, the GIL released; KeyboardInterrupt stops it.")
      .def_prop_ro("scratch_bytes", &Executor::scratch_bytes)
      .def_prop_ro("barriers", &Executor::barriers)
      .def("set_profiling", &Executor::set_profiling, nb::arg("on"))
      .def_prop_ro("step_seconds", &Executor::step_seconds)
      .def("record_spans", &Executor::record_spans, nb::arg("on"),
           "Records when each thread works on each step; starts anew with every call.")
      .def_prop_ro(
          "spans", [](const Executor& e) { return e.spans().values(); },
          "[step][thread][begin, end, busy], flat: nanoseconds of the steady clock, 0: no part.");
}
