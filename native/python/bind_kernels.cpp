// Bindings for the processor's features, the kernel targets and what their kernels accept, and
// conversions of rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/dispatch.h"
#include "quants/interleave.h"

namespace nb = nanobind;

namespace {

using weft::DType;

// (type, ne, nb) of a tensor, innermost size first; ne is empty for an absent source.
using Desc = std::tuple<int, std::vector<int64_t>, std::vector<int64_t>>;

bool to_tensor(const Desc& desc, weft::Tensor& t) {
  const auto& [type, ne, stride] = desc;
  if (ne.empty()) return false;
  if (ne.size() != 4 || stride.size() != 4) throw nb::value_error("ne and nb take four numbers");
  t.type = static_cast<DType>(type);
  if (weft::dtype_info(t.type).name == nullptr) throw nb::value_error("unknown type number");
  for (size_t d = 0; d < 4; ++d) {
    t.ne[d] = ne[d];
    t.nb[d] = stride[d];
  }
  return true;
}

const weft::Target& target_named(const std::string& name) {
  const weft::Target* target = weft::find_target(name);
  if (target == nullptr) throw nb::value_error(("no kernel target " + name).c_str());
  if (target->score == 0) {
    throw nb::value_error(("this machine cannot run kernel target " + name).c_str());
  }
  return *target;
}

// A call that is only asked about: it has no memory.
struct Request {
  weft::Call call;
  weft::Tensor sources[weft::kMaxSrc];
  const weft::Kernel* kernel = nullptr;

