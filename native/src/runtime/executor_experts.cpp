// Steps whose experts are in a store: before each runs, a stage brings the experts that its ids
// name. Where a step may name more than fit, there are several such pairs of stages, and each does
// the part of the step whose experts are there.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/executor.h"

namespace weft {

namespace {

constexpr int64_t kPollNanoseconds = 10'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// Connects steps with stores. The tensor of such a buffer must be a whole stack of the store, and
// source 0 of MUL_MAT_ID only.
Status Executor::find_experts(const std::vector<ExpertBuffer>& experts) {
  for (const ExpertBuffer& in : experts) {
    if (in.buffer >= memory_.size() || in.store == nullptr || in.stack < 0 ||
        in.stack >= in.store->n_stacks()) {
      return Status::invalid("the program has no such buffer of experts");
    }
    const ExpertStack& stack = in.store->stack(in.stack);
    for (size_t i : residents_[in.buffer]) {
      const Tensor& t = tensors_[i];
      const std::string start = "tensor " + program_.tensors[i].name + " of experts in a file ";
      if (t.data != in.store->address(in.stack) || t.type != stack.type ||
          t.layout != stack.layout || t.ne[0] != stack.row_elements || t.ne[1] != stack.rows ||
          t.ne[2] != stack.n_experts || t.ne[3] != 1 || t.nb[1] * t.ne[1] != t.nb[2] ||
          t.nb[2] != stack.expert_bytes) {
        return Status::invalid(start + "is not what its store has");
      }
      for (size_t s = 0; s < program_.steps.size(); ++s) {
        const StepDecl& step = program_.steps[s];
        bool read = false;
        for (int k = 0; k < kMaxSrc; ++k) read = read || step.src[k] == static_cast<int32_t>(i);
        if (step.dst == static_cast<int32_t>(i)) return Status::invalid(start + "is written");
        if (!read) continue;
        if (step.op != Op::kMulMatId || step.src[0] != static_cast<int32_t>(i) ||
            step.src[1] == static_cast<int32_t>(i) || step.src[2] == static_cast<int32_t>(i)) {
          return Status::invalid(start + "is read by " +
                                 kOpInfo[static_cast<size_t>(step.op)].name);
        }
        uses_.push_back(std::make_unique<ExpertUse>());
        ExpertUse& use = *uses_.back();
        use.store = in.store;
        use.stack = in.stack;
        use.lease.at.assign(static_cast<size_t>(stack.n_experts), nullptr);
        steps_[s].use = &use;
        use.table.type = DType::kI64;
        use.table.ne[0] = stack.n_experts;
        for (int d = 1; d < 4; ++d) use.table.ne[d] = 1;
        for (int d = 0; d < 4; ++d) use.table.nb[d] = d == 0 ? 8 : 8 * stack.n_experts;
        use.table.data = reinterpret_cast<char*>(use.lease.at.data());
      }
    }
  }
  return Status::ok();
}

// The number of rounds that the step may need at the current sizes.
int32_t Executor::rounds(const Step& step) const {
  const Tensor& ids = *step.call.src[2];
  const int64_t most = std::min(step.call.src[0]->ne[2], ids.ne[0] * ids.ne[1]);
  const int64_t size = step.use->store->round_size(step.use->stack, most);
  return static_cast<int32_t>(std::max<int64_t>(1, (most + size - 1) / size));
}

void Executor::add_expert_stages(Chain chain) {
  const Step& step = steps_[static_cast<size_t>(layout_.steps[static_cast<size_t>(chain.begin)])];
  if (step.items == 0) return;
  const int32_t n = rounds(step);
  for (int32_t round = 0; round < n; ++round) {
    tasks_.push_back(make_task(chain));
    const auto end = static_cast<int32_t>(tasks_.size());
    Stage stage;
    stage.begin = end - 1;
    stage.end = end;
    stage.units = n_threads_;
    stage.solo = n_threads_ == 1;
    stage.fetches = true;
    stage.round = round;
    stages_.push_back(stage);
    add_stage(end - 1, end);
    stages_.back().round = round;
  }
}

// The experts that the ids of the step name, each once.
std::vector<int32_t> Executor::chosen(const Step& step) const {
  const Tensor& ids = *step.call.src[2];
  const int64_t n_experts = step.call.src[0]->ne[2];
  std::vector<bool> seen(static_cast<size_t>(n_experts), false);
  std::vector<int32_t> experts;
  for (int64_t token = 0; token < ids.ne[1]; ++token) {
    for (int64_t i = 0; i < ids.ne[0]; ++i) {
      int32_t id;
      std::memcpy(&id, ids.data + i * ids.nb[0] + token * ids.nb[1], 4);
      if (id < 0 || id >= n_experts || seen[static_cast<size_t>(id)]) continue;
      seen[static_cast<size_t>(id)] = true;
      experts.push_back(id);
    }
  }
  return experts;
}

// Makes the run hold the experts of a round instead of those that it held before; false while other
// runs hold too many.
bool Executor::enter(ExpertUse& use, const Step& step, int32_t round) {
  const std::lock_guard<std::mutex> lock(fetching_);
  if (use.lease.round == round) return true;
  if (held_ != nullptr && held_ != &use) held_->store->leave(held_->lease);
  held_ = &use;
  if (!use.begun) {
    const Tensor& ids = *step.call.src[2];
    const int64_t most = std::min(step.call.src[0]->ne[2], ids.ne[0] * ids.ne[1]);
    use.store->begin(use.lease, use.stack, chosen(step), use.store->round_size(use.stack, most));
    use.begun = true;
  }
  return use.store->enter(use.lease, round);
}

// Does units of a stage that fetches: each ends when all experts of the round are there. Until then
// its thread reads them, too. Returns how many units this thread has done.
int64_t Executor::fetch(const Stage& stage, int thread, bool& stopped) {
  const Task& task = tasks_[static_cast<size_t>(stage.begin)];
  const Step& step = first_step(task);
  ExpertUse& use = *step.use;
  const auto number = static_cast<size_t>(layout_.steps[static_cast<size_t>(task.chain.begin)]);
  std::atomic<int64_t>& next = left_[static_cast<size_t>(&stage - stages_.data())].claimed;
  for (int64_t n_units = 0;; ++n_units) {
    if (next.fetch_add(1, std::memory_order_relaxed) >= stage.units) return n_units;
    const Spans::Note note = spans_.note(number, thread);
    for (;;) {
      stopped = abort_.load(std::memory_order_relaxed);
      if (stopped) return n_units;
      if (!enter(use, step, stage.round)) {
        use.store->wait_for_slots();
      } else {
        bool ready = false;
        Status status = use.store->help(use.lease, ready);
        if (!status.is_ok()) {
          const std::lock_guard<std::mutex> lock(fetching_);
          if (read_error_.is_ok()) read_error_ = std::move(status);
          stopped = true;
          return n_units;
        }
        if (ready) break;
      }
      if (thread == 0 && poll_ != nullptr && now_ns() >= next_poll_) {
        if ((*poll_)()) abort();
        next_poll_ = now_ns() + kPollNanoseconds;
      }
    }
  }
}

void Executor::leave_experts() {
  if (held_ != nullptr) held_->store->leave(held_->lease);
  held_ = nullptr;
  for (const auto& use : uses_) use->begun = false;
}

}  // namespace weft
