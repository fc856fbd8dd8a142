#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace weft {

namespace {

constexpr size_t kCacheLine = 64;
constexpr int64_t kMaxElements = int64_t{1} << 44;
constexpr int64_t kPollNanoseconds = 5'000'000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Bytes from the first to the last element; -1 on overflow.
int64_t extent(const Tensor& t) {
  const DTypeInfo& info = dtype_info(t.type);
  for (int64_t n : t.ne) {
    if (n == 0) return 0;
  }
  int64_t total = info.block_size;
  const int64_t steps[4] = {t.ne[0] / info.block - 1, t.ne[1] - 1, t.ne[2] - 1, t.ne[3] - 1};
  for (int d = 0; d < 4; ++d) {
    int64_t span = 0;
    if (__builtin_mul_overflow(steps[d], t.nb[d], &span) ||
        __builtin_add_overflow(total, span, &total)) {
      return -1;
    }
  }
  // a tensor of ternary weights ends in its scale
  return t.type == DType::kI2_S ? total + 32 : total;
}

std::string shape(const Tensor& t) {
  std::string s = std::string(dtype_info(t.type).name) + "[";
  for (int d = 0; d < 4; ++d) s += (d ? ", " : "") + std::to_string(t.ne[d]);
  return s + "]";
}

bool overlap(const Tensor& a, const Tensor& b) {
  const char* a_end = a.data + extent(a);
  const char* b_end = b.data + extent(b);
  return a.data < b_end && b.data < a_end;
}

}  // namespace

Status Executor::create(Program program, std::vector<Block> memory, const Target& target,
                        std::shared_ptr<ThreadPool> pool, std::unique_ptr<Executor>& out) {
  if (target.score == 0) {
    return Status::invalid(std::string("this machine cannot run kernel target ") + target.name);
  }
  if (Status s = program.check(); !s.is_ok()) return s;
  if (memory.size() != program.buffers.size()) {
    return Status::invalid("the program has " + std::to_string(program.buffers.size()) +
                           " buffers, got memory for " + std::to_string(memory.size()));
  }
  for (size_t i = 0; i < memory.size(); ++i) {
    if (memory[i].size < program.buffers[i]) {
      return Status::invalid("buffer " + std::to_string(i) + " needs " +
                             std::to_string(program.buffers[i]) + " bytes, got " +
                             std::to_string(memory[i].size));
    }
  }
  std::unique_ptr<Executor> self(new Executor());
  self->program_ = std::move(program);
  self->memory_ = std::move(memory);
  self->table_ = &target.table();
  self->pool_ = std::move(pool);
  self->tensors_.resize(self->program_.tensors.size());
  self->counters_ = std::make_unique<Counter[]>(self->program_.steps.size());
  for (size_t i = 0; i < self->program_.tensors.size(); ++i) {
    const TensorDecl& t = self->program_.tensors[i];
    bool symbolic = t.offset.expr >= 0;
    for (int d = 0; d < 4; ++d) symbolic = symbolic || t.ne[d].expr >= 0 || t.nb[d].expr >= 0;
    if (symbolic) self->symbolic_.push_back(i);
  }
  std::vector<int64_t> maxima;
  for (const Symbol& s : self->program_.symbols) maxima.push_back(s.max);
  if (Status s = self->bind(maxima, true); !s.is_ok()) return s;
  if (Status s = self->plan_steps(); !s.is_ok()) return s;
  out = std::move(self);
  return Status::ok();
}

Status Executor::bind_tensor(size_t i, const std::vector<int64_t>& values) {
  const TensorDecl& decl = program_.tensors[i];
  const auto value = [&](const Size& s) {
    return s.expr < 0 ? s.value : values[static_cast<size_t>(s.expr)];
  };
  Tensor& t = tensors_[i];
  t.type = decl.type;
  const DTypeInfo& info = dtype_info(decl.type);
  for (int d = 0; d < 4; ++d) {
    t.ne[d] = value(decl.ne[d]);
    t.nb[d] = value(decl.nb[d]);
    if (t.ne[d] < 0 || t.nb[d] < 0) {
      return Status::invalid("tensor " + decl.name + " has a negative size or stride");
    }
  }
  if (t.ne[0] % info.block != 0) {
    return Status::invalid("tensor " + decl.name + " " + shape(t) + " has partial blocks");
  }
  if (info.block > 1 && t.nb[0] != info.block_size) {
    return Status::invalid("tensor " + decl.name + " " + shape(t) + " has gaps between blocks");
  }
  // strides of 0 fit any number of elements into a buffer, but a run over them would not end
  int64_t elements = 1;
  for (int64_t n : t.ne) {
    if (__builtin_mul_overflow(elements, n, &elements) || elements > kMaxElements) {
      return Status::invalid("tensor " + decl.name + " " + shape(t) + " has too many elements");
    }
  }
  const int64_t offset = value(decl.offset);
  int64_t end = extent(t);
  const Block& block = memory_[static_cast<size_t>(decl.buffer)];
  if (end < 0 || offset < 0 || __builtin_add_overflow(end, offset, &end) || end > block.size) {
    return Status::invalid("tensor " + decl.name + " " + shape(t) + " at byte " +
                           std::to_string(offset) + " leaves its buffer of " +
                           std::to_string(block.size) + " bytes");
  }
  t.data = block.data + offset;
  return Status::ok();
}

