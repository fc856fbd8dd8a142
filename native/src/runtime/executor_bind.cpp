// What happens before a run: checking the program, binding tensors to sizes and addresses, and
// planning memory that steps share.
#include <algorithm>
#include <utility>

#include "runtime/executor.h"
#include "runtime/work.h"

namespace weft {

namespace {

constexpr size_t kCacheLine = 64;
constexpr int64_t kMaxElements = int64_t{1} << 44;

std::string shape(const Tensor& t) {
  std::string s = std::string(dtype_info(t.type).name) + "[";
  for (int d = 0; d < 4; ++d) s += (d ? ", " : "") + std::to_string(t.ne[d]);
  return s + "]";
}

// What to do about a kernel that CMake's WEFT_KEEP has left out; nothing in a build of all kernels.
#if defined(WEFT_KEPT_TYPES)
constexpr const char* kLeftOut =
    "; this build has only the kernels of the models in its list (WEFT_KEEP): write the list again "
    "with this model (weft keep) and build anew";
#else
constexpr const char* kLeftOut = "";
#endif

// A tensor of a call whose type has no kernels in this build; nullptr where there is none.
const Tensor* without_kernels(const Call& call, const KernelTable& table) {
  const auto has_none = [&](const Tensor& t, bool written) {
    const TypeOps& type = table.type(t.type);
    return is_quantized(t.type) && (written ? type.from_float == nullptr : !type.to_float);
  };
#if defined(WEFT_KEPT_TYPES)
  if (has_none(call.dst, true)) return &call.dst;
#endif
  for (const Tensor* source : call.src) {
    if (source != nullptr && has_none(*source, false)) return source;
  }
  return nullptr;
}

}  // namespace

Status Executor::create(Program program, std::vector<Block> memory, const Target& target,
                        std::shared_ptr<ThreadPool> pool, std::unique_ptr<Executor>& out,
                        std::vector<ExpertBuffer> experts) {
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
  self->n_threads_ = self->pool_->size();
  self->tensors_.resize(self->program_.tensors.size());
  self->counters_ = std::make_unique<Counter[]>(self->program_.steps.size());
  self->residents_.resize(self->program_.buffers.size());
  for (size_t i = 0; i < self->program_.tensors.size(); ++i) {
    const TensorDecl& t = self->program_.tensors[i];
    bool symbolic = t.offset.expr >= 0;
    for (int d = 0; d < 4; ++d) symbolic = symbolic || t.ne[d].expr >= 0 || t.nb[d].expr >= 0;
    if (symbolic) self->symbolic_.push_back(i);
    self->residents_[static_cast<size_t>(t.buffer)].push_back(i);
  }
  self->writers_.resize(self->program_.tensors.size());
  for (size_t i = 0; i < self->program_.steps.size(); ++i) {
    self->writers_[static_cast<size_t>(self->program_.steps[i].dst)].push_back(i);
  }
  std::vector<int64_t> maxima;
  for (const Symbol& s : self->program_.symbols) maxima.push_back(s.max);
  if (Status s = self->bind(maxima, true); !s.is_ok()) return s;
  if (Status s = self->check_layouts(); !s.is_ok()) return s;
  self->steps_.resize(self->program_.steps.size());
  if (Status s = self->find_experts(experts); !s.is_ok()) return s;
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
  // Strides of 0 fit any number of elements into a buffer, but a run over them would not end.
  int64_t elements = 1;
  for (int64_t n : t.ne) {
    if (__builtin_mul_overflow(elements, n, &elements) || elements > kMaxElements) {
      return Status::invalid("tensor " + decl.name + " " + shape(t) + " has too many elements");
    }
  }
  const int64_t offset = value(decl.offset);
  t.layout = decl.layout;
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

Status Executor::move_buffer(size_t buffer, Block block) {
  const std::lock_guard<std::mutex> lock(running_);
  if (buffer >= memory_.size()) {
    return Status::invalid("the program has no buffer " + std::to_string(buffer));
  }
  const Block old = memory_[buffer];
  if (old.data == block.data && old.size == block.size) return Status::ok();
  const auto is_symbolic = [&](size_t i) {
    return std::binary_search(symbolic_.begin(), symbolic_.end(), i);
  };
  for (size_t i : residents_[buffer]) {
    const Tensor& t = tensors_[i];
    if (!is_symbolic(i) && extent(t) + (t.data - old.data) > block.size) {
      return Status::invalid("tensor " + program_.tensors[i].name + " needs more than the " +
                             std::to_string(block.size) + " bytes that its buffer is moved to");
    }
  }
  memory_[buffer] = block;
  for (size_t i : residents_[buffer]) {
    if (is_symbolic(i)) bound_.clear();  // makes the next run bind, which finds the new offset
    tensors_[i].data = block.data + (tensors_[i].data - old.data);
    for (size_t step : writers_[i]) steps_[step].call.dst.data = tensors_[i].data;
  }
  return Status::ok();
}

Status Executor::bind(const std::vector<int64_t>& symbol_values, bool first) {
  if (symbol_values.size() != program_.symbols.size()) {
    return Status::invalid("the program has " + std::to_string(program_.symbols.size()) +
                           " symbols, got " + std::to_string(symbol_values.size()) + " values");
  }
  if (!first && symbol_values == bound_) return Status::ok();
  // After a failure no later run may rely on the old binding.
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
    // Sizes that agree at the symbols' maxima may disagree below them.
    if (const char* why = steps_[i].kernel->check(steps_[i].call); why != nullptr) {
      return refused(i, why);
    }
  }
  bound_ = symbol_values;
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    step.items = step.kernel->items(step.call);
    step.grain =
        step.kernel->grain != nullptr ? std::max<int64_t>(1, step.kernel->grain(step.call)) : 1;
    step.work = work_of(program_.steps[i].op, step.call);
    step.preparation =
        step.kernel->prepare_units != nullptr ? step.kernel->prepare_units(step.call) : 0;
  }
  share_out();
  return Status::ok();
}