  Request(const std::string& target, int op, const Desc& dst, const std::vector<Desc>& src,
          const std::vector<double>& params, int n_threads) {
    if (op <= 0 || op >= static_cast<int>(weft::Op::kCount)) throw nb::value_error("unknown op");
    if (src.size() > weft::kMaxSrc) throw nb::value_error("too many sources");
    kernel = &target_named(target).table()[static_cast<weft::Op>(op)];
    to_tensor(dst, call.dst);
    for (size_t i = 0; i < src.size(); ++i) {
      if (to_tensor(src[i], sources[i])) call.src[i] = &sources[i];
    }
    call.params = params.data();
    call.n_params = static_cast<int>(params.size());
    call.n_threads = n_threads;
  }
};

std::optional<std::string> refusal(const std::string& target, int op, const Desc& dst,
                                   const std::vector<Desc>& src, const std::vector<double>& params,
                                   int layout) {
  Request request(target, op, dst, src, params, 1);
  if (request.kernel->run == nullptr) return "there is no native kernel for this op";
  if (layout < 0 || layout > static_cast<int>(weft::Layout::kOrdered)) {
    throw nb::value_error("unknown layout");
  }
  if (layout != 0) {
    if (!request.kernel->takes_interleaved) return "it does not take repacked weights";
    request.sources[0].layout = static_cast<weft::Layout>(layout);
  }
  const weft::Status counted =
      weft::check_parameters(static_cast<weft::Op>(op), request.call.n_params);
  if (!counted.is_ok()) return counted.message();
  const char* why = request.kernel->check(request.call);
  return why == nullptr ? std::nullopt : std::optional<std::string>(why);
}

size_t scratch_bytes(const std::string& target, int op, const Desc& dst,
                     const std::vector<Desc>& src, const std::vector<double>& params,
                     int n_threads) {
  const Request request(target, op, dst, src, params, n_threads);
  return request.kernel->scratch == nullptr ? 0 : request.kernel->scratch(request.call);
}

using Bytes = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableBytes = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableFloats = nb::ndarray<float, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

const weft::DTypeInfo& checked_type(int type, size_t elements, size_t bytes) {
  const weft::DTypeInfo& info = weft::dtype_info(static_cast<DType>(type));
  if (info.name == nullptr) throw nb::value_error("unknown type number");
  const auto block = static_cast<size_t>(info.block);
  if (elements % block != 0 || elements / block * static_cast<size_t>(info.block_size) != bytes) {
    throw nb::value_error("the sizes of the two arrays do not match for this type");
  }
  return info;
}

void dequantize(const std::string& target, int type, Bytes data, MutableFloats out) {
  checked_type(type, out.size(), data.size());
  const weft::TypeOps& ops = target_named(target).table().type(static_cast<DType>(type));
  if (ops.to_float == nullptr) throw nb::value_error("this type has no row decoder");
  nb::gil_scoped_release release;
  ops.to_float(data.data(), out.data(), static_cast<int64_t>(out.size()));
}

void quantize(const std::string& target, int type, Floats data, MutableBytes out) {
  checked_type(type, data.size(), out.size());
  const weft::TypeOps& ops = target_named(target).table().type(static_cast<DType>(type));
  if (ops.from_float == nullptr) throw nb::value_error("this type cannot be written");
  nb::gil_scoped_release release;
  ops.from_float(data.data(), out.data(), static_cast<int64_t>(data.size()));
}

// The type of activations that a native matmul with this weight type reads; f32 when it decodes the
// weights.
int activation_type(const std::string& target, int type) {
  if (weft::dtype_info(static_cast<DType>(type)).name == nullptr) {
    throw nb::value_error("unknown type number");
  }
  return static_cast<int>(target_named(target).table().type(static_cast<DType>(type)).vec_type);
}

std::vector<std::string> op_table() {
  std::vector<std::string> rows;
  for (const weft::OpInfo& op : weft::kOpInfo) rows.emplace_back(op.description);
  return rows;
}

std::vector<std::tuple<int, std::string, int, int>> type_table() {
  std::vector<std::tuple<int, std::string, int, int>> rows;
  for (int i = 0; i < weft::kDTypeCount; ++i) {
    const weft::DTypeInfo& info = weft::dtype_info(static_cast<DType>(i));
    if (info.name != nullptr) rows.emplace_back(i, info.name, info.block, info.block_size);
  }
  return rows;
}

std::vector<std::tuple<std::string, int>> target_scores() {
  std::vector<std::tuple<std::string, int>> rows;
  for (const weft::Target& t : weft::targets()) rows.emplace_back(t.name, t.score);
  return rows;
}

// The numbers of the ops whose kernels no target before `name` has, of those that run here.
std::vector<int> own_ops(const std::string& name) {
  const weft::KernelTable& mine = target_named(name).table();
  std::vector<int> own;
  for (int i = 1; i < static_cast<int>(weft::Op::kCount); ++i) {
    const auto op = static_cast<weft::Op>(i);
    bool is_own = mine[op].run != nullptr;
    for (const weft::Target& t : weft::targets()) {
      if (t.name == name) break;
      if (t.score > 0) is_own = is_own && t.table()[op].run != mine[op].run;
    }
    if (is_own) own.push_back(i);
  }
  return own;
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("cpu_features", &weft::cpu_features,
        "The names of the processor features that kernels use and this machine has.");
  m.def("targets", &target_scores,
        "The kernel targets of this build with their scores; 0 when this machine cannot run one.");
  m.def("own_ops", &own_ops, nb::arg("target"),
        "The numbers of the ops whose kernels the target does not share with one before it: those "
        "of products in a target over another one, otherwise all.");
  m.def(
      "best_target",
      [] {
        const weft::Target* best = weft::best_target();
        return best == nullptr ? std::string() : best->name;
      },
      "The kernel target with the highest score; empty when this machine can run none.");
  m.def("op_table", &op_table,
        "A line for each op, by number, to compare with weft.graph.op_table.");
  m.def("type_table", &type_table,
        "The rows of the type table: number, name, elements per block, bytes per block.");
  m.def("refusal", &refusal, nb::arg("target"), nb::arg("op"), nb::arg("dst"), nb::arg("src"),
        nb::arg("params"), nb::arg("layout") = 0,
        "None when the target has a kernel that accepts the call, otherwise a sentence that says "
        "why not. `layout` is the number of source 0's layout (0: rows).");
  m.def("scratch_bytes", &scratch_bytes, nb::arg("target"), nb::arg("op"), nb::arg("dst"),
        nb::arg("src"), nb::arg("params"), nb::arg("n_threads"),
        "The bytes of scratch memory that the call needs per thread.");
  m.def("dequantize", &dequantize, nb::arg("target"), nb::arg("type"), nb::arg("data"),
        nb::arg("out"), "Decodes the rows in `data`, of any type, into the floats of `out`.");
  m.def("quantize", &quantize, nb::arg("target"), nb::arg("type"), nb::arg("data"), nb::arg("out"),
        "Encodes the floats in `data` as rows of a type.");
  m.def("activation_type", &activation_type, nb::arg("target"), nb::arg("type"),
        "The type that activations must have for a native matmul with this weight type.");
}
