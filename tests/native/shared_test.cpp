// Steps whose threads share memory: products that pack columns for all rows, and attention whose
// parts are added up by the thread that finishes last. Thread counts and sizes change from run to
// run.
#include <algorithm>
#include <cmath>
#include <utility>

#include "check.h"
#include "quants/interleave.h"
#include "runtime/executor.h"

namespace {

using namespace weft;

// The largest sizes of a tensor. The size of dimension `varies` (-1: none) is the symbol "n".
struct Shape {
  DType type;
  int64_t ne[3];
  int varies = -1;
};

class Maker {
 public:
  explicit Maker(int64_t most) {
    program.symbols.push_back({"n", 0, most});
    program.exprs.push_back({ExprKind::kSymbol, 0, 0});
  }

  // Adds a tensor in its own buffer, with the strides of its largest sizes, and returns its number.
  int tensor(const Shape& shape, Layout layout = Layout::kRows) {
    const DTypeInfo& info = dtype_info(shape.type);
    TensorDecl t;
    t.name = std::to_string(program.tensors.size());
    t.type = shape.type;
    t.buffer = static_cast<int32_t>(program.buffers.size());
    t.layout = layout;
    int64_t stride = info.block_size;
    for (int d = 0; d < 4; ++d) {
      const int64_t n = d < 3 ? shape.ne[d] : 1;
      t.ne[d] = d == shape.varies ? Size{0, 0} : Size{n};
      t.nb[d] = {stride};
      stride *= d == 0 ? n / info.block : n;
    }
    program.buffers.push_back(stride);
    program.tensors.push_back(t);
    return t.buffer;
  }

  void step(Op op, int dst, std::initializer_list<int> src, std::initializer_list<double> params) {
    StepDecl s;
    s.op = op;
    s.dst = dst;
    std::fill(s.src, s.src + kMaxSrc, -1);
    std::copy(src.begin(), src.end(), s.src);
    s.first_param = static_cast<int32_t>(program.params.size());
    s.n_params = static_cast<int32_t>(params.size());
    program.params.insert(program.params.end(), params);
    const auto n = static_cast<int32_t>(program.steps.size());
    program.steps.push_back(s);
    program.stages.push_back({n, n + 1});
  }

  Program program;
};

struct Machine {
  std::vector<std::vector<char>> memory;  // of each buffer, which has the number of its tensor
  std::unique_ptr<Executor> executor;

  Machine(const Program& program, const Target& target, int threads) {
    std::vector<Block> blocks;
    for (int64_t size : program.buffers) memory.emplace_back(static_cast<size_t>(size));
    for (auto& m : memory) blocks.push_back({m.data(), static_cast<int64_t>(m.size())});
    const Status s =
        Executor::create(program, blocks, target, std::make_shared<ThreadPool>(threads), executor);
    if (!s.is_ok()) std::fprintf(stderr, "%s\n", s.message().c_str());
    CHECK(s.is_ok());
  }

  float* floats(int tensor) {
    return reinterpret_cast<float*>(memory[static_cast<size_t>(tensor)].data());
  }
  size_t n_floats(int tensor) const { return memory[static_cast<size_t>(tensor)].size() / 4; }