Status Executor::bind(const std::vector<int64_t>& symbol_values, bool first) {
  if (symbol_values.size() != program_.symbols.size()) {
    return Status::invalid("the program has " + std::to_string(program_.symbols.size()) +
                           " symbols, got " + std::to_string(symbol_values.size()) + " values");
  }
  if (!first && symbol_values == bound_) return Status::ok();
  // a failure leaves no binding behind that a later run could take for granted
  bound_.clear();
  if (Status s = program_.evaluate(symbol_values.data(), values_); !s.is_ok()) return s;
  if (first) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (Status s = bind_tensor(i, values_); !s.is_ok()) return s;
    }
  } else {
    for (size_t i : symbolic_) {
      if (Status s = bind_tensor(i, values_); !s.is_ok()) return s;
    }
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    step.call.dst = tensors_[static_cast<size_t>(program_.steps[i].dst)];
  }
  for (size_t i = 0; i < steps_.size() && !first; ++i) {
    // sizes that agree at the maxima may disagree below them
    if (const char* why = steps_[i].kernel->check(steps_[i].call); why != nullptr) {
      return refused(i, why);
    }
  }
  bound_ = symbol_values;
  for (Step& step : steps_) {
    step.items = step.kernel->items(step.call);
    const int64_t grain =
        step.kernel->grain != nullptr ? std::max<int64_t>(1, step.kernel->grain(step.call)) : 1;
    step.grain = grain;
    // four chunks a thread: balanced enough, and few claims
    const int64_t parts = std::max<int64_t>(1, int64_t{4} * step.call.n_threads);
    const int64_t share = (step.items + parts - 1) / parts;
    step.chunk = std::max<int64_t>(grain, (share + grain - 1) / grain * grain);
  }
  all_solo_ = true;
  for (Stage& stage : stages_) {
    // in smallest chunks that are worth a thread; several tiny steps may add up to less than one
    double shares = 0;
    for (int32_t i = stage.begin; i < stage.end; ++i) {
      const Step& step = steps_[static_cast<size_t>(i)];
      shares += static_cast<double>(step.items) / static_cast<double>(step.grain);
    }
    stage.solo = shares <= 1 || pool_->size() == 1;
    all_solo_ = all_solo_ && stage.solo;
  }
  return Status::ok();
}

Status Executor::refused(size_t index, const char* why) const {
  const StepDecl& decl = program_.steps[index];
  const std::string& name = program_.tensors[static_cast<size_t>(decl.dst)].name;
  return Status::invalid(std::string(kOpInfo[static_cast<size_t>(decl.op)].name) + " (tensor " +
                         name + " " + shape(steps_[index].call.dst) + "): " + why);
}

Status Executor::plan_steps() {
  size_t scratch = 0;
  steps_.resize(program_.steps.size());
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const StepDecl& decl = program_.steps[i];
    Step& step = steps_[i];
    step.call.dst = tensors_[static_cast<size_t>(decl.dst)];
    for (int s = 0; s < kMaxSrc; ++s) {
      step.call.src[s] = decl.src[s] < 0 ? nullptr : &tensors_[static_cast<size_t>(decl.src[s])];
    }
    step.call.params = program_.params.data() + decl.first_param;
    step.call.n_params = decl.n_params;
    step.call.n_threads = pool_->size();
    step.kernel = &(*table_)[decl.op];
    const std::string& name = program_.tensors[static_cast<size_t>(decl.dst)].name;
    const char* op = kOpInfo[static_cast<size_t>(decl.op)].name;
    if (step.kernel->run == nullptr) {
      return Status::invalid(std::string("no kernel for ") + op + " (tensor " + name + ")");
    }
    if (const char* why = step.kernel->check(step.call); why != nullptr) return refused(i, why);
    if (step.kernel->scratch != nullptr) {
      scratch = std::max(scratch, step.kernel->scratch(step.call));
    }
  }
  // steps of a stage run at the same time: none may write what another reads or writes
  for (const StageDecl& stage : program_.stages) {
    for (int32_t a = stage.begin; a < stage.end; ++a) {
      const Tensor& written = steps_[static_cast<size_t>(a)].call.dst;
      for (int32_t b = stage.begin; b < stage.end; ++b) {
        if (a == b) continue;
        const Call& other = steps_[static_cast<size_t>(b)].call;
        bool clash = overlap(written, other.dst);
        for (const Tensor* src : other.src) {
          clash = clash || (src != nullptr && overlap(written, *src));
        }
        if (clash) {
          return Status::invalid("steps " + std::to_string(a) + " and " + std::to_string(b) +
                                 " share a stage and memory");
        }
      }
    }
  }
  for (const StageDecl& stage : program_.stages) {
    stages_.push_back({stage.begin, stage.end, false});
  }
  plan_memory(scratch);
  step_seconds_.assign(steps_.size(), 0.0);
  std::vector<int64_t> values = bound_;
  return bind(values, true);
}

