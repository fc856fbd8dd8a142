// The executor over programs made by hand: stages, chains of rows, stops, changing thread counts.
#include "runtime/executor.h"

#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "check.h"

namespace {

using namespace weft;

constexpr int kColumns = 192;

// Tensors of f32 [rows, columns], `rows` a symbol up to `most`, each in a buffer of its own.
class Maker {
 public:
  explicit Maker(int64_t most) : most_(most) {
    program.symbols.push_back({"rows", 0, most});
    program.exprs.push_back({ExprKind::kSymbol, 0, 0});
    program.exprs.push_back({ExprKind::kConst, kColumns * 4, 0});
    program.exprs.push_back({ExprKind::kMul, 0, 1});
  }

  int tensor(int buffer = -1) {
    TensorDecl t;
    t.name = std::to_string(program.tensors.size());
    if (buffer < 0) {
      buffer = static_cast<int>(program.buffers.size());
      program.buffers.push_back(most_ * kColumns * 4);
    }
    t.buffer = buffer;
    t.ne[0] = {kColumns};
    t.ne[1] = {0, 0};
    t.ne[2] = t.ne[3] = {1};
    t.nb[0] = {4};
    t.nb[1] = {kColumns * 4};
    t.nb[2] = t.nb[3] = {0, 2};
    program.tensors.push_back(t);
    return static_cast<int>(program.tensors.size()) - 1;
  }

  // A step that begins a stage, or stands in the last one.
  void step(Op op, int dst, std::vector<int> src, std::vector<double> params,
            bool new_stage = true) {
    StepDecl s;
    s.op = op;
    s.dst = dst;
    for (int i = 0; i < kMaxSrc; ++i) {
      s.src[i] = i < static_cast<int>(src.size()) ? src[static_cast<size_t>(i)] : -1;
    }
    s.first_param = static_cast<int32_t>(program.params.size());
    s.n_params = static_cast<int32_t>(params.size());
    program.params.insert(program.params.end(), params.begin(), params.end());
    program.steps.push_back(s);
    const auto n = static_cast<int32_t>(program.steps.size());
    if (new_stage) {
      program.stages.push_back({n - 1, n});
    } else {
      program.stages.back().end = n;
    }
  }

  Program program;

 private:
  int64_t most_;
};

struct Machine {
  std::vector<std::vector<float>> memory;
  std::unique_ptr<Executor> executor;

  Machine(const Program& program, std::shared_ptr<ThreadPool> pool) {
    std::vector<Block> blocks;
    for (int64_t size : program.buffers) memory.emplace_back(static_cast<size_t>(size) / 4);
    for (auto& m : memory) {
      blocks.push_back({reinterpret_cast<char*>(m.data()), static_cast<int64_t>(m.size()) * 4});
    }
    const Status s = Executor::create(program, blocks, *best_target(), std::move(pool), executor);
    if (!s.is_ok()) std::fprintf(stderr, "%s\n", s.message().c_str());
    CHECK(s.is_ok());
  }
};

// Parameters of MAP.
const std::vector<double> kSquare = {static_cast<double>(MapOp::kPow), 2, 0, 0};

// Two branches, each scaled, normed and squared in place, then added: chains, and stages of two.
Program branches(int64_t most) {
  Maker m(most);
  const int x = m.tensor();  // buffer 0
  const int a = m.tensor();
  const int b = m.tensor();
  m.step(Op::kScale, a, {x}, {2, 1});
  m.step(Op::kScale, b, {x}, {-1, 0.5}, false);
  m.step(Op::kRmsNorm, a, {a}, {1e-5});
  m.step(Op::kRmsNorm, b, {b}, {1e-5}, false);
  m.step(Op::kMap, a, {a}, kSquare);
  m.step(Op::kMap, b, {b}, kSquare, false);
  const int sum = m.tensor();
  m.step(Op::kAdd, sum, {a, b}, {});
  const int out = m.tensor();
  m.step(Op::kScale, out, {sum}, {0.5, 0});
  return m.program;
}

void check_branches(Machine& machine, int64_t rows, uint32_t seed) {
  Random random(seed);
  std::vector<float>& x = machine.memory[0];
  for (float& v : x) v = random.normal();
  std::fill(machine.memory[4].begin(), machine.memory[4].end(), -7.0f);
  CHECK(machine.executor->run({rows}, {}).is_ok());
  const std::vector<float>& out = machine.memory[4];
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x.data() + r * kColumns;
    double squares[2] = {0, 0};
    for (int i = 0; i < kColumns; ++i) {
      squares[0] += std::pow(2.0 * row[i] + 1, 2);
      squares[1] += std::pow(-1.0 * row[i] + 0.5, 2);
    }
    for (int i = 0; i < kColumns; ++i) {
      const double a = std::pow(2.0 * row[i] + 1, 2) / (squares[0] / kColumns + 1e-5);
      const double b = std::pow(-1.0 * row[i] + 0.5, 2) / (squares[1] / kColumns + 1e-5);
      CHECK(std::fabs(out[static_cast<size_t>(r * kColumns + i)] - 0.5 * (a + b)) < 1e-3);
    }
  }
  for (size_t i = static_cast<size_t>(rows) * kColumns; i < out.size(); ++i) CHECK(out[i] == -7.0f);
}

