// Checks a Program and runs it over memory that its owner provides.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "experts/store.h"
#include "kernels/dispatch.h"
#include "runtime/layout.h"
#include "runtime/spans.h"
#include "threads/pool.h"
#include "weft/program.h"

namespace weft {

// The memory of a buffer whose one tensor has its experts in a store.
struct ExpertBuffer {
  size_t buffer = 0;
  std::shared_ptr<ExpertStore> store;
  int32_t stack = 0;
};

struct Block {
  char* data = nullptr;
  int64_t size = 0;  // bytes
};

class Executor {
 public:
  // Checks the program and the memory, and that the target has every kernel. `memory` holds one
  // block per buffer of the program; the blocks must outlive the executor. Executors may share a
  // pool. The buffers of `experts` have ExpertStore::address for memory.
  static Status create(Program program, std::vector<Block> memory, const Target& target,
                       std::shared_ptr<ThreadPool> pool, std::unique_ptr<Executor>& out,
                       std::vector<ExpertBuffer> experts = {});

  // Runs all stages with these symbol values. The calling thread calls `poll` (which may be empty)
  // every few milliseconds; when it returns true the run stops with Code::kAborted. After a stop
  // the contents of written tensors are undefined, and the executor can run again.
  Status run(const std::vector<int64_t>& symbol_values, const std::function<bool()>& poll);

  // Whether the last run has failed because experts could not be read from their file.
  bool unreadable() const { return unreadable_; }

  // Makes a buffer use other memory from the next run on. The block must hold the buffer's tensors
  // at the sizes of that run, and overlap no other memory of the program.
  Status move_buffer(size_t buffer, Block block);
  char* address(size_t buffer) const { return memory_[buffer].data; }

  // Stops the current run, or the next one when none is going on. Any thread may call it.
  void abort() { abort_.store(true, std::memory_order_relaxed); }
  // Cancels an abort that has not stopped a run yet.
  void clear_abort() { abort_.store(false, std::memory_order_relaxed); }

  // Sets how many threads the following runs use, at most those of the pool; 0 means all of them.
  void set_threads(int n);
  int threads() const { return n_threads_; }

  const Program& program() const { return program_; }
  // The bytes of scratch memory of all threads, which belongs to the pool, and of shared memory.
  int64_t scratch_bytes() const;
  // The number of barriers of the last run.
  int64_t barriers() const { return barriers_; }
  // For each step how the last run shared it out: kTaskFields numbers, in the order of TaskField.
  enum class TaskField {
    kStage,    // the number of its stage
    kFirst,    // the first step of the chain that it is in, or itself
    kUnits,    // of the loop
    kGrain,    // chunks are multiples of it
    kChunk,    // the largest number of units that a thread claims at a time
    kThreads,  // the number of threads that find a chunk
    kPrepare,  // units of preparation, in a stage of its own before
    kScratch,  // bytes of scratch memory for each thread
    kShared,   // bytes of memory that all threads share
    kTaskFields
  };
  std::vector<int64_t> step_tasks() const;

  // While profiling is on, every step has a stage of its own, and step_seconds has the seconds of
  // each step of the last run.
  void set_profiling(bool on);
  const std::vector<double>& step_seconds() const { return step_seconds_; }
  // While profiling is on, the thread that has completed a step calls `observer` with its number,
  // and no later step begins before that returns. It must not throw; an empty one is not called.
  void observe(std::function<void(size_t)> observer);

  // Records when each thread works on each step, without changing the stages. Every call clears
  // what was recorded before.
  void record_spans(bool on);
  const Spans& spans() const { return spans_; }

 private:
  struct ExpertUse;
  struct Step {
    const Kernel* kernel = nullptr;
    Call call;
    int64_t items = 0;
    int64_t grain = 1;
    double work = 0;           // the work of the step, see runtime/work.h
    int64_t preparation = 0;   // units of preparation
    ExpertUse* use = nullptr;  // where source 0 is in a store
  };
  // A loop over units: the items of one step, or the rows of a chain of steps. Threads start in
  // different parts of it, so that a thread meets the same rows in each task:
  //
  //     units   |  part 0   |  part 1   |  part 2   |   one part per thread, at most kMaxParts
  //     chunks  |   |   | | |   |   | | |   |   | | |   a thread claims one at a time
  struct Task {
    Chain chain;  // its steps
    int64_t units = 0;
    int64_t grain = 1;   // chunks are multiples of it, but for the end of the loop
    int64_t chunk = 1;   // the largest number of units that a thread claims at a time
    double work = 0;     // the work of one unit
    bool timed = false;  // chunks are limited by the time that they take
  };
  // The tasks begin..end (exclusive). A solo stage is too little work to share: thread 0 does it,
  // and no barrier separates it from the next solo stage.
  struct Stage {
    int32_t begin = 0;
    int32_t end = 0;
    int64_t units = 0;
    bool solo = false;
    bool prepares = false;  // does the preparations of its tasks, which run in the next stage
    bool fetches = false;   // brings the experts of its task, which runs in the next stage
    int32_t round = 0;      // of the experts
  };
  // The use that a step makes of experts in a store.
  struct ExpertUse {
    std::shared_ptr<ExpertStore> store;
    int32_t stack = 0;
    ExpertLease lease;
    Tensor table;        // the source with the addresses
    bool begun = false;  // in this run
    // The ids name fewer experts than they could. Round 0 also gives the columns of no expert.
    bool has_nothing_to_do() const { return lease.round > 0 && lease.slots.empty(); }
  };
  // The counters below have a cache line each, so that claims in one task do not slow another.
  struct alignas(64) Counter {
    // Nanoseconds per unit of work, as last measured; the first value is that of a slow machine.
    std::atomic<float> rate{1.0F};
  };
  struct alignas(64) Left {
    std::atomic<int64_t> units{0};    // units of a stage that are not complete
    std::atomic<int64_t> claimed{0};  // units that are claimed, of a stage that fetches
  };
  struct alignas(64) Claimed {
    std::atomic<int64_t> units{0};  // units of a part of a task that are claimed
  };

