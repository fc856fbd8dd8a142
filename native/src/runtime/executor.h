// Runs a checked Program over memory that its owner provides.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "runtime/layout.h"
#include "runtime/spans.h"
#include "threads/pool.h"
#include "weft/program.h"

namespace weft {

struct Block {
  char* data = nullptr;
  int64_t size = 0;
};

class Executor {
 public:
  // Checks the program, the memory and that the target has every kernel. The blocks must outlive
  // the executor; the pool is shared with it.
  static Status create(Program program, std::vector<Block> memory, const Target& target,
                       std::shared_ptr<ThreadPool> pool, std::unique_ptr<Executor>& out);

  // Runs all stages with these symbol values. `poll` (may be empty) is called by the calling thread
  // every few milliseconds; when it returns true the run stops with Code::kAborted. After a stop
  // the contents of written tensors are undefined; the executor can run again.
  Status run(const std::vector<int64_t>& symbol_values, const std::function<bool()>& poll);

  // Gives a buffer other memory from the next run on: big enough for its tensors at the sizes of
  // that run, and apart from all other memory of the program.
  Status move_buffer(size_t buffer, Block block);
  char* address(size_t buffer) const { return memory_[buffer].data; }

  // From any thread: stops the run that is going on, or else the next one.
  void abort() { abort_.store(true, std::memory_order_relaxed); }
  // Forgets an abort that no run has seen.
  void clear_abort() { abort_.store(false, std::memory_order_relaxed); }

  // Threads of the runs from now on, at most those of the pool; 0: all of them.
  void set_threads(int n);
  int threads() const { return n_threads_; }

  const Program& program() const { return program_; }
  // Scratch of all threads; it belongs to the pool.
  int64_t scratch_bytes() const;
  // Barriers of the last run.
  int64_t barriers() const { return barriers_; }
  // For each step, the pieces that threads could claim in the last run.
  std::vector<int64_t> step_tasks() const;

  // Seconds of each step of the last run when profiling is on (every step then has its own stage).
  void set_profiling(bool on);
  const std::vector<double>& step_seconds() const { return step_seconds_; }

  // Records when each thread works on each step, stages as they are; starts anew with every call.
  void record_spans(bool on);
  const Spans& spans() const { return spans_; }

 private:
  struct Step {
    const Kernel* kernel = nullptr;
    Call call;
    int64_t items = 0;
    int64_t grain = 1;
    double work = 0;          // see runtime/work.h
    int64_t preparation = 0;  // units
  };
  // A loop over units: the items of one step, or the rows of a chain of them.
  struct Task {
    Chain chain;  // of steps, in `layout_.steps`
    int64_t units = 0;
    int64_t grain = 1;
    int64_t chunk = 1;  // what a thread claims at a time, a multiple of the grain
    double work = 0;    // of a unit
    bool timed = false;
  };
  // Tasks begin..end. A solo stage is too little work to share: thread 0 does it, and no barrier
  // separates it from the next solo stage.
  struct Stage {
    int32_t begin = 0;
    int32_t end = 0;
    int64_t units = 0;
    bool solo = false;
    bool prepares = false;  // what its tasks prepare; they run in the next one
  };
  // One cache line each, so that claiming chunks of one task does not slow another.
  struct alignas(64) Counter {
    std::atomic<int64_t> prepared{0};
    // Nanoseconds for a unit of work, as last measured; the first guess is that of a slow machine.
    std::atomic<float> rate{1.0F};
  };
  struct alignas(64) Left {
    std::atomic<int64_t> units{0};
  };
  // Units of a part of a task that are claimed; one cache line each, for the same reason.
  struct alignas(64) Claimed {
    std::atomic<int64_t> units{0};
  };

  // Threads begin in parts of a task of their own; many threads share them.
  static constexpr int kMaxParts = 8;

  Executor() = default;
  Status bind(const std::vector<int64_t>& symbol_values, bool first);
  Status bind_tensor(size_t i, const std::vector<int64_t>& values);
  Status check_layouts() const;
  Status plan_steps();
  void plan_shared();
  void share_out();
  bool worth_joining(const JoinedStage& stage) const;
  void add_stage(int32_t begin, int32_t end);
  Task make_task(Chain chain) const;
  const Step& first_step(const Task& task) const {
    return steps_[static_cast<size_t>(layout_.steps[static_cast<size_t>(task.chain.begin)])];
  }
  Status refused(size_t index, const char* why) const;
  Status failed() const;
  static void job(void* self, int thread);
  void work(int thread);
  void complete(uint32_t stage);
  int64_t prepare(const Task& task, int thread, bool& stopped);
  int64_t run_loop(const Task& task, int thread, bool& stopped);
  int64_t run_part(const Task& task, int part, int thread, bool& stopped);
  int parts() const;
  std::atomic<int64_t>& claimed(const Task& task, int part) const;
  void run_units(const Task& task, int64_t begin, int64_t end, int thread);

  Program program_;
  std::vector<Block> memory_;
  const KernelTable* table_ = nullptr;
  std::shared_ptr<ThreadPool> pool_;
  int n_threads_ = 1;
  std::vector<Tensor> tensors_;
  std::vector<size_t> symbolic_;                // tensors that depend on symbols
  std::vector<std::vector<size_t>> residents_;  // the tensors in each buffer
  std::vector<std::vector<size_t>> writers_;    // the steps that write to each tensor
  std::vector<Step> steps_;
  StepLayout layout_;
  std::vector<int32_t> place_;  // of each step in `layout_.steps`
  std::vector<Task> tasks_;     // of the current binding
  std::vector<Stage> stages_;   // of the current binding
  bool all_solo_ = false;
  std::unique_ptr<Counter[]> counters_;  // of a task: that of its first place in `layout_.steps`
  std::unique_ptr<Claimed[]> claimed_;   // likewise, for each part of a task
  std::unique_ptr<Left[]> left_;         // of each stage, the units that are not done
  // Stages that are complete. A stage is when its work is done, not when all threads have come: one
  // that the system does not run holds nobody up, unless it has claimed work.
  alignas(64) std::atomic<uint32_t> done_{0};
  size_t scratch_stride_ = 0;
  std::vector<char> shared_;  // of all threads: what steps prepare, or meet over
  std::vector<int32_t> tickets_;
  Fault fault_;  // of the current run
  std::vector<int64_t> values_;
  std::vector<int64_t> bound_;  // symbol values of the current binding
  int64_t barriers_ = 0;

  std::mutex running_;  // one run at a time; a second caller waits
  std::atomic<bool> abort_{false};
  const std::function<bool()>* poll_ = nullptr;
  int64_t next_poll_ = 0;
  bool profiling_ = false;
  int64_t stage_start_ = 0;
  std::vector<double> step_seconds_;
  Spans spans_;
};

}  // namespace weft
