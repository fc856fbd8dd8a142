// Sharing the steps of a program out to threads, as tasks in stages.
#include <algorithm>

#include "runtime/executor.h"

namespace weft {

namespace {

// A step of less work takes so little time that its chunks need no limit.
constexpr double kTimedWork = 4e6;
// A chain is worth more than sharing out its steps one by one when it has this many rows per
// thread.
constexpr int64_t kRowsPerThread = 4;

}  // namespace

// Makes tasks and stages for the current sizes.
void Executor::share_out() {
  tasks_.clear();
  stages_.clear();
  const auto uses_experts = [&](Chain chain) {
    return steps_[static_cast<size_t>(layout_.steps[static_cast<size_t>(chain.begin)])].use !=
           nullptr;
  };
  for (const JoinedStage& stage : layout_.stages) {
    if (!profiling_ && (stage.last - stage.first == 1 || worth_joining(stage))) {
      const auto begin = static_cast<int32_t>(tasks_.size());
      for (int32_t c = stage.begin; c < stage.end; ++c) {
        const Chain chain = layout_.chains[static_cast<size_t>(c)];
        if (!uses_experts(chain)) tasks_.push_back(make_task(chain));
      }
      add_stage(begin, static_cast<int32_t>(tasks_.size()));
      for (int32_t c = stage.begin; c < stage.end; ++c) {
        const Chain chain = layout_.chains[static_cast<size_t>(c)];
        if (uses_experts(chain)) add_expert_stages(chain);
      }
      continue;
    }
    for (int32_t s = stage.first; s < stage.last; ++s) {
      const auto begin = static_cast<int32_t>(tasks_.size());
      const StageDecl& decl = program_.stages[static_cast<size_t>(s)];
      for (int32_t i = decl.begin; i < decl.end; ++i) {
        if (steps_[static_cast<size_t>(i)].use != nullptr) continue;
        tasks_.push_back(
            make_task({place_[static_cast<size_t>(i)], place_[static_cast<size_t>(i)] + 1}));
        if (profiling_)
          add_stage(static_cast<int32_t>(tasks_.size()) - 1, static_cast<int32_t>(tasks_.size()));
      }
      if (!profiling_) add_stage(begin, static_cast<int32_t>(tasks_.size()));
      for (int32_t i = decl.begin; i < decl.end; ++i) {
        if (steps_[static_cast<size_t>(i)].use == nullptr) continue;
        add_expert_stages({place_[static_cast<size_t>(i)], place_[static_cast<size_t>(i)] + 1});
      }
    }
  }
  reserve_counters();
  all_solo_ = std::all_of(stages_.begin(), stages_.end(), [](const Stage& s) { return s.solo; });
}

// Whether the chains of a stage pay: a chain is shared out by rows only, so there must be enough
// rows for all threads, or steps too small to be shared.
bool Executor::worth_joining(const JoinedStage& stage) const {
  for (int32_t c = stage.begin; c < stage.end; ++c) {
    const Chain chain = layout_.chains[static_cast<size_t>(c)];
    if (chain.end - chain.begin < 2) continue;
    const int64_t rows = make_task(chain).units;
    for (int32_t i = chain.begin; i < chain.end; ++i) {
      const Step& step = steps_[static_cast<size_t>(layout_.steps[static_cast<size_t>(i)])];
      if (rows == 0 || step.items % rows != 0) return false;
      if (rows < kRowsPerThread * n_threads_ && step.items > step.grain) return false;
    }
  }
  return true;
}

void Executor::add_stage(int32_t begin, int32_t end) {
  double shares = 0;   // of a grain each; several tiny tasks may add up to less than one
  int64_t claims = 0;  // of a chunk each
  int64_t units = 0;
  int64_t preparation = 0;
  for (int32_t i = begin; i < end; ++i) {
    const Task& task = tasks_[static_cast<size_t>(i)];
    shares += static_cast<double>(task.units) / static_cast<double>(task.grain);
    claims += (task.units + task.chunk - 1) / task.chunk;
    units += task.units;
    preparation += first_step(task).preparation;
  }
  if (units == 0) return;
  const bool solo = !profiling_ && (shares <= 1 || claims <= 1);
  const bool by_one = solo || n_threads_ == 1;
  if (preparation > 0) stages_.push_back({begin, end, preparation, by_one, true});
  stages_.push_back({begin, end, units, by_one, false});
}

Executor::Task Executor::make_task(Chain chain) const {
  Task task;
  task.chain = chain;
  const auto step_at = [&](int32_t i) -> const Step& {
    return steps_[static_cast<size_t>(layout_.steps[static_cast<size_t>(i)])];
  };
  const Step& first = step_at(chain.begin);
  double work = first.work;
  if (chain.end - chain.begin == 1) {
    task.units = first.items;
    task.grain = first.grain;
  } else {
    const Tensor& dst = first.call.dst;
    task.units = first.items == 0 ? 0 : dst.ne[1] * dst.ne[2] * dst.ne[3];
    // A row of the chain is the work of all its steps, so fewer rows are worth a thread.
    double shares = 0;
    work = 0;
    for (int32_t i = chain.begin; i < chain.end; ++i) {
      const Step& step = step_at(i);
      shares += static_cast<double>(step.items) / static_cast<double>(step.grain);
      work += step.work;
    }
    if (shares > 0) {
      const double rows = static_cast<double>(task.units) / shares;
      task.grain = std::max<int64_t>(1, static_cast<int64_t>(rows));
    }
  }
  task.timed = work > kTimedWork;
  task.work = work / static_cast<double>(std::max<int64_t>(1, task.units));
  // Eight chunks per thread balance the threads well enough, with few claims.
  const int64_t chunks = int64_t{8} * n_threads_;
  const int64_t share = (task.units + chunks - 1) / chunks;
  task.chunk = std::max(task.grain, (share + task.grain - 1) / task.grain * task.grain);
  return task;
}

// Makes room for the counters of all tasks and stages, and never gives it back.
void Executor::reserve_counters() {
  if (tasks_.size() > n_claimed_) {
    n_claimed_ = tasks_.size();
    claimed_ = std::make_unique<Claimed[]>(n_claimed_ * (kMaxParts + 1));
  }
  if (stages_.size() > n_left_) {
    n_left_ = stages_.size();
    left_ = std::make_unique<Left[]>(n_left_);
  }
}

std::vector<int64_t> Executor::step_tasks() const {
  constexpr auto kFields = static_cast<size_t>(TaskField::kTaskFields);
  std::vector<int64_t> out(steps_.size() * kFields, 0);
  for (size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    if (stage.prepares || stage.fetches) continue;
    for (int32_t t = stage.begin; t < stage.end; ++t) {
      const Task& task = tasks_[static_cast<size_t>(t)];
      for (int32_t i = task.chain.begin; i < task.chain.end; ++i) {
        const int32_t number = layout_.steps[static_cast<size_t>(i)];
        const Step& step = steps_[static_cast<size_t>(number)];
        const auto bytes = [&](size_t (*of)(const Call&)) {
          return of == nullptr ? 0 : static_cast<int64_t>(of(step.call));
        };
        const int64_t grains = (task.units + task.grain - 1) / task.grain;
        const int64_t fields[kFields] = {static_cast<int64_t>(s),
                                         layout_.steps[static_cast<size_t>(task.chain.begin)],
                                         task.units,
                                         task.grain,
                                         task.chunk,
                                         stage.solo ? 1 : std::min<int64_t>(n_threads_, grains),
                                         step.preparation,
                                         bytes(step.kernel->scratch),
                                         bytes(step.kernel->shared)};
        std::copy(fields, fields + kFields, out.begin() + number * static_cast<int64_t>(kFields));
      }
    }
  }
  return out;
}

}  // namespace weft
