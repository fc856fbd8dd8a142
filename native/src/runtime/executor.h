// Runs a checked Program over memory that its owner provides.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
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

  const Program& program() const { return program_; }
  int64_t scratch_bytes() const { return static_cast<int64_t>(scratch_.size()); }
  // Barriers of the last run.
  int64_t barriers() const { return barriers_; }

  // Seconds of each step of the last run when profiling is on (every step then has its own stage).
  void set_profiling(bool on) { profiling_ = on; }
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
    int64_t chunk = 1;
  };
  // Steps begin..end. A solo stage is too little work to share: thread 0 does it, and no barrier
  // separates it from the next solo stage.
  struct Stage {
    int32_t begin = 0;
    int32_t end = 0;
    bool solo = false;
  };
  // One cache line each, so that claiming chunks of one step does not slow another.
  struct alignas(64) Counter {
    std::atomic<int64_t> next{0};
  };

  Executor() = default;
  Status bind(const std::vector<int64_t>& symbol_values, bool first);
  Status bind_tensor(size_t i, const std::vector<int64_t>& values);
  Status plan_steps();
  void plan_memory(size_t scratch);
  Status refused(size_t index, const char* why) const;
  static void job(void* self, int thread);
  void work(int thread);
  void run_step(size_t index, int thread);

  Program program_;
  std::vector<Block> memory_;
  const KernelTable* table_ = nullptr;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<Tensor> tensors_;
  std::vector<size_t> symbolic_;  // tensors that depend on symbols
  std::vector<Step> steps_;
  std::vector<Stage> stages_;
  bool all_solo_ = false;
  std::unique_ptr<Counter[]> counters_;
  std::vector<char> scratch_;
  size_t scratch_stride_ = 0;
  std::vector<int32_t> tickets_;
  std::vector<int64_t> values_;
  std::vector<int64_t> bound_;  // symbol values of the current binding
  int64_t barriers_ = 0;

  std::mutex running_;  // one run at a time; a second caller waits
  std::atomic<bool> abort_{false};
  const std::function<bool()>* poll_ = nullptr;
  int64_t next_poll_ = 0;
  bool profiling_ = false;
  std::vector<double> step_seconds_;
  Spans spans_;
};

}  // namespace weft