// Scratch of each thread, then what the threads share: steps of a stage have their own, stages
// follow each other.
void Executor::plan_memory(size_t scratch) {
  const auto padded = [](size_t n) { return (n + kCacheLine - 1) / kCacheLine * kCacheLine; };
  scratch_stride_ = padded(scratch) + kCacheLine;
  const size_t own = scratch_stride_ * static_cast<size_t>(pool_->size()) + kCacheLine;
  std::vector<size_t> at(steps_.size(), 0);
  size_t shared = 0;
  size_t tickets = 0;
  for (const StageDecl& stage : program_.stages) {
    size_t used = 0;
    for (auto i = static_cast<size_t>(stage.begin); i < static_cast<size_t>(stage.end); ++i) {
      const Step& step = steps_[i];
      at[i] = used;
      if (step.kernel->shared != nullptr) used += padded(step.kernel->shared(step.call));
      if (step.kernel->tickets != nullptr) {
        tickets += static_cast<size_t>(step.kernel->tickets(step.call));
      }
    }
    shared = std::max(shared, used);
  }
  scratch_.resize(own + shared);
  tickets_.assign(tickets, 0);
  size_t ticket = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    step.call.shared = scratch_.data() + own + at[i];
    step.call.tickets = tickets_.data() + ticket;
    if (step.kernel->tickets != nullptr) {
      ticket += static_cast<size_t>(step.kernel->tickets(step.call));
    }
  }
}

Status Executor::run(const std::vector<int64_t>& symbol_values, const std::function<bool()>& poll) {
  const std::lock_guard<std::mutex> lock(running_);
  if (Status s = bind(symbol_values, false); !s.is_ok()) return s;
  for (size_t i = 0; i < steps_.size(); ++i) {
    counters_[i].next.store(0, std::memory_order_relaxed);
  }
  std::fill(tickets_.begin(), tickets_.end(), 0);
  abort_.store(false, std::memory_order_relaxed);
  poll_ = poll ? &poll : nullptr;
  next_poll_ = now_ns() + kPollNanoseconds;
  barriers_ = 0;
  if (all_solo_ && !profiling_) {
    work(0);  // too little work for a second thread: waking it would cost more
  } else {
    pool_->run(&Executor::job, this);
  }
  return abort_.load(std::memory_order_relaxed) ? Status::aborted() : Status::ok();
}

void Executor::job(void* self, int thread) { static_cast<Executor*>(self)->work(thread); }

void Executor::work(int thread) {
  Barrier& barrier = pool_->barrier();
  if (profiling_) {
    for (size_t i = 0; i < steps_.size(); ++i) {
      const int64_t start = now_ns();
      run_step(i, thread);
      barrier.wait();
      if (thread == 0) step_seconds_[i] = static_cast<double>(now_ns() - start) * 1e-9;
    }
    return;
  }
  for (size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    if (thread == 0 || !stage.solo) {
      for (int32_t i = stage.begin; i < stage.end; ++i) run_step(static_cast<size_t>(i), thread);
    }
    // leaving the job is the last barrier
    if (s + 1 == stages_.size() || (stage.solo && stages_[s + 1].solo)) continue;
    barrier.wait();
    if (thread == 0) ++barriers_;
  }
}

void Executor::record_spans(bool on) {
  const std::lock_guard<std::mutex> lock(running_);
  if (on) {
    spans_.start(steps_.size(), pool_->size());
  } else {
    spans_.stop();
  }
}

void Executor::run_step(size_t index, int thread) {
  const Step& step = steps_[index];
  std::atomic<int64_t>& next = counters_[index].next;
  char* scratch = scratch_.data() + static_cast<size_t>(thread) * scratch_stride_;
  const auto misaligned = reinterpret_cast<uintptr_t>(scratch) % kCacheLine;
  if (misaligned != 0) scratch += kCacheLine - misaligned;
  for (;;) {
    if (abort_.load(std::memory_order_relaxed)) return;
    const int64_t begin = next.fetch_add(step.chunk, std::memory_order_relaxed);
    if (begin >= step.items) return;
    {
      const Spans::Note note = spans_.note(index, thread);
      step.kernel->run(step.call, begin, std::min(begin + step.chunk, step.items), scratch);
    }
    if (thread == 0 && poll_ != nullptr && now_ns() >= next_poll_) {
      if ((*poll_)()) abort_.store(true, std::memory_order_relaxed);
      next_poll_ = now_ns() + kPollNanoseconds;
    }
  }
}

}  // namespace weft
