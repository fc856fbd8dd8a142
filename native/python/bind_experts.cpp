// Bindings for experts that stay in a file: stores, and the simulation of their policies.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "experts/simulate.h"
#include "experts/store.h"

namespace nb = nanobind;

namespace {

using weft::ExpertPolicy;
using weft::ExpertStore;
using weft::Status;

using Bytes = nb::ndarray<uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Names = std::vector<std::string>;
using Numbers = std::vector<int64_t>;
using Pools = std::vector<std::tuple<int64_t, int>>;

constexpr size_t kStackNumbers = 10;

void throw_status(const Status& s) {
  if (!s.is_ok()) throw nb::value_error(s.message().c_str());
}

ExpertPolicy policy_of(int number) {
  if (number < 0 || number >= weft::kExpertPolicies) throw nb::value_error("no such policy");
  return static_cast<ExpertPolicy>(number);
}

std::shared_ptr<ExpertStore> make_store(const Names& paths, const Names& names,
                                        const std::vector<Numbers>& stacks, const Pools& pools,
                                        const Bytes& arena, int n_readers, int policy,
                                        bool chooses) {
  if (names.size() != stacks.size()) throw nb::value_error("there must be one name per stack");
  if (n_readers < 0 || n_readers > 64) throw nb::value_error("n_readers must be 0..64");
  std::vector<weft::ExpertStack> list;
  for (size_t i = 0; i < stacks.size(); ++i) {
    const Numbers& n = stacks[i];
    if (n.size() != kStackNumbers) throw nb::value_error("a stack has 10 numbers");
    weft::ExpertStack s;
    s.name = names[i];
    s.file = static_cast<int32_t>(n[0]);
    s.offset = n[1];
    s.expert_bytes = n[2];
    s.n_experts = static_cast<int32_t>(n[3]);
    s.type = static_cast<weft::DType>(n[4]);
    s.layout = static_cast<weft::Layout>(n[5]);
    s.rows = n[6];
    s.row_elements = n[7];
    s.layer = static_cast<int32_t>(n[8]);
    s.pool = static_cast<int32_t>(n[9]);
    list.push_back(std::move(s));
  }
  std::vector<weft::ExpertPool> sizes;
  for (const auto& [bytes, slots] : pools) sizes.push_back({bytes, slots});
  std::shared_ptr<ExpertStore> store;
  throw_status(ExpertStore::create(
      paths, std::move(list), std::move(sizes), reinterpret_cast<char*>(arena.data()),
      static_cast<int64_t>(arena.size()), n_readers, policy_of(policy), chooses, store));
  store->keep(std::make_shared<Bytes>(arena));  // readers write to it until they have ended
  return store;
}

void read_rows(const ExpertStore& store, int stack, int expert, Bytes out) {
  if (stack < 0 || stack >= store.n_stacks() || expert < 0 ||
      expert >= store.stack(stack).n_experts ||
      out.size() != static_cast<size_t>(store.stack(stack).expert_bytes)) {
    throw nb::value_error("no such expert, or an array of another size");
  }
  Status status = Status::ok();
  {
    nb::gil_scoped_release release;
    status = store.read_rows(stack, expert, reinterpret_cast<char*>(out.data()));
  }
  throw_status(status);
}

std::tuple<int64_t, int64_t, int64_t, int64_t> simulate(const std::vector<int32_t>& record,
                                                        const std::vector<int32_t>& n_experts,
                                                        int n_slots, int policy) {
  weft::SimulatedExperts out;
  bool ok = false;
  {
    nb::gil_scoped_release release;
    ok = policy < 0 ? weft::simulate_best(record, n_experts, n_slots, out)
                    : weft::simulate_experts(record, n_experts, n_slots, policy_of(policy), out);
  }
  if (!ok) throw nb::value_error("the record names layers or experts that there are not");
  return {out.asked, out.hits, out.guesses, out.predicted};
}

}  // namespace

void bind_experts(nb::module_& m) {
  nb::class_<ExpertStore>(m, "ExpertStore", "Experts in files, and slots for some of them.")
      .def(nb::new_(&make_store), nb::arg("paths"), nb::arg("names"), nb::arg("stacks"),
           nb::arg("pools"), nb::arg("arena"), nb::arg("n_readers"), nb::arg("policy"),
           nb::arg("chooses"),
           "`stacks` has for each tensor: file, offset, bytes of an expert, experts, type, layout, "
           "rows, row elements, layer, pool. `pools` has (bytes of a slot, slots). "
           "Raises ValueError for a file that cannot be opened, and for "
           "numbers that contradict each other.")
      .def("address",
           [](const ExpertStore& s, int stack) {
             if (stack < 0 || stack >= s.n_stacks()) throw nb::value_error("no such stack");
             return reinterpret_cast<uintptr_t>(s.address(stack));
           })
      .def("read_rows", &read_rows, nb::arg("stack"), nb::arg("expert"), nb::arg("out"),
           "Reads the rows of an expert from its file; raises ValueError.")
      .def(
          "counts",
          [](const ExpertStore& s) {
            const weft::ExpertCounts c = s.counts();
            return std::make_tuple(c.hits, c.predicted, c.misses, c.guesses, c.bytes, c.waited_ns);
          },
          "hits, hits of predictions, misses, predictions read, bytes read, nanoseconds waited.")
      .def_prop_ro("policy", [](const ExpertStore& s) { return static_cast<int>(s.policy()); })
      .def("record", &ExpertStore::record, nb::arg("most"),
           "Records routing afresh, at most so many numbers; 0 ends it.")
      .def("recorded", &ExpertStore::recorded,
           "The record: for each step of a layer its number, a count, and so many experts.");
  m.def(
      "best_expert_policy",
      [](const std::vector<int32_t>& record, const std::vector<int32_t>& n_experts, int n_slots,
         int now) {
        return static_cast<int>(weft::best_policy(record, n_experts, n_slots, policy_of(now)));
      },
      nb::arg("record"), nb::arg("n_experts"), nb::arg("n_slots"), nb::arg("now"),
      "The policy that does best with a record, or `now` where none is clearly better.");
  m.def("simulate_experts", &simulate, nb::arg("record"), nb::arg("n_experts"), nb::arg("n_slots"),
        nb::arg("policy"),
        "(asked, hits, predictions, hits of these) of a record over so many slots; policy -1 knows "
        "what comes. "
        "Raises ValueError for a record of other layers or experts.");
}
