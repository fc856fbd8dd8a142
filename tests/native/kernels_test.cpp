// Compares products, attention and block formats on small random inputs, on every target that this
// machine can run, with sums in double precision. Scratch memory has exactly the bytes that a
// kernel asks for, so that a sanitizer reports every access beyond.
#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <vector>

#include "check.h"
#include "kernels/dispatch.h"
#include "quants/interleave.h"

namespace {

using namespace weft;

// A tensor with memory of exactly its bytes.
struct Value {
  Tensor t;
  std::unique_ptr<char[]> bytes;

  Value(DType type, int64_t n0, int64_t n1 = 1, int64_t n2 = 1) {
    const DTypeInfo& info = dtype_info(type);
    t.type = type;
    const int64_t ne[4] = {n0, n1, n2, 1};
    t.nb[0] = info.block_size;
    t.nb[1] = n0 / info.block * info.block_size;
    t.nb[2] = t.nb[1] * n1;
    t.nb[3] = t.nb[2] * n2;
    for (int d = 0; d < 4; ++d) t.ne[d] = ne[d];
    const auto size = static_cast<size_t>(t.nb[3] + (type == DType::kI2_S ? 32 : 0));
    bytes = std::make_unique<char[]>(size);
    t.data = bytes.get();
  }

  int64_t rows() const { return t.ne[1] * t.ne[2]; }
  char* row(int64_t r) { return t.data + r * t.nb[1]; }

  // Fills the tensor with random numbers and returns them as its type rounds them.
  std::vector<float> fill(const KernelTable& table, Random& random) {
    const TypeOps& ops = table.type(t.type);
    std::vector<float> values(static_cast<size_t>(t.ne[0] * rows()));
    for (float& v : values) v = random.normal();
    for (int64_t r = 0; r < rows(); ++r) {
      float* here = values.data() + r * t.ne[0];
      ops.from_float(here, row(r), t.ne[0]);
      ops.to_float(row(r), here, t.ne[0]);
    }
    return values;
  }
};

// Memory of `bytes` bytes, rounded up to 64, then 64 bytes that nobody may write to.
class Guarded {
 public:
  explicit Guarded(size_t bytes)
      : size_((bytes + 63) / 64 * 64),
        data_(static_cast<char*>(::operator new(size_ + 64, std::align_val_t{64}))) {
    std::fill(data_.get() + size_, data_.get() + size_ + 64, char{77});
  }
  char* data() const { return data_.get(); }
  void check() const {
    for (size_t i = 0; i < 64; ++i) CHECK(data_.get()[size_ + i] == 77);
  }

 private:
  size_t size_;
  struct Free {
    void operator()(char* p) const { ::operator delete(p, std::align_val_t{64}); }
  };
  std::unique_ptr<char, Free> data_;
};

// Runs a kernel as threads would: in chunks, each with its own scratch memory.
void run(const Kernel& kernel, Call call) {
  const char* why = kernel.check(call);
  if (why != nullptr) std::fprintf(stderr, "refused: %s\n", why);
  CHECK(why == nullptr);
  const int64_t items = kernel.items(call);
  const int64_t grain = kernel.grain == nullptr ? 1 : std::max<int64_t>(1, kernel.grain(call));
  const size_t bytes = kernel.scratch == nullptr ? 0 : kernel.scratch(call);
  const Guarded shared(kernel.shared == nullptr ? 0 : kernel.shared(call));
  std::vector<int32_t> tickets(
      kernel.tickets == nullptr ? 0 : static_cast<size_t>(kernel.tickets(call)));
  call.shared = shared.data();
  call.tickets = tickets.data();
  const int64_t units = kernel.prepare_units == nullptr ? 0 : kernel.prepare_units(call);
  for (int64_t unit = 0; unit < units; ++unit) kernel.prepare(call, unit, unit + 1);
  shared.check();
  for (int64_t begin = 0; begin < items; begin += grain) {
    const Guarded scratch(bytes);
    kernel.run(call, begin, std::min(begin + grain, items), scratch.data());
    scratch.check();
  }
  shared.check();
}

double relative_error(const std::vector<double>& want, const float* got) {
  double error = 0;
  double power = 1e-30;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(want[i] - static_cast<double>(got[i]), 2);
    power += want[i] * want[i];
  }
  return error / power;
}

bool can_store(const KernelTable& table, DType type) {
  const TypeOps& ops = table.type(type);
  return ops.from_float != nullptr && ops.to_float != nullptr && type != DType::kI2_S;
}

std::vector<DType> storable(const KernelTable& table) {
  std::vector<DType> types;
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    if (dtype_info(type).name != nullptr && can_store(table, type)) types.push_back(type);
  }
  return types;
}

void formats(const Target& target) {
  const KernelTable& table = target.table();
  Random random(1);
  size_t checked = 0;
  for (DType type : storable(table)) {
    Value value(type, 512, 3);
    std::vector<float> exact(512);
    for (float& v : exact) v = random.normal();
    table.type(type).from_float(exact.data(), value.row(1), 512);
    std::vector<float> back(512);
    table.type(type).to_float(value.row(1), back.data(), 512);
    for (float v : back) CHECK(std::isfinite(v));
    ++checked;
  }
  CHECK(checked >= 8);
}