  static constexpr int kMaxParts = 8;
  static constexpr int kExpertAddresses = 3;  // the source of MUL_MAT_ID that a store adds

  Executor() = default;
  Status bind(const std::vector<int64_t>& symbol_values, bool first);
  Status bind_tensor(size_t i, const std::vector<int64_t>& values);
  Status check_layouts() const;
  Status plan_steps();
  void plan_shared();
  void share_out();
  bool worth_joining(const JoinedStage& stage) const;
  void add_stage(int32_t begin, int32_t end);
  Status find_experts(const std::vector<ExpertBuffer>& experts);
  void add_expert_stages(Chain chain);
  ExpertUse* use_of(const Task& task) const { return first_step(task).use; }
  int32_t rounds(const Step& step) const;
  std::vector<int32_t> chosen(const Step& step) const;
  int64_t fetch(const Stage& stage, int thread, bool& stopped);
  bool enter(ExpertUse& use, const Step& step, int32_t round);
  void leave_experts();
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
  int64_t chunk_of(const Task& task, int64_t left) const;
  int64_t limit_time(const Task& task, int64_t chunk) const;
  int64_t run_part(const Task& task, int part, int thread, bool& stopped);
  int parts() const;
  // The units that are claimed of a part of a task, or, with kMaxParts, of its preparation.
  std::atomic<int64_t>& claimed(const Task& task, int part) const;
  void reserve_counters();
  void run_units(const Task& task, int64_t begin, int64_t end, int thread);

  Program program_;
  std::vector<Block> memory_;
  const KernelTable* table_ = nullptr;
  std::shared_ptr<ThreadPool> pool_;
  int n_threads_ = 1;
  std::vector<Tensor> tensors_;
  std::vector<size_t> symbolic_;                // the tensors that depend on symbols
  std::vector<std::vector<size_t>> residents_;  // the tensors in each buffer
  std::vector<std::vector<size_t>> writers_;    // the steps that write to each tensor
  std::vector<Step> steps_;
  StepLayout layout_;
  std::vector<int32_t> place_;  // the place of each step in `layout_.steps`
  std::vector<Task> tasks_;     // the tasks and stages at the current sizes
  std::vector<Stage> stages_;
  bool all_solo_ = false;
  std::unique_ptr<Counter[]> counters_;  // by the place of a task's first step in `layout_.steps`
  std::unique_ptr<Claimed[]> claimed_;   // kMaxParts for each task, and one for its preparation
  size_t n_claimed_ = 0;
  std::unique_ptr<Left[]> left_;  // one for each stage
  size_t n_left_ = 0;
  std::vector<std::unique_ptr<ExpertUse>> uses_;
  std::mutex fetching_;        // one thread enters a round
  ExpertUse* held_ = nullptr;  // the use whose experts are held
  Status read_error_;          // why the run has stopped, if experts could not be read
  bool unreadable_ = false;
  // The number of stages that are complete. A stage is complete when all its units are, whether or
  // not every thread has come to it: a thread that the system does not schedule holds nobody up
  // unless it has claimed units.
  alignas(64) std::atomic<uint32_t> completed_{0};
  size_t scratch_stride_ = 0;     // bytes of scratch memory per thread
  std::vector<char> shared_;      // Call::shared of all steps
  std::vector<int32_t> tickets_;  // Call::tickets of all steps
  Fault fault_;                   // of the current run
  std::vector<int64_t> values_;   // values of the program's expressions
  std::vector<int64_t> bound_;    // the symbol values that tensors and steps are bound to
  int64_t barriers_ = 0;

  std::mutex running_;  // one run at a time; a second caller waits
  std::atomic<bool> abort_{false};
  const std::function<bool()>* poll_ = nullptr;
  int64_t next_poll_ = 0;
  bool profiling_ = false;
  std::function<void(size_t)> observer_;
  int64_t stage_start_ = 0;
  std::vector<double> step_seconds_;
  Spans spans_;
};

}  // namespace weft