void stages_and_chains_are_right() {
  for (int threads : {1, 2, 5, 11}) {
    Machine machine(branches(300), std::make_shared<ThreadPool>(threads));
    for (int64_t rows : {300, 1, 0, 7, 64, 299}) check_branches(machine, rows, 3);
  }
}

void chains_need_fewer_barriers() {
  Machine machine(branches(300), std::make_shared<ThreadPool>(2));
  check_branches(machine, 300, 4);
  // both branches are a chain each; the sum begins another stage
  CHECK(machine.executor->barriers() == 1);
  check_branches(machine, 1, 4);
  CHECK(machine.executor->barriers() == 0);
  using Field = Executor::TaskField;
  const std::vector<int64_t> tasks = machine.executor->step_tasks();
  CHECK(tasks.size() % static_cast<size_t>(Field::kTaskFields) == 0 && !tasks.empty());
  for (size_t i = 0; i < tasks.size(); i += static_cast<size_t>(Field::kTaskFields)) {
    const auto field = [&](Field of) { return tasks[i + static_cast<size_t>(of)]; };
    CHECK(field(Field::kThreads) == 1 && field(Field::kUnits) <= field(Field::kChunk));
  }
}

void a_row_that_is_read_elsewhere_ends_a_chain() {
  // the second step reads what the first writes, but shifted by one row
  Maker m(64);
  const int x = m.tensor();
  const int a = m.tensor();
  const int shifted = m.tensor(1);
  m.program.tensors[static_cast<size_t>(shifted)].offset = {kColumns * 4};
  m.program.buffers[1] += kColumns * 4;
  const int out = m.tensor();
  m.step(Op::kScale, a, {x}, {3, 0});
  m.step(Op::kMap, out, {shifted}, kSquare);
  for (int repeat = 0; repeat < 50; ++repeat) {
    Machine machine(m.program, std::make_shared<ThreadPool>(4));
    for (size_t i = 0; i < machine.memory[0].size(); ++i)
      machine.memory[0][i] = static_cast<float>(i % 97);
    CHECK(machine.executor->run({64}, {}).is_ok());
    CHECK(machine.executor->barriers() == 1);
    for (size_t i = 0; i < 63 * kColumns; ++i) {
      const float v = 3 * machine.memory[0][i + kColumns];
      CHECK(machine.memory[2][i] == v * v);
    }
  }
}

void profiling_runs_step_by_step() {
  Machine machine(branches(300), std::make_shared<ThreadPool>(2));
  machine.executor->set_profiling(true);
  check_branches(machine, 300, 5);
  for (double s : machine.executor->step_seconds()) CHECK(s > 0);
  // an observer sees each step when its result is there, and before a later one begins
  std::vector<size_t> seen;
  machine.executor->observe([&](size_t step) { seen.push_back(step); });
  check_branches(machine, 300, 1);
  const size_t n = machine.executor->program().steps.size();
  CHECK(seen.size() == n && std::set<size_t>(seen.begin(), seen.end()).size() == n);
  machine.executor->set_profiling(false);
  check_branches(machine, 300, 5);
  CHECK(seen.size() == n);
}

void steps_that_clash_are_refused() {
  const auto message = [](const Program& program) {
    std::vector<std::vector<char>> memory;
    std::vector<Block> blocks;
    for (int64_t size : program.buffers) memory.emplace_back(static_cast<size_t>(size));
    for (auto& b : memory) blocks.push_back({b.data(), static_cast<int64_t>(b.size())});
    std::unique_ptr<Executor> executor;
    return Executor::create(program, blocks, *best_target(), std::make_shared<ThreadPool>(1),
                            executor)
        .message();
  };
  for (int kind = 0; kind < 3; ++kind) {
    Maker m(8);
    const int x = m.tensor();
    const int y = m.tensor();
    const int z = m.tensor();
    m.step(Op::kMap, y, {x}, kSquare);
    if (kind == 0) m.step(Op::kMap, z, {y}, kSquare, false);  // read after write
    if (kind == 1) m.step(Op::kMap, x, {z}, kSquare, false);  // write after read
    if (kind == 2) m.step(Op::kMap, y, {z}, kSquare, false);  // write after write
    CHECK(message(m.program).find("steps 0 and 1 share a stage") != std::string::npos);
  }
  // a wide stage without clashes, then with one at its end
  Maker m(8);
  const int x = m.tensor();
  std::vector<int> made;
  for (int i = 0; i < 2000; ++i) {
    made.push_back(m.tensor());
    m.step(Op::kMap, made.back(), {x}, kSquare, i == 0);
  }
  CHECK(message(m.program).empty());
  m.step(Op::kMap, m.tensor(), {made[1000]}, kSquare, false);
  CHECK(message(m.program).find("steps 1000 and 2000 share a stage") != std::string::npos);
}