// The product of rows and columns in double precision.
std::vector<double> exact_product(const std::vector<float>& a, const std::vector<float>& b,
                                  int64_t rows, int64_t columns, int64_t k) {
  std::vector<double> want;
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i) {
        sum += static_cast<double>(a[static_cast<size_t>(r * k + i)]) *
               static_cast<double>(b[static_cast<size_t>(c * k + i)]);
      }
      want.push_back(sum);
    }
  }
  return want;
}

// Whether MUL_MAT takes the types. If so, checks its result, with weights in rows or in panels.
bool check_product(const KernelTable& table, DType type, DType activations, int64_t rows,
                   int64_t columns, bool panels) {
  constexpr int64_t kInner = 512;
  Random random(2);
  Value w(type, kInner, rows);
  Value x(activations, kInner, columns);
  Value out(DType::kF32, rows, columns);
  const std::vector<float> a = w.fill(table, random);
  const std::vector<float> b = x.fill(table, random);
  Value repacked(type, kInner, rows);
  if (panels) {
    interleave_panels(type, w.t.data, w.t.nb[1], kInner, 0, rows / kPanelRows, repacked.t.data);
    repacked.t.layout = Layout::kInterleaved;
  }
  Call call;
  call.dst = out.t;
  call.src[0] = panels ? &repacked.t : &w.t;
  call.src[1] = &x.t;
  call.n_threads = 3;
  if (table[Op::kMulMat].check(call) != nullptr) return false;
  run(table[Op::kMulMat], call);
  const std::vector<double> want = exact_product(a, b, rows, columns, kInner);
  const double error = relative_error(want, reinterpret_cast<float*>(out.t.data));
  if (error > 1e-5) {
    std::fprintf(stderr, "%s%s, %d rows, %d columns: %g\n", dtype_info(type).name,
                 panels ? " in panels" : "", static_cast<int>(rows), static_cast<int>(columns),
                 error);
  }
  CHECK(error <= 1e-5);
  return true;
}

void products(const Target& target) {
  const KernelTable& table = target.table();
  int checked = 0;
  for (DType type : storable(table)) {
    const TypeOps& ops = table.type(type);
    const DType activations = ops.vec_type;
    if (dtype_info(type).block > 1 && activations == DType::kF32) continue;
    if (!can_store(table, activations)) continue;
    for (int64_t columns : {1, 3, 37, 260}) {
      for (int64_t rows : {1, 70}) {
        checked += check_product(table, type, activations, rows, columns, false) ? 1 : 0;
      }
      if (!ops.matmul_interleaved) continue;
      for (int64_t rows : {32, 64})
        CHECK(check_product(table, type, activations, rows, columns, true));
    }
  }
  CHECK(checked >= 8 * 8);
}

void attention(const Target& target) {
  const KernelTable& table = target.table();
  Random random(3);
  constexpr int64_t kHead = 64, kHeads = 4, kKvHeads = 2;
  for (DType type : {DType::kF32, DType::kF16, DType::kQ8_0}) {
    for (int64_t tokens : {1, 5, 40}) {
      for (int64_t cells : {1, 67, 700}) {
        Value q(DType::kF32, kHead, tokens, kHeads);
        Value k(type, kHead, cells, kKvHeads);
        Value v(type, kHead, cells, kKvHeads);
        Value out(DType::kF32, kHead, kHeads, tokens);
        const std::vector<float> queries = q.fill(table, random);
        const std::vector<float> keys = k.fill(table, random);
        const std::vector<float> values = v.fill(table, random);
        const double params[static_cast<int>(FlashAttnSlot::kSlots)] = {0.125};
        Call call;
        call.dst = out.t;
        call.src[0] = &q.t;
        call.src[1] = &k.t;
        call.src[2] = &v.t;
        call.params = params;
        call.n_params = static_cast<int>(FlashAttnSlot::kSlots);
        call.n_threads = 3;
        run(table[Op::kFlashAttnExt], call);
        std::vector<double> want(static_cast<size_t>(tokens * kHeads * kHead));
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t h = 0; h < kHeads; ++h) {
            const float* query = queries.data() + (h * tokens + t) * kHead;
            const int64_t group = h / (kHeads / kKvHeads);
            double total = 0;
            double* to = want.data() + (t * kHeads + h) * kHead;
            for (int64_t c = 0; c < cells; ++c) {
              double score = 0;
              for (int64_t i = 0; i < kHead; ++i) {
                score +=
                    static_cast<double>(query[i]) *
                    static_cast<double>(keys[static_cast<size_t>((group * cells + c) * kHead + i)]);
              }
              const double weight = std::exp(0.125 * score);
              total += weight;
              for (int64_t i = 0; i < kHead; ++i) {
                to[i] += weight * static_cast<double>(
                                      values[static_cast<size_t>((group * cells + c) * kHead + i)]);
              }
            }
            for (int64_t i = 0; i < kHead; ++i) to[i] /= total;
          }
        }
        CHECK(relative_error(want, reinterpret_cast<float*>(out.t.data)) <= 1e-4);
      }
    }
  }
}

}  // namespace

int main() {
  for (const Target& target : targets()) {
    std::printf("%s%s\n", target.name, target.score == 0 ? ": this machine cannot run it" : "");
    std::fflush(stdout);
    if (target.score == 0) continue;
    formats(target);
    products(target);
    attention(target);
  }
  return 0;
}