  // Fills the tensor with the numbers that belong to `seed`.
  void fill(int tensor, uint32_t seed) {
    Random random(seed);
    for (size_t i = 0; i < n_floats(tensor); ++i) floats(tensor)[i] = random.normal();
  }
};

// Checks that a tensor of two machines agrees, including numbers that the run did not compute.
void check_same(Machine& a, Machine& b, int tensor) {
  double error = 0;
  double power = 1e-30;
  for (size_t i = 0; i < a.n_floats(tensor); ++i) {
    const double want = a.floats(tensor)[i];
    error += std::pow(want - b.floats(tensor)[i], 2);
    power += want * want;
  }
  CHECK(error <= 1e-10 * power);
}

// Runs the same work on one thread and on changing numbers of threads, and checks that the results
// agree. Returns the largest number of barriers of a run.
int64_t compare(const Program& program, const Target& target, int input,
                std::initializer_list<int> outputs,
                const std::vector<std::pair<int, std::vector<char>>>& constants,
                std::initializer_list<int64_t> sizes) {
  Machine one(program, target, 1);
  Machine many(program, target, 5);
  for (const auto& [tensor, bytes] : constants) {
    std::copy(bytes.begin(), bytes.end(), one.memory[static_cast<size_t>(tensor)].begin());
    std::copy(bytes.begin(), bytes.end(), many.memory[static_cast<size_t>(tensor)].begin());
  }
  uint32_t seed = 7;
  int64_t barriers = 0;
  for (int threads : {5, 1, 2, 3, 5}) {
    many.executor->set_threads(threads);
    for (int64_t n : sizes) {
      one.fill(input, ++seed);
      many.fill(input, seed);
      CHECK(one.executor->run({n}, {}).is_ok());
      CHECK(many.executor->run({n}, {}).is_ok());
      for (int output : outputs) check_same(one, many, output);
      barriers = std::max(barriers, many.executor->barriers());
    }
  }
  return barriers;
}

constexpr int64_t kInner = 512, kRows = 160, kColumns = 300;

std::vector<char> random_blocks(const Target& target, DType type, int64_t n, uint32_t seed) {
  Random random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = random.normal();
  const DTypeInfo& info = dtype_info(type);
  std::vector<char> bytes(static_cast<size_t>(n / info.block * info.block_size));
  target.table().type(type).from_float(values.data(), bytes.data(), n);
  return bytes;
}

int64_t product(const Target& target, DType type, bool panels) {
  Maker m(kColumns);
  const TypeOps& ops = target.table().type(type);
  const int x = m.tensor({DType::kF32, {kInner, kColumns, 1}, 1});
  const int blocks = m.tensor({ops.vec_type, {kInner, kColumns, 1}, 1});
  const int w = m.tensor({type, {kInner, kRows, 1}}, panels ? Layout::kInterleaved : Layout::kRows);
  const int bias = m.tensor({DType::kF32, {kRows, 1, 1}});
  const int y = m.tensor({DType::kF32, {kRows, kColumns, 1}, 1});
  const int z = m.tensor({DType::kF32, {kRows, kColumns, 1}, 1});
  m.step(Op::kQuantize, blocks, {x}, {});
  m.step(Op::kMulMat, y, {w, blocks}, {});
  m.step(Op::kMulMat, z, {w, blocks, bias}, {});
  const std::vector<char> rows = random_blocks(target, type, kInner * kRows, 1);
  std::vector<char> stored = rows;
  if (panels) {
    interleave_panels(type, rows.data(), static_cast<int64_t>(rows.size()) / kRows, kInner, 0,
                      kRows / kPanelRows, stored.data());
  }
  const std::vector<char> added = random_blocks(target, DType::kF32, kRows, 2);
  return compare(m.program, target, x, {y, z}, {{w, stored}, {bias, added}},
                 {kColumns, 1, 256, 48, 0});
}

void products(const Target& target) {
  int panels = 0;
  for (DType type : {DType::kQ4_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K}) {
    // where columns are packed, each product waits for them
    const bool packs = target.table().type(type).matmul_interleaved;
    CHECK(product(target, type, false) == (packs ? 4 : 2));
    if (!packs) continue;
    CHECK(product(target, type, true) == 4);
    ++panels;
  }
  std::printf("  %d types in panels\n", panels);
}

// One token over many cells, which are cut into parts; and a prompt.
void attention(const Target& target) {
  constexpr int64_t kHead = 64, kHeads = 4, kKvHeads = 2, kCells = 1500;
  for (int64_t tokens : {1, 24}) {
    Maker m(kCells);
    const int q = m.tensor({DType::kF32, {kHead, tokens, kHeads}});
    const int k = m.tensor({DType::kF16, {kHead, kCells, kKvHeads}, 1});
    const int v = m.tensor({DType::kF16, {kHead, kCells, kKvHeads}, 1});
    const int y = m.tensor({DType::kF32, {kHead, kHeads, tokens}});
    m.step(Op::kFlashAttnExt, y, {q, k, v}, {0.125, 0, 0});
    const int64_t n = kHead * kCells * kKvHeads;
    compare(m.program, target, q, {y},
            {{k, random_blocks(target, DType::kF16, n, 1)},
             {v, random_blocks(target, DType::kF16, n, 2)}},
            {kCells, 1, 300, 129, 1024});
  }
}

}  // namespace

int main() {
  for (const Target& target : targets()) {
    if (target.score == 0) continue;
    std::printf("%s\n", target.name);
    std::fflush(stdout);
    products(target);
    attention(target);
  }
  return 0;
}
