// A run: the loops in which threads take tasks from stage to stage.
#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace weft {

namespace {

constexpr int64_t kPollNanoseconds = 10'000'000;
// The longest that a chunk should take, so that a thread notices a stop soon.
constexpr int64_t kAwayNanoseconds = 8'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

void Executor::set_threads(int n) {
  const std::lock_guard<std::mutex> lock(running_);
  n = n < 1 ? pool_->size() : std::min(n, pool_->size());
  if (n == n_threads_) return;
  n_threads_ = n;
  if (!bound_.empty() || program_.symbols.empty()) share_out();
}

void Executor::set_profiling(bool on) {
  const std::lock_guard<std::mutex> lock(running_);
  if (on == profiling_) return;
  profiling_ = on;
  if (!bound_.empty() || program_.symbols.empty()) share_out();
}

void Executor::observe(std::function<void(size_t)> observer) {
  const std::lock_guard<std::mutex> lock(running_);
  observer_ = std::move(observer);
}

void Executor::record_spans(bool on) {
  const std::lock_guard<std::mutex> lock(running_);
  if (on) {
    spans_.start(steps_.size(), pool_->size());
  } else {
    spans_.stop();
  }
}

int64_t Executor::scratch_bytes() const {
  return static_cast<int64_t>(scratch_stride_) * pool_->size() +
         static_cast<int64_t>(shared_.size());
}

Status Executor::run(const std::vector<int64_t>& symbol_values, const std::function<bool()>& poll) {
  const std::lock_guard<std::mutex> lock(running_);
  if (Status s = bind(symbol_values, false); !s.is_ok()) return s;
  for (const Task& task : tasks_) {
    for (int part = 0; part < parts(); ++part)
      claimed(task, part).store(0, std::memory_order_relaxed);
    claimed(task, kMaxParts).store(0, std::memory_order_relaxed);
  }
  for (size_t i = 0; i < stages_.size(); ++i) {
    left_[i].units.store(stages_[i].units, std::memory_order_relaxed);
    left_[i].claimed.store(0, std::memory_order_relaxed);
  }
  std::fill(tickets_.begin(), tickets_.end(), 0);
  fault_ = {};
  completed_.store(0, std::memory_order_relaxed);
  poll_ = poll ? &poll : nullptr;
  next_poll_ = poll ? now_ns() + kPollNanoseconds : 0;
  barriers_ = 0;
  if (profiling_) std::fill(step_seconds_.begin(), step_seconds_.end(), 0.0);
  stage_start_ = profiling_ ? now_ns() : 0;
  // Where all stages are solo, waking other threads would cost more than they could do.
  pool_->run(&Executor::job, this, all_solo_ ? 1 : n_threads_);
  if (!uses_.empty()) leave_experts();
  unreadable_ = !read_error_.is_ok();
  if (unreadable_) return std::exchange(read_error_, Status::ok());
  if (abort_.exchange(false, std::memory_order_relaxed)) return Status::aborted();
  return fault_.kind == FaultKind::kNone ? Status::ok() : failed();
}

void Executor::job(void* context, int thread) { static_cast<Executor*>(context)->work(thread); }

// Takes a thread from stage to stage; one that comes late joins the others in their stage.
void Executor::work(int thread) {
  const auto n = static_cast<uint32_t>(stages_.size());
  for (uint32_t s; (s = completed_.load(std::memory_order_acquire)) < n;) {
    const Stage& stage = stages_[s];
    if (thread == 0 || !stage.solo) {
      int64_t units = 0;
      bool stopped = false;
      if (stage.fetches) units = fetch(stage, thread, stopped);
      for (int32_t i = stage.begin; i < stage.end && !stopped && !stage.fetches; ++i) {
        const Task& task = tasks_[static_cast<size_t>(i)];
        units += stage.prepares ? prepare(task, thread, stopped) : run_loop(task, thread, stopped);
      }
      if (stopped) {
        completed_.store(n, std::memory_order_seq_cst);
        pool_->wake(completed_);
        return;
      }
      if (units > 0 && left_[s].units.fetch_sub(units, std::memory_order_acq_rel) == units) {
        complete(s);
        continue;
      }
    }
    pool_->wait(completed_, s);
  }
}

// Ends a stage; the thread that did its last unit calls it. `completed_` orders what it writes.
void Executor::complete(uint32_t stage) {
  const size_t next = size_t{stage} + 1;
  const bool wakes = next < stages_.size() && !(stages_[stage].solo && stages_[next].solo);
  if (wakes) ++barriers_;
  if (profiling_) {
    const int64_t now = now_ns();
    const Task& task = tasks_[static_cast<size_t>(stages_[stage].begin)];
    const auto step = static_cast<size_t>(layout_.steps[static_cast<size_t>(task.chain.begin)]);
    step_seconds_[step] += static_cast<double>(now - stage_start_) * 1e-9;
    if (observer_ && !stages_[stage].prepares) observer_(step);
    stage_start_ = observer_ ? now_ns() : now;
  }
  // Fails after a stop, which has set `completed_` to the number of stages.
  uint32_t expected = stage;
  completed_.compare_exchange_strong(expected, stage + 1, std::memory_order_seq_cst);
  if (wakes || next == stages_.size()) pool_->wake(completed_);
}

// Does units of a task's preparation until none is left. Returns how many this thread has done.
int64_t Executor::prepare(const Task& task, int thread, bool& stopped) {
  const Step& step = first_step(task);
  const auto number = static_cast<size_t>(layout_.steps[static_cast<size_t>(task.chain.begin)]);
  std::atomic<int64_t>& next = claimed(task, kMaxParts);
  for (int64_t n_units = 0;; ++n_units) {
    stopped = abort_.load(std::memory_order_relaxed);
    if (stopped) return n_units;
    const int64_t unit = next.fetch_add(1, std::memory_order_relaxed);
    if (unit >= step.preparation) return n_units;
    const Spans::Note note = spans_.note(number, thread);
    step.kernel->prepare(step.call, unit, unit + 1);
  }
}

int Executor::parts() const { return std::min(n_threads_, kMaxParts); }

std::atomic<int64_t>& Executor::claimed(const Task& task, int part) const {
  const auto number = static_cast<size_t>(&task - tasks_.data());
  return claimed_[number * (kMaxParts + 1) + static_cast<size_t>(part)].units;
}

// Does units of a task until none is left, and returns how many. A thread begins in the same part
// of every task, where it often reads what it has written itself and still has in its cache; then
// it helps with the other parts.
int64_t Executor::run_loop(const Task& task, int thread, bool& stopped) {
  const int n_parts = parts();
  const int own = thread * n_parts / n_threads_;
  int64_t n_units = 0;
  for (int i = 0; i < n_parts && !stopped; ++i) {
    n_units += run_part(task, (own + i) % n_parts, thread, stopped);
  }
  return n_units;
}

// The number of units that a thread should claim when `left` units of a part are unclaimed.
int64_t Executor::chunk_of(const Task& task, int64_t left) const {
  if (n_threads_ == 1) return task.chunk;
  // Chunks get smaller towards the end, so that no thread waits long for the last one.
  const int64_t sharing = (n_threads_ + parts() - 1) / parts();  // threads that begin in a part
  const int64_t fair = left / (2 * sharing) / task.grain * task.grain;
  return std::clamp(fair, task.grain, task.chunk);
}

// `chunk`, reduced to what should take no more than kAwayNanoseconds.
int64_t Executor::limit_time(const Task& task, int64_t chunk) const {
  const Counter& counter = counters_[static_cast<size_t>(task.chain.begin)];
  const double unit_ns =
      task.work * static_cast<double>(counter.rate.load(std::memory_order_relaxed));
  const auto most = static_cast<int64_t>(static_cast<double>(kAwayNanoseconds) / unit_ns);
  if (most < task.grain) return std::max<int64_t>(1, most);
  return std::min(chunk, most / task.grain * task.grain);
}

int64_t Executor::run_part(const Task& task, int part, int thread, bool& stopped) {
  const int64_t chunks = (task.units + task.chunk - 1) / task.chunk;
  const int64_t first = chunks * part / parts() * task.chunk;
  const int64_t last = std::min(task.units, chunks * (part + 1) / parts() * task.chunk);
  std::atomic<int64_t>& next = claimed(task, part);
  Counter& counter = counters_[static_cast<size_t>(task.chain.begin)];
  const bool polls = thread == 0 && poll_ != nullptr;
  int64_t n_units = 0;
  for (;;) {
    stopped = abort_.load(std::memory_order_relaxed);
    if (stopped) break;
    int64_t chunk = chunk_of(task, last - first - next.load(std::memory_order_relaxed));
    int64_t start = 0;
    if (task.timed) {
      start = now_ns();
      chunk = limit_time(task, chunk);
    }
    if (next.load(std::memory_order_relaxed) >= last - first) break;
    const int64_t begin = first + next.fetch_add(chunk, std::memory_order_relaxed);
    if (begin >= last) break;
    const int64_t end = std::min(begin + chunk, last);
    run_units(task, begin, end, thread);
    n_units += end - begin;
    if (!task.timed && !polls) continue;
    const int64_t now = now_ns();
    if (task.timed) {
      const double took = static_cast<double>(now - start) / static_cast<double>(end - begin);
      counter.rate.store(static_cast<float>(std::max(1e-6, took / task.work)),
                         std::memory_order_relaxed);
    }
    if (polls && now >= next_poll_) {
      if ((*poll_)()) abort();
      next_poll_ = now_ns() + kPollNanoseconds;
    }
  }
  return n_units;
}

void Executor::run_units(const Task& task, int64_t begin, int64_t end, int thread) {
  char* scratch = pool_->scratch(thread);
  const int32_t* numbers = layout_.steps.data();
  if (task.chain.end - task.chain.begin == 1) {
    const auto number = static_cast<size_t>(numbers[task.chain.begin]);
    const Step& step = steps_[number];
    if (step.use != nullptr && step.use->has_nothing_to_do()) return;
    const Spans::Note note = spans_.note(number, thread);
    step.kernel->run(step.call, begin, end, scratch);
    return;
  }
  // Few rows at a time, so that the next step finds them in the cache.
  for (int64_t row = begin; row < end; row += task.grain) {
    const int64_t last = std::min(row + task.grain, end);
    for (int32_t i = task.chain.begin; i < task.chain.end; ++i) {
      const auto number = static_cast<size_t>(numbers[i]);
      const Step& step = steps_[number];
      const int64_t each = step.items / task.units;
      const Spans::Note note = spans_.note(number, thread);
      step.kernel->run(step.call, row * each, last * each, scratch);
    }
  }
}

}  // namespace weft