Status Executor::refused(size_t index, const char* why) const {
  const StepDecl& decl = program_.steps[index];
  const std::string& name = program_.tensors[static_cast<size_t>(decl.dst)].name;
  return Status::invalid(std::string(kOpInfo[static_cast<size_t>(decl.op)].name) + " (tensor " +
                         name + " " + shape(steps_[index].call.dst) + "): " + why);
}

// The error for the fault that a kernel has met.
Status Executor::failed() const {
  const auto index = static_cast<size_t>(fault_.step);
  if (fault_.kind == FaultKind::kDivision) return refused(index, "an integer is divided by 0");
  const std::string value = std::to_string(fault_.value);
  const std::string size = std::to_string(fault_.size);
  return refused(
      index, ("index " + value + " is outside -" + size + " .. " + std::to_string(fault_.size - 1))
                 .c_str());
}

// Places the memory that threads share. The steps of a stage have separate bytes; stages reuse the
// same bytes, as they follow each other. Tickets are separate for every step.
void Executor::plan_shared() {
  std::vector<size_t> offsets(steps_.size(), 0);
  size_t most = 0;
  size_t tickets = 0;
  for (const StageDecl& stage : program_.stages) {
    size_t used = 0;
    for (int32_t i = stage.begin; i < stage.end; ++i) {
      const Step& step = steps_[static_cast<size_t>(i)];
      offsets[static_cast<size_t>(i)] = used;
      if (step.kernel->shared != nullptr) {
        used += (step.kernel->shared(step.call) + kCacheLine - 1) / kCacheLine * kCacheLine;
      }
      if (step.kernel->tickets != nullptr) {
        tickets += static_cast<size_t>(step.kernel->tickets(step.call));
      }
    }
    most = std::max(most, used);
  }
  shared_.resize(most + (most == 0 ? 0 : kCacheLine));
  const auto start = reinterpret_cast<uintptr_t>(shared_.data());
  char* base = shared_.data() + (kCacheLine - start % kCacheLine) % kCacheLine;
  tickets_.assign(tickets, 0);
  int32_t* ticket = tickets_.data();
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    step.call.shared = base + offsets[i];
    step.call.tickets = ticket;
    if (step.kernel->tickets != nullptr) ticket += step.kernel->tickets(step.call);
  }
}

Status Executor::plan_steps() {
  size_t scratch = 0;
  for (size_t i = 0; i < program_.steps.size(); ++i) {
    const StepDecl& decl = program_.steps[i];
    Step& step = steps_[i];
    step.call.dst = tensors_[static_cast<size_t>(decl.dst)];
    for (int s = 0; s < kMaxSrc; ++s) {
      step.call.src[s] = decl.src[s] < 0 ? nullptr : &tensors_[static_cast<size_t>(decl.src[s])];
    }
    if (step.use != nullptr) step.call.src[kExpertAddresses] = &step.use->table;
    step.call.params = program_.params.data() + decl.first_param;
    step.call.n_params = decl.n_params;
    step.call.n_threads = pool_->size();
    step.call.fault = &fault_;
    step.call.step = static_cast<int32_t>(i);
    step.kernel = &(*table_)[decl.op];
    const std::string& name = program_.tensors[static_cast<size_t>(decl.dst)].name;
    const char* op = kOpInfo[static_cast<size_t>(decl.op)].name;
    if (step.kernel->run == nullptr) {
      return Status::invalid(std::string("no kernel for ") + op + " (tensor " + name + ")" +
                             kLeftOut);
    }
    if (const Tensor* t = without_kernels(step.call, *table_); t != nullptr) {
      return Status::invalid(std::string("no kernel for ") + op + " (tensor " + name +
                             ") of type " + dtype_info(t->type).name + kLeftOut);
    }
    if (const char* why = step.kernel->check(step.call); why != nullptr) return refused(i, why);
    if (step.kernel->scratch != nullptr) {
      scratch = std::max(scratch, step.kernel->scratch(step.call));
    }
  }
  LayoutInput input = {&program_, {}, {}};
  for (const Step& step : steps_) {
    input.calls.push_back(&step.call);
    input.by_rows.push_back(step.kernel->by_rows);
  }
  const std::string clash = find_clash(program_, input.calls);
  if (!clash.empty()) return Status::invalid(clash);
  layout_ = make_layout(input);
  place_.resize(steps_.size());
  for (size_t i = 0; i < layout_.steps.size(); ++i) {
    place_[static_cast<size_t>(layout_.steps[i])] = static_cast<int32_t>(i);
  }
  plan_shared();
  scratch_stride_ = (scratch + kCacheLine - 1) / kCacheLine * kCacheLine;
  pool_->reserve_scratch(scratch_stride_);
  step_seconds_.assign(steps_.size(), 0.0);
  const std::vector<int64_t> values = bound_;
  return bind(values, true);
}

}  // namespace weft