void two_executors_share_a_pool() {
  auto pool = std::make_shared<ThreadPool>(3);
  Machine a(branches(100), pool);
  Machine b(branches(200), pool);
  std::thread other([&] {
    for (uint32_t i = 0; i < 100; ++i) check_branches(a, i % 101, i);
  });
  for (uint32_t i = 0; i < 100; ++i) check_branches(b, 2 * (i % 101), i);
  other.join();
}

void two_pools_of_too_many_threads() {
  const int threads = 2 * usable_processors() + 1;
  Machine a(branches(100), std::make_shared<ThreadPool>(threads));
  Machine b(branches(100), std::make_shared<ThreadPool>(threads));
  std::thread other([&] {
    for (uint32_t i = 0; i < 60; ++i) check_branches(a, 100, i);
  });
  for (uint32_t i = 0; i < 60; ++i) check_branches(b, 100, i);
  other.join();
}

// Squares of millions of numbers, again and again: seconds of work.
Program long_run() {
  Maker m(4096);
  const int x = m.tensor();
  const int y = m.tensor();
  for (int i = 0; i < 2000; ++i) m.step(Op::kScale, i % 2 ? x : y, {i % 2 ? y : x}, {1, 1});
  return m.program;
}

void a_run_can_be_stopped() {
  for (int threads : {1, 2, 4}) {
    Machine machine(long_run(), std::make_shared<ThreadPool>(threads));
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20 * repeat));
        machine.executor->abort();
      });
      const Status s = machine.executor->run({4096}, {});
      other.join();
      // a stop that came after the end would be for the next run
      machine.executor->clear_abort();
      CHECK(s.code() == Code::kAborted);
    }
    int polls = 0;
    CHECK(machine.executor->run({4096}, [&] { return ++polls == 2; }).code() == Code::kAborted);
    machine.executor->abort();
    CHECK(machine.executor->run({1}, {}).code() == Code::kAborted);
    CHECK(machine.executor->run({1}, {}).is_ok());
  }
}

void buffers_move_between_runs() {
  Machine machine(branches(300), std::make_shared<ThreadPool>(2));
  check_branches(machine, 20, 5);
  for (size_t buffer : {size_t{0}, size_t{4}}) {
    // the old memory is gone: whoever still used it would be caught by the sanitizers
    std::vector<float> fresh(size_t{20} * kColumns);
    machine.memory[buffer].swap(fresh);
    fresh = std::vector<float>();
    const Block block = {reinterpret_cast<char*>(machine.memory[buffer].data()),
                         static_cast<int64_t>(machine.memory[buffer].size()) * 4};
    CHECK(machine.executor->move_buffer(buffer, block).is_ok());
  }
  check_branches(machine, 20, 6);
  check_branches(machine, 3, 7);
  CHECK(!machine.executor->run({21}, {}).is_ok());  // rows that the smaller buffers do not hold
  check_branches(machine, 20, 8);
  CHECK(!machine.executor->move_buffer(99, {}).is_ok());
}

void fixed_sizes_need_their_bytes() {
  Maker m(4);
  const int x = m.tensor();
  m.program.tensors[0].ne[1] = {4, -1};
  const int y = m.tensor();
  m.program.tensors[1].ne[1] = {4, -1};
  for (TensorDecl& t : m.program.tensors) t.nb[2] = t.nb[3] = {kColumns * 16, -1};
  m.step(Op::kMap, y, {x}, kSquare);
  Machine machine(m.program, std::make_shared<ThreadPool>(2));
  std::vector<float> in(size_t{4} * kColumns, 3.0f);
  std::vector<float> out(in.size());
  const auto block = [](std::vector<float>& v, int64_t size) {
    return Block{reinterpret_cast<char*>(v.data()), size};
  };
  const auto size = static_cast<int64_t>(in.size()) * 4;
  CHECK(!machine.executor->move_buffer(0, block(in, size - 4)).is_ok());
  CHECK(machine.executor->move_buffer(0, block(in, size)).is_ok());
  CHECK(machine.executor->move_buffer(1, block(out, size)).is_ok());
  CHECK(machine.executor->run({4}, {}).is_ok());
  for (float v : out) CHECK(v == 9.0f);
}

void thread_counts_change_ten_thousand_times() {
  Machine machine(branches(24), std::make_shared<ThreadPool>(4));
  Random random(9);
  for (uint32_t i = 0; i < 10000; ++i) {
    machine.executor->set_threads(static_cast<int>(random.below(6)));
    if (i % 100 == 0) {
      check_branches(machine, random.below(25), i);
    } else {
      CHECK(machine.executor->run({random.below(25)}, {}).is_ok());
    }
  }
}

}  // namespace

int main() {
  RUN(stages_and_chains_are_right);
  RUN(chains_need_fewer_barriers);
  RUN(a_row_that_is_read_elsewhere_ends_a_chain);
  RUN(profiling_runs_step_by_step);
  RUN(steps_that_clash_are_refused);
  RUN(two_executors_share_a_pool);
  RUN(two_pools_of_too_many_threads);
  RUN(a_run_can_be_stopped);
  RUN(buffers_move_between_runs);
  RUN(fixed_sizes_need_their_bytes);
  RUN(thread_counts_change_ten_thousand_times);
  return 0;
}
