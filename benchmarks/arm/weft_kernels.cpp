// Runs each kernel of kernels.h once on a target of weft, on one thread:
//
//   weft_kernels TARGET
//   weft_kernels TARGET ternary    products of ternary weights in each layout
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels.h"
#include "kernels/dispatch.h"
#include "quants/interleave.h"
#include "quants/lookup_layout.h"

namespace {

using namespace weft;

struct Value {
  Tensor t;
  std::vector<char> bytes;

  Value(DType type, int64_t n0, int64_t n1 = 1, int64_t n2 = 1) {
    const DTypeInfo& info = dtype_info(type);
    const int64_t row = n0 / info.block * info.block_size;
    t.type = type;
    const int64_t ne[4] = {n0, n1, n2, 1};
    const int64_t nb[4] = {info.block_size, row, row * n1, row * n1 * n2};
    std::copy(ne, ne + 4, t.ne);
    std::copy(nb, nb + 4, t.nb);
    bytes.resize(static_cast<size_t>(nb[3]) + 64);
    t.data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  }

  // The same sizes at another place, in a layout.
  Tensor like(char* data, Layout layout) const {
    Tensor other = t;
    other.data = data;
    other.layout = layout;
    return other;
  }

  // Zeros where no kernel writes the type; no product depends on values in its speed.
  void fill(const KernelTable& table, uint32_t seed) {
    if (table.type(t.type).from_float == nullptr) return;
    const int64_t rows = std::min(t.ne[1] * t.ne[2], kOwnRows);
    std::vector<float> values(static_cast<size_t>(rows * t.ne[0]));
    for (float& v : values) v = number(seed);
    table.type(t.type).from_float(values.data(), t.data, rows * t.ne[0]);
    for (int64_t at = rows * t.nb[1]; at < t.nb[3]; ++at) t.data[at] = t.data[at - rows * t.nb[1]];
  }
};

DType find_type(const std::string& name) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    const char* known = dtype_info(type).name;
    if (known != nullptr && name == known) return type;
  }
  std::fprintf(stderr, "no type %s\n", name.c_str());
  std::exit(1);
}

// A kernel with its memory, ready to run.
class Ready {
 public:
  Ready(const Kernel& kernel, const Call& call) : kernel_(kernel), call_(call) {
    if (const char* why = kernel.check(call)) {
      std::fprintf(stderr, "refused: %s\n", why);
      std::exit(1);
    }
    items_ = kernel.items(call);
    grain_ = kernel.grain == nullptr ? 1 : std::max<int64_t>(1, kernel.grain(call));
    scratch_ = memory(kernel.scratch == nullptr ? 0 : kernel.scratch(call));
    shared_ = memory(kernel.shared == nullptr ? 0 : kernel.shared(call));
    tickets_.resize(kernel.tickets == nullptr ? 0 : static_cast<size_t>(kernel.tickets(call)));
    call_.shared = shared_.get();
    call_.tickets = tickets_.data();
  }

  void run() {
    const int64_t units = kernel_.prepare_units == nullptr ? 0 : kernel_.prepare_units(call_);
    if (units > 0) kernel_.prepare(call_, 0, units);
    for (int64_t begin = 0; begin < items_; begin += grain_) {
      kernel_.run(call_, begin, std::min(begin + grain_, items_), scratch_.get());
    }
  }

 private:
  using Memory = std::unique_ptr<char, void (*)(void*)>;
  static Memory memory(size_t n) {
    return {static_cast<char*>(std::aligned_alloc(64, (n + 127) / 64 * 64)), std::free};
  }

  const Kernel& kernel_;
  Call call_;
  int64_t items_, grain_;
  Memory scratch_{nullptr, std::free}, shared_{nullptr, std::free};
  std::vector<int32_t> tickets_;
};

// Activations are converted within the count, as every product of floats with such weights does.
void product(const KernelTable& table, const Product& of, Layout layout) {
  const DType type = find_type(of.type);
  const TypeOps& ops = table.type(type);
  Value w(type, kDepth, kRows), panels(type, kDepth, 2 * kRows);  // indices may take more than rows
  panels.t = w.like(panels.t.data, layout);
  w.fill(table, 1);
  const bool repacked = layout != Layout::kRows;
  if (layout == Layout::kInterleaved) {
    interleave_panels(type, w.t.data, w.t.nb[1], kDepth, 0, kRows / kPanelRows, panels.t.data);
  } else if (repacked) {
    make_lookup_panels(type, w.t.data, w.t.nb[1], kDepth, 0, kRows / kPanelRows, panels.t.data);
  }
  Value x(DType::kF32, kDepth, of.columns), taken(ops.vec_type, kDepth, of.columns);
  Value out(DType::kF32, kRows, of.columns);
  x.fill(table, 2);
  taken.fill(table, 2);
  const bool converts = ops.vec_type != DType::kF32 && dtype_info(ops.vec_type).block > 1;
  Call call;
  call.dst = out.t;
  call.src[0] = repacked ? &panels.t : &w.t;
  call.src[1] = converts ? &taken.t : &x.t;
  Ready ready(table[Op::kMulMat], call);
  const auto* floats = reinterpret_cast<const float*>(x.t.data);
  const auto convert = table.type(ops.vec_type).from_float;
  const char* const forms[] = {"rows", "panels", "lookups"};
  announce(of.type, of.columns, kRows * kDepth * of.columns, forms[static_cast<int>(layout)]);
  begin_count();
  if (converts) convert(floats, taken.t.data, kDepth * of.columns);
  ready.run();
  end_count();
}

void attention(const KernelTable& table, int64_t queries) {
  Value q(DType::kF32, kHead, queries, kHeads);
  Value k(DType::kF16, kHead, kCells, kCacheHeads), v(DType::kF16, kHead, kCells, kCacheHeads);
  Value out(DType::kF32, kHead, kHeads, queries);
  q.fill(table, 1);
  k.fill(table, 2);
  v.fill(table, 3);
  const double params[static_cast<int>(FlashAttnSlot::kSlots)] = {0.125};
  Call call;
  call.dst = out.t;
  call.src[0] = &q.t;
  call.src[1] = &k.t;
  call.src[2] = &v.t;
  call.params = params;
  call.n_params = static_cast<int>(FlashAttnSlot::kSlots);
  Ready ready(table[Op::kFlashAttnExt], call);
  announce("attention", queries, 2 * kHead * kHeads * kCells * queries, "rows");
  begin_count();
  ready.run();
  end_count();
}

}  // namespace

int main(int n, char** arguments) {
  const Target* target = n > 1 ? find_target(arguments[1]) : best_target();
  if (target == nullptr || target->score == 0) {
    std::fprintf(stderr, "this processor does not run that target\n");
    return 1;
  }
  const KernelTable& table = target->table();
  if (n > 2) {
    for (const char* type : {"tq1_0", "tq2_0", "i2_s"}) {
      for (int64_t columns : {1, 4}) {
        for (Layout layout : {Layout::kRows, Layout::kInterleaved, Layout::kLookup}) {
          product(table, {type, columns}, layout);
        }
      }
    }
    return 0;
  }
  for (const Product& of : kProducts) {
    const bool panels = table.type(find_type(of.type)).matmul_interleaved;
    product(table, of, panels ? Layout::kInterleaved : Layout::kRows);
  }
  for (int64_t queries : kQueries) attention(table, queries);
  return 0;
}
